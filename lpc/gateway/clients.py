"""Who asks: a client by its token, or callers with the same identity headers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from lpc.cache.questions import DEFAULT_SCOPE
from lpc.gateway.headers import Headers, first
from lpc.gateway.settings import GatewaySettings
from lpc.gateway.tenants import ANONYMOUS
from lpc.wire.tokens import TokenFileError, owner_of, read_tokens
from lpc.wire.watched import Watched

UNNAMED: Final = "-"
"""Label and name, in the settings, of a client without a token of the gateway's."""
_CREDENTIALS: Final = frozenset((b"authorization", b"api-key", b"x-api-key"))
"""Headers for the engine. All callers may share one, so they do not identify a caller."""
_EMPTY: Final = ("", "bearer", "bearer empty", "empty")
"""Values of credentials that clients send because their library wants one."""


@dataclass(frozen=True, slots=True)
class Client:
    """Whose request it is.

    Attributes:
        name: for metrics and settings; of few values.
        tenant: whose answers it may get: of no other tenant's may one come.
        scopes: that it may name.
        cached: its answers may be kept and given again.
    """

    name: str
    tenant: str
    scopes: Sequence[str]
    cached: bool


class Clients:
    """The clients of a gateway. Reads the token file again when it changes: what is not in it any more is refused at once.

    Raises:
        TokenFileError: it cannot be read, is malformed or holds no token.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._identity = frozenset(name.encode() for name in settings.gateway_identity_headers)
        self._tokens: Watched[dict[bytes, str]] | None = None
        if (path := settings.tokens) is not None:
            self._tokens = Watched([path], lambda: read_tokens(path, (UNNAMED,)), "token file is")
            if not self._tokens.current:
                raise TokenFileError(f"{path} holds no token: add a line `name: sha256`")

    @property
    def known(self) -> bool:
        """Whether clients are known by tokens of the gateway's."""
        return self._tokens is not None

    def who(self, headers: Headers) -> Client | None:
        """Return whose request it is; None where a token is asked for and none is valid."""
        identity = self._shown(headers)
        if self._tokens is None:
            tenant = "key:" + _digest(identity) if identity else ANONYMOUS
            identified = any(name not in _CREDENTIALS for name, _ in identity)
            cached = identified or self._settings.gateway_cache_anonymous
            return Client(UNNAMED, tenant, self._settings.scopes_of(UNNAMED), cached)
        shown = [value.decode("latin-1") for name, value in headers if name == b"authorization"]
        found = owner_of(shown[0], self._tokens.current) if len(shown) == 1 else None
        if found is None:
            return None
        # The token is the client's name already.
        users = [(name, value) for name, value in identity if name != b"authorization"]
        tenant = f"client:{found[1]}" + (f":{_digest(users)}" if users else "")
        return Client(found[1], tenant, self._settings.scopes_of(found[1]), True)

    def _shown(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Return the identity headers of a request that say something."""
        return sorted(
            (name, value)
            for name, value in headers
            if name in self._identity
            and value.strip()
            and not (name in _CREDENTIALS and value.decode("latin-1").strip().lower() in _EMPTY)
        )

    def refresh(self) -> None:
        """Look at the token file. A wrong one is reported, and the old one stays."""
        if self._tokens is not None:
            self._tokens.refresh()


def _digest(identity: Headers) -> str:
    """Return a digest of header fields: a key must go to nobody but the engine. Two keys of one user are two tenants."""
    return sha256(
        json.dumps([[name.decode("latin-1"), value.decode("latin-1")] for name, value in identity]).encode()
    ).hexdigest()


def scope_of(headers: Headers, client: Client) -> str | None:
    """Return the scope of a request; None where it names one that its client may not."""
    scope = first(headers, b"x-lpc-scope")
    if scope is None or scope == DEFAULT_SCOPE:
        return DEFAULT_SCOPE
    return scope if scope in client.scopes else None
