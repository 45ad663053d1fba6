"""The client of a request, by its token or its identity headers, and how engines keep tenants apart.

Engines share cached blocks between requests with the same `cache_salt` (vLLM, SGLang, TensorRT-LLM) and continue a conversation
by its name. The gateway sends both as HMAC-SHA-256 of the tenant and the client's own value, so that no client can choose
another tenant's. Callers without any identity get no salt, because nothing distinguishes them.
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

from lpc.errors import LpcError
from lpc.wire.headers import Headers
from lpc.wire.tokens import TokenFileError, owner_of, read_tokens
from lpc.wire.watched import Watched
from response_cache.bodies import DEFAULT_SCOPE
from response_cache.gateway.errors import GatewayError
from response_cache.gateway.headers import ENGINE_KEYS, first
from response_cache.gateway.media import with_own_names
from response_cache.gateway.settings import GatewaySettings

ANONYMOUS: Final = "anonymous"
"""The tenant of callers without identity."""
KEY_CHARACTERS: Final = 32
SALT: Final = "cache_salt"
EXTRA: Final = "extra_body"
"""Fields of an engine that proxies with its API put into the body (LiteLLM)."""
_NAMES: Final = (
    *(("session_id",), ("vllm_xargs", "session_id")),  # vLLM
    *(("custom_params", "session_id"), ("session_params", "id")),  # SGLang
    ("conversation_params", "conversation_id"),  # TensorRT-LLM
    *(("nvext", "agent_context", "session_id"), ("nvext", "session_control", "session_id"), ("nvext", "cache_salt")),  # Dynamo
)
NAMES: Final = (*_NAMES, *((EXTRA, *path) for path in (*_NAMES, (SALT,))))
"""Paths in a body of a conversation's name or a salt that an engine reads."""
_USERS: Final = (("vllm_xargs", "user_id"), ("custom_params", "user_id"))
USERS: Final = (*_USERS, *((EXTRA, *path) for path in _USERS))
"""Paths in a body of a user's name that a plug-in reads: in vLLM, in SGLang."""
_REFUSED_NAMES: Final = {
    **dict.fromkeys(("kv_transfer_params", "kv_hints", "bootstrap_room", "bootstrap_pair_key"), "names blocks of engines"),
    "ec_transfer_params": "names encoded media of engines",
    **dict.fromkeys(("bootstrap_host", "bootstrap_port", "encoder_urls"), "names another engine"),
    **dict.fromkeys(
        ("data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank", "decode_tp_size", "http_worker_ipc"),
        "chooses a process of the engine",
    ),
    **dict.fromkeys(("retention_directives", "retention_scope"), "orders the cache of all tenants: send lpc_retain_seconds"),
    "priority": "orders the requests of all tenants",
    "custom_logit_processor": "carries code for the engine",
    "previous_response_id": "names an answer that an engine keeps without a tenant: send the messages instead",
}
REFUSED: Final = {(*holder, name): why for holder in ((), ("vllm_xargs",)) for name, why in _REFUSED_NAMES.items()}
"""Paths in a body that steer what an engine does for all tenants, and why: what it keeps, where a request goes, and in which
order. They are fields of vLLM 0.32 and 0.33, of SGLang 0.5.22 and 0.5.23, and of vllm#38514, where each reads them."""
_SPELLED: Final = frozenset(name for path in (("cache_salt",), *NAMES, *USERS, *REFUSED) for name in path)
_HOLDERS: Final = frozenset(name for path in (*NAMES, *USERS, *REFUSED) for name in path[:-1])
SESSION_HEADERS: Final = frozenset(
    (
        *(b"x-session-id", b"x-session-affinity", b"x-multi-turn-session-id"),  # vLLM and TensorRT-LLM, TensorRT-LLM
        *(b"x-dynamo-session-id", b"x-dynamo-parent-session-id"),  # Dynamo
    )
)
"""Header fields of a conversation's name that an engine reads."""
REFUSED_HEADERS: Final = (
    *(b"x-override-", b"x-body-compressed"),  # SGLang: replace fields of the body, and the body
    *(b"x-data-parallel-rank", b"x-vllm-priority"),  # vLLM and SGLang, vLLM 0.33
    *(b"x-prefiller-host-port", b"x-encoder-hosts-ports", b"x-data-parallel-host-port"),  # llm-d
    b"x-gateway-destination-endpoint",  # Gateway API's inference extension
    *(b"x-worker-instance-id", b"x-prefill-instance-id", b"x-decode-instance-id"),  # Dynamo
)
"""Beginnings of header fields that steer a router or an engine as the fields in `REFUSED` do."""
UNNAMED: Final = "-"
"""Name of a client without a token of the gateway, in labels and settings."""
_EMPTY: Final = ("", "bearer", "bearer empty", "empty")
"""Placeholders that clients send because their library requires a credential."""


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a request.

    Attributes:
        name: name in metrics and settings, with few values.
        tenant: owner of its answers; it gets no other tenant's.
        scopes: scopes that it may use.
        cached: whether its answers may be cached.
        share: who shares the engines with others. With tokens it is the token's name, whatever other headers a request has.
    """

    name: str
    tenant: str
    scopes: Sequence[str]
    cached: bool
    share: str


class Clients:
    """The clients of a gateway. Reloads the token file when it changes, so that a removed token is refused at once.

    Raises:
        TokenFileError: the token file cannot be read, is malformed or has no token.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._identity = frozenset(name.encode() for name in settings.gateway_identity_headers)
        self._tokens: Watched[dict[bytes, str]] | None = None
        if (path := settings.tokens) is not None:
            self._tokens = Watched([path], lambda: read_tokens(path, (UNNAMED,)), "token file is")
            if not self._tokens.current:
                raise TokenFileError(f"{path} has no token: add a line `name: sha256`")

    @property
    def have_tokens(self) -> bool:
        """Whether clients need a token of the gateway."""
        return self._tokens is not None

    def identify(self, headers: Headers) -> Client | None:
        """Return the client of a request; None if it needs a token and has no valid one."""
        identity = self._identity_of(headers)
        if self._tokens is None:
            tenant = "key:" + _digest(identity) if identity else ANONYMOUS
            identified = any(name not in ENGINE_KEYS for name, _ in identity)
            cached = identified or self._settings.gateway_cache_anonymous
            return Client(UNNAMED, tenant, self._settings.scopes_of(UNNAMED), cached, tenant)
        credentials = [value.decode("latin-1") for name, value in headers if name == b"authorization"]
        found = owner_of(credentials[0], self._tokens.current) if len(credentials) == 1 else None
        if found is None:
            return None
        # The token stands for the client's name.
        users = [(name, value) for name, value in identity if name != b"authorization"]
        tenant = f"client:{found[1]}" + (f":{_digest(users)}" if users else "")
        return Client(found[1], tenant, self._settings.scopes_of(found[1]), True, f"client:{found[1]}")

    def _identity_of(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Return the identity headers of a request, without empty ones and placeholders."""
        return sorted(
            (name, value)
            for name, value in headers
            if name in self._identity
            and value.strip()
            and not (name in ENGINE_KEYS and value.decode("latin-1").strip().lower() in _EMPTY)
        )

    def refresh(self) -> None:
        """Reload the token file if it changed. If it is invalid, log the error and keep the tokens."""
        if self._tokens is not None:
            self._tokens.refresh()


def _digest(identity: Headers) -> str:
    """Return a digest of header fields, because only the engine may see a key. Two keys of one user are two tenants."""
    return sha256(
        json.dumps([[name.decode("latin-1"), value.decode("latin-1")] for name, value in identity]).encode()
    ).hexdigest()


def scope_of(headers: Headers, client: Client) -> str | None:
    """Return the scope of a request; None if its client may not use it."""
    scope = first(headers, b"x-lpc-scope")
    if scope is None or scope == DEFAULT_SCOPE:
        return DEFAULT_SCOPE
    return scope if scope in client.scopes else None


class SaltKeyError(LpcError):
    """The key file of the salts cannot be used."""


def read_key(path: Path | None) -> bytes:
    """Return the key in a file; without a path a random key. Raises SaltKeyError."""
    if path is None:
        return secrets.token_bytes(32)
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise SaltKeyError(f"cannot read {path}: {error.strerror}") from error
    if len(key) < KEY_CHARACTERS:
        raise SaltKeyError(f"{path} has fewer than {KEY_CHARACTERS} characters: make a key with `openssl rand -hex 32`")
    return key


class Tenants:
    """Salts and names of conversations under one key. Thread-safe."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def salt(self, tenant: str, own: object = None) -> str | None:
        """Return the salt of a tenant's request whose body has the salt ``own``; None if it needs none."""
        return None if tenant == ANONYMOUS and own is None else self._digest("salt", tenant, own)

    def session(self, tenant: str, name: Any) -> Any:
        """Return the name that engines get for a tenant's conversation. Invalid names, as numbers, are replaced as well."""
        return name if tenant == ANONYMOUS else self._digest("session", tenant, name)

    def apply(self, tenant: str, fields: Mapping[str, Any], body: bytes) -> bytes:
        """Return a body with the tenant's salt and names. Everything else stays unchanged.

        ``fields`` is the JSON object in ``body``. Raises GatewayError (400) if a field for them has another case, or if a field
        steers what an engine does for any tenant (`REFUSED`).
        """
        if tenant != ANONYMOUS:
            _check_case(fields)
            _check_refused(fields)
        salt, changed = self.salt(tenant, fields.get(SALT)), fields
        if tenant != ANONYMOUS:
            changed = with_own_names(changed, partial(self._digest, "media", tenant)) or changed
            for path in NAMES:
                changed = _replaced(changed, path, partial(self.session, tenant)) or changed
            for path in USERS:
                changed = _replaced(changed, path, partial(self._digest, "user", tenant)) or changed
        if salt is None and changed is fields:
            return body
        if SALT not in fields and changed is fields and body[:1] == b"{":
            more = b"," if fields else b""
            return b'{"' + SALT.encode() + b'":"' + str(salt).encode() + b'"' + more + body[1:]
        if salt is not None:
            changed = {**changed, SALT: salt}
        return json.dumps(changed, separators=(",", ":")).encode()

    @staticmethod
    def check_headers(tenant: str, headers: Headers) -> None:
        """Raise GatewayError (400) if a tenant's request has a header field of `REFUSED_HEADERS`."""
        for name, _ in headers if tenant != ANONYMOUS else ():
            if name.startswith(REFUSED_HEADERS):
                raise GatewayError(400, f"leave out the header field {name.decode('latin-1')}: it steers the engine")

    def _digest(self, kind: str, tenant: str, value: object) -> str:
        return hmac.new(self._key, json.dumps([kind, tenant, value]).encode(), sha256).hexdigest()


def text_at(fields: object, path: Sequence[str]) -> str | None:
    """Return the text at a path of a JSON object; None if it is absent, empty or not a text."""
    for name in path:
        fields = fields.get(name) if isinstance(fields, dict) else None
    return fields if isinstance(fields, str) and fields else None


def _replaced(fields: Mapping[str, Any], path: Sequence[str], to: Callable[[Any], Any]) -> Mapping[str, Any] | None:
    """Return fields with another value at a path; None if there is none."""
    inner = fields.get(path[0])
    if len(path) == 1:
        changed = None if inner is None else to(inner)
    else:
        changed = _replaced(inner, path[1:], to) if isinstance(inner, dict) else None
    return None if changed is None else {**fields, path[0]: changed}


def _check_refused(fields: Mapping[str, Any]) -> None:
    """Raise GatewayError (400) if a body has a field of `REFUSED`, also in `EXTRA`."""
    for path, why in REFUSED.items():
        for holder in ((), (EXTRA,)):
            found: Any = fields
            for name in (*holder, *path):
                found = found.get(name) if isinstance(found, dict) else None
            if found is not None:
                raise GatewayError(400, f"leave out the field {'.'.join((*holder, *path))}: it {why}")


def _check_case(fields: Mapping[str, Any]) -> None:
    """Raise GatewayError (400) if a name of `NAMES` has another case, because some parsers ignore it."""
    for name, value in fields.items():
        if name not in _SPELLED and name.casefold() in _SPELLED:
            raise GatewayError(400, f"spell the field {name.casefold()} in lower case")
        if name in _HOLDERS and isinstance(value, dict):
            _check_case(value)
