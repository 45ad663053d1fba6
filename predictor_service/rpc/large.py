"""Checks the number of fields of large messages, and decodes them, in a thread.

protobuf takes 1.5 s to decode 16 MiB of empty chat messages, during which no other thread runs.
"""

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from lpc.errors import InvalidRequest

LARGE: Final = 64 * 2**10
"""Bytes above which a message is large."""
MAX_FIELDS: Final = 2**16
"""Largest number of fields of a large message, including nested messages; token ids are one field."""
UNDECODABLE: Final = "the request is not a valid protobuf message of this method (strings must be UTF-8)"


class Raw:
    """A message that has not been decoded."""

    def __init__(self, data: bytes, decode: Callable[[bytes], Message]) -> None:
        self.data = data
        self._decode = decode

    def decoded(self) -> Message:
        """Return the message. Raises InvalidRequest: it cannot be decoded, or has too many fields."""
        try:
            if len(self.data) > LARGE:
                _count(memoryview(self.data), self._decode.__self__.DESCRIPTOR, MAX_FIELDS)  # type: ignore[attr-defined]
            return self._decode(self.data)
        except (DecodeError, UnicodeDecodeError, ValueError, IndexError):
            # gRPC itself would answer INTERNAL.
            raise InvalidRequest(UNDECODABLE) from None

    async def decoded_aside(self) -> Message:
        """As :meth:`decoded`, but decode a large message in a thread."""
        if len(self.data) <= LARGE:
            return self.decoded()
        return await asyncio.to_thread(self.decoded)


def _count(data: memoryview, kind: Any, left: int) -> int:
    """Return how many of ``left`` fields remain after those of a message.

    Raises InvalidRequest if there are more fields, and IndexError if the message is truncated.

    Args:
        data: the encoded message.
        kind: its descriptor.
        left: number of fields allowed.
    """
    inner, at, end = _messages_in(kind), 0, len(data)
    while at < end:
        if left == 0:
            raise InvalidRequest(
                f"the request has more than {MAX_FIELDS} fields: split the batch, or send the last messages and turn_count"
            )
        left -= 1
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            at = _varint(data, at)[1]
        elif wire == 2:
            length, at = _varint(data, at)
            if tag in inner and length:
                left = _count(data[at : at + length], inner[tag], left)
            at += length
        else:
            at += {1: 8, 5: 4}.get(wire, 0)
    return left


@cache
def _messages_in(kind: Any) -> dict[int, Any]:
    """Return the descriptors of a message's nested messages, by the tags of their fields."""
    return {field.number << 3 | 2: field.message_type for field in kind.fields if field.message_type is not None}


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number at an offset, and the offset after it."""
    if (value := data[at]) < 0x80:
        return value, at + 1
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    return value, at
