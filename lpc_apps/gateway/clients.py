"""Who asks: a client by its token, or callers with the same identity headers; and how engines keep them apart.

Engines share cached blocks among requests of one `cache_salt` (vLLM, SGLang, TensorRT-LLM) and continue a conversation by its
name. Both reach an engine as HMAC-SHA-256 of the tenant and of what the client sent, so that no client can choose another
tenant's. Callers without any identity are not salted: there is nothing by which to tell them apart.
"""

import hmac
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from lpc.cache.bodies import DEFAULT_SCOPE
from lpc.errors import LpcError
from lpc.wire.tokens import TokenFileError, owner_of, read_tokens
from lpc.wire.watched import Watched
from lpc_apps.gateway.headers import Headers, first
from lpc_apps.gateway.settings import GatewaySettings

ANONYMOUS: Final = "anonymous"
"""The tenant of callers without identity."""
KEY_CHARACTERS: Final = 32
SALT: Final = "cache_salt"
NAMES: Final = (
    *(("session_id",), ("vllm_xargs", "session_id")),  # vLLM
    *(("custom_params", "session_id"), ("session_params", "id")),  # SGLang
    ("conversation_params", "conversation_id"),  # TensorRT-LLM
    *(("nvext", "agent_context", "session_id"), ("nvext", "session_control", "session_id"), ("nvext", "cache_salt")),  # Dynamo
)
"""Where a body names its conversation, or what it shares blocks with, to an engine."""
SESSION_HEADERS: Final = frozenset(
    (
        *(b"x-session-id", b"x-session-affinity", b"x-multi-turn-session-id"),  # vLLM and TensorRT-LLM, TensorRT-LLM
        *(b"x-dynamo-session-id", b"x-dynamo-parent-session-id"),  # Dynamo
    )
)
"""Header fields that name a conversation to an engine."""
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


class SaltKeyError(LpcError):
    """The file of the salts' key cannot be used."""


def read_key(path: Path | None) -> bytes:
    """Return the key of a file, or a random one without a file. Raises SaltKeyError."""
    if path is None:
        return secrets.token_bytes(32)
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise SaltKeyError(f"cannot read {path}: {error.strerror}") from error
    if len(key) < KEY_CHARACTERS:
        raise SaltKeyError(f"{path} holds fewer than {KEY_CHARACTERS} characters: make a key with `openssl rand -hex 32`")
    return key


class Tenants:
    """Salts and names of conversations under one key. Thread-safe."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def salt(self, tenant: str, own: object = None) -> str | None:
        """Return the salt of a tenant's request whose body has the salt ``own``; None: it needs none."""
        return None if tenant == ANONYMOUS and own is None else self._digest("salt", tenant, own)

    def session(self, tenant: str, name: str) -> str:
        """Return a tenant's conversation as engines know it."""
        return name if tenant == ANONYMOUS else self._digest("session", tenant, name)

    def apply(self, tenant: str, said: Mapping[str, Any], body: bytes) -> tuple[bytes, str | None]:
        """Return a body with the tenant's salt and names, and the salt. It stays as it is but for what has to be changed.

        Args:
            said: the object that ``body`` holds as JSON.
        """
        salt, changed = self.salt(tenant, said.get(SALT)), said
        if tenant != ANONYMOUS:
            for path in NAMES:
                changed = _replaced(changed, path, partial(self.session, tenant)) or changed
        if salt is None and changed is said:
            return body, None
        if SALT not in said and changed is said and body[:1] == b"{":
            more = b"," if said else b""
            return b'{"' + SALT.encode() + b'":"' + str(salt).encode() + b'"' + more + body[1:], salt
        if salt is not None:
            changed = {**changed, SALT: salt}
        return json.dumps(changed, separators=(",", ":")).encode(), salt

    def _digest(self, kind: str, tenant: str, value: object) -> str:
        return hmac.new(self._key, json.dumps([kind, tenant, value]).encode(), sha256).hexdigest()


def text_at(fields: object, path: Sequence[str]) -> str | None:
    """Return the text at a path of JSON, unless it is empty; None if there is none."""
    for name in path:
        fields = fields.get(name) if isinstance(fields, dict) else None
    return fields if isinstance(fields, str) and fields else None


def _replaced(fields: Mapping[str, Any], path: Sequence[str], to: Callable[[str], str]) -> Mapping[str, Any] | None:
    """Return fields whose text at a path is another; None if there is none."""
    text = text_at(fields, path)
    if text is None:
        return None
    inner = to(text) if len(path) == 1 else _replaced(fields[path[0]], path[1:], to)
    return {**fields, path[0]: inner}
