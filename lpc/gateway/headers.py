"""Which header fields go on, and which end here (RFC 9110, section 7.6.1)."""

from collections.abc import Iterable
from typing import Final

Headers = list[tuple[bytes, bytes]]
"""Field names in lower case, in their order, repeated ones too."""

HOP_BY_HOP: Final = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te"),
        *(b"trailer", b"transfer-encoding", b"upgrade"),
    )
)
OURS: Final = b"x-lpc-"
"""Fields between client and gateway begin so."""


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the fields that are not for the next hop alone: without the known ones and those that Connection names."""
    fields = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in fields if name == b"connection" for part in value.split(b",")}
    return [(name, value) for name, value in fields if name not in HOP_BY_HOP and name not in named]


def for_engine(
    headers: Iterable[tuple[bytes, bytes]], client: str | None, key: str | None, keep_authorization: bool
) -> Headers:
    """Return a request's fields as the engine gets them.

    Args:
        client: the client's IP address, appended to X-Forwarded-For.
        key: the engine's own, in place of the client's Authorization.
        keep_authorization: the client's Authorization is for the engine.
    """
    fields = end_to_end(headers)
    forwarded = [value for name, value in fields if name == b"x-forwarded-for"]
    dropped = {b"host", b"content-length", b"expect", b"x-forwarded-for"}
    if not keep_authorization:
        dropped.add(b"authorization")
    fields = [(name, value) for name, value in fields if name not in dropped and not name.startswith(OURS)]
    if client:
        fields.append((b"x-forwarded-for", b", ".join([*forwarded, client.encode("latin-1", "replace")])))
    if key is not None:
        fields.append((b"authorization", b"Bearer " + key.encode()))
    return fields


def first(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """Return the value of a field; None where it is absent."""
    return next((value.decode("latin-1") for key, value in headers if key.lower() == name), None)
