"""Keeps the tenants of an engine apart: a cache salt for each, and names of conversations that no other one can use.

Engines share cached blocks among requests of one `cache_salt` (vLLM, SGLang, TensorRT-LLM) and continue a conversation by its
name. Both reach an engine as HMAC-SHA-256 of the tenant and of what the client sent, so that no client can choose another
tenant's. Callers without any identity are not salted: there is nothing by which to tell them apart.
"""

import hmac
import json
import secrets
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from lpc.errors import LpcError

ANONYMOUS: Final = "anonymous"
"""The tenant of callers without identity."""
KEY_CHARACTERS: Final = 32
SALT: Final = "cache_salt"
_NAMED_IN: Final = (("vllm_xargs", "session_id"), ("custom_params", "session_id"), ("session_params", "id"))
"""Where a body names its conversation, besides `session_id`: vLLM's extra arguments, SGLang's parameters and sessions."""


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
        salt = self.salt(tenant, said.get(SALT))
        names = self._names(tenant, said)
        if salt is None and not names:
            return body, None
        if SALT not in said and not names and body[:1] == b"{":
            more = b"," if said else b""
            return b'{"' + SALT.encode() + b'":"' + str(salt).encode() + b'"' + more + body[1:], salt
        changed = {**said, **names} if salt is None else {**said, **names, SALT: salt}
        return json.dumps(changed, separators=(",", ":")).encode(), salt

    def _names(self, tenant: str, said: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a body that name a conversation, with the names that engines get."""
        found: dict[str, Any] = {}
        if tenant == ANONYMOUS:
            return found
        if isinstance(name := said.get("session_id"), str):
            found["session_id"] = self.session(tenant, name)
        for outer, inner in _NAMED_IN:
            fields = said.get(outer)
            if isinstance(fields, dict) and isinstance(name := fields.get(inner), str):
                found[outer] = {**fields, inner: self.session(tenant, name)}
        return found

    def _digest(self, kind: str, tenant: str, value: object) -> str:
        return hmac.new(self._key, json.dumps([kind, tenant, value]).encode(), sha256).hexdigest()
