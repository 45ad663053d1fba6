"""Header fields that a proxy forwards (RFC 9110, section 7.6.1)."""

from collections.abc import Iterable
from typing import Final

Headers = list[tuple[bytes, bytes]]
"""Field names in lower case, in their order, with repetitions."""

HOP_BY_HOP: Final = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te"),
        *(b"trailer", b"transfer-encoding", b"upgrade"),
    )
)


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the fields without hop-by-hop fields: the known ones and those named by Connection."""
    fields = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in fields if name == b"connection" for part in value.split(b",")}
    return [(name, value) for name, value in fields if name not in HOP_BY_HOP and name not in named]
