"""Names that callers choose, as digests: of conversations, LoRA adapters, salts and over-long request ids.

Callers' text is neither kept nor sent. vLLM and SGLang limit neither the length of these names nor their characters, and the
engine's scheduler computes the digests. So of a name above WHOLE characters only its length and its two ends are hashed.

Two over-long names with equal ends and equal length are then one name. This gives nobody a name of another tenant:

- Names of conversations are keyed by the tenant's cache salt, a secret. A tenant can only merge its own conversations. Without
  salts all callers are one tenant, where anyone may use any name as it is.
- A salt is set by the operator's gateway, or is a secret of the tenant. To get another tenant's digest a caller must know both
  ends of its salt. Salts that differ only between their ends would be one tenant in statistics and order, although the engine
  never shares their blocks; those of `lpc gateway` have 64 characters.
- vLLM appends eight random characters to the id of a request. In SGLang two over-long ids may share an entry while both run.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

WHOLE: Final = 1024
"""Longest name that is hashed as a whole, characters."""


def hashed(name: str) -> bytes:
    """Return the bytes that stand for a name in a digest: at most 4 KiB. Any string is allowed, also with lone surrogates.

    Equal bytes mean equal names, or two names above WHOLE characters with equal length and ends.
    """
    if len(name) > WHOLE:
        name = f"{len(name)} {name[: WHOLE // 2]}{name[-WHOLE // 2 :]}"  # longer than WHOLE, so unlike any short name
    return name.encode(errors="surrogatepass")


def name_of(text: str, salt: str = "") -> str:
    """Return the digest of a name, 32 hexadecimal digits. ``salt``: secret of the tenant, under which equal names differ."""
    key = hashlib.sha256(hashed(salt)).digest() if salt else b""
    return hashlib.blake2b(hashed(text), key=key, digest_size=16).hexdigest()


def user_name(arguments: Mapping[str, object] | None, salt: str | None) -> str:
    """Return the digest of who asks: the caller's argument ``user_id`` under the cache salt, or else the salt alone.

    A salt separates tenants, so without a user each tenant counts as one. Empty: neither is known.
    """
    user = arguments.get("user_id") if arguments else None
    if not isinstance(user, str) or not user:
        return name_of(salt) if salt else ""
    return name_of(user, salt or "")


def category_name(arguments: Mapping[str, object] | None) -> str:
    """Return the digest of the kind of request that the caller named: its argument ``lpc_category``; empty without one.

    Equal names are one category whoever sends them, because they only group requests. Tenants are told apart anyway.
    """
    category = arguments.get("lpc_category") if arguments else None
    return name_of(category) if isinstance(category, str) and category else ""


def kind_name(adapter: str, category: str) -> str:
    """Return the digest of an adapter's and a category's digests; the one there is, if there is only one."""
    return name_of(adapter + category) if adapter and category else adapter or category


def key_of(request_id: str) -> str:
    """Return a request's id, or its digest if it is over-long."""
    return request_id if len(request_id) <= WHOLE else name_of(request_id)
