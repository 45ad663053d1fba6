"""Content-Encoding of requests: the gateway decodes what it can, because engines must get what it has read."""

import asyncio
import zlib
from collections.abc import Callable
from typing import Final

from lpc.wire.headers import Headers
from response_cache.gateway.errors import GatewayError

PIECE_BYTES: Final = 2**20
_WINDOWS: Final = {b"gzip": (31,), b"x-gzip": (31,), b"deflate": (15, -15)}
"""zlib's window bits by coding. Some clients send ``deflate`` without zlib's header (RFC 9110, section 8.4.1.2)."""
_ACCEPTED: Final = (b"accept-encoding", b"gzip, deflate")


def coding_of(headers: Headers) -> bytes | None:
    """Return the coding of a body; None if it has none. Raises GatewayError (415)."""
    fields = b",".join(value for name, value in headers if name == b"content-encoding")
    codings = [part for part in (part.strip().lower() for part in fields.split(b",")) if part not in (b"", b"identity")]
    if not codings:
        return None
    if len(codings) > 1 or codings[0] not in _WINDOWS:
        raise GatewayError(415, "the body's Content-Encoding must be gzip, deflate or identity, and only one", _ACCEPTED)
    return codings[0]


async def decoded(body: bytes, coding: bytes, hold: Callable[[int], None]) -> bytes:
    """Return a decoded body.

    Args:
        hold: called with the number of bytes before each piece is kept; it raises if they are too many.

    Raises GatewayError (400) if the body is damaged, incomplete or followed by more bytes, and what ``hold`` raises.
    """
    windows = _WINDOWS[coding]
    window = windows[0] if len(windows) == 1 or _has_zlib_header(body) else windows[1]
    decoder, pieces = zlib.decompressobj(window), list[bytes]()
    try:
        while not decoder.eof:
            piece = await asyncio.to_thread(decoder.decompress, body, PIECE_BYTES)
            body = decoder.unconsumed_tail
            if not piece and not body and not decoder.eof:
                raise zlib.error
            hold(len(piece))
            pieces.append(piece)
    except zlib.error:
        raise GatewayError(400, f"the body is not valid {coding.decode()}: send it again, or without encoding") from None
    if decoder.unused_data:
        raise GatewayError(400, f"bytes follow the {coding.decode()} body: send one compressed stream")
    return b"".join(pieces)


def _has_zlib_header(body: bytes) -> bool:
    return len(body) >= 2 and body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0
