"""A sighting as bytes: RECORD_BYTES long, always, so that several under one name are one string."""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, Self

from lpc.model.arrivals import GapHistory
from lpc.model.returns.memory import Past

ID_BYTES: Final = 8
_FORM: Final = struct.Struct(">8s8s16s16sIdddIff")
_RETURN: Final = struct.Struct(">8sd")
RECORD_BYTES: Final = _FORM.size
RETURN_BYTES: Final = _RETURN.size


class Sighting(NamedTuple):
    """A turn that a sidecar has seen.

    Attributes:
        sidecar, turn: who saw it, and its name for it.
        text: of its prompts, in the fleet's hashes.
        conversation: opaque, the same for all turns of a conversation that were recognised as such.
        turn_count: user turns so far.
        past: what is known of the conversation up to this turn.
    """

    sidecar: bytes
    turn: bytes
    text: bytes
    conversation: bytes
    turn_count: int
    past: Past

    def pack(self) -> bytes:
        """Return it as bytes."""
        history = self.past.history
        return _FORM.pack(
            self.sidecar,
            self.turn,
            self.text,
            self.conversation,
            min(self.turn_count, 2**32 - 1),
            history.latest,
            history.last,
            history.log_sum,
            history.number,
            self.past.input_tokens,
            self.past.growth_tokens,
        )

    @classmethod
    def unpack(cls, record: bytes) -> Self:
        """Return what `pack` made bytes of. Raises struct.error: it is not so long."""
        sidecar, turn, text, conversation, count, latest, last, log_sum, number, tokens, growth = _FORM.unpack(record)
        return cls(sidecar, turn, text, conversation, count, Past(GapHistory(latest, last, log_sum, number), tokens, growth))


def sightings_in(records: bytes | None) -> Iterator[Sighting]:
    """Yield the sightings under one name, oldest first; a rest that is none is passed over."""
    found = records or b""
    for start in range(0, len(found) - RECORD_BYTES + 1, RECORD_BYTES):
        yield Sighting.unpack(found[start : start + RECORD_BYTES])


def pack_return(turn: bytes, at: float) -> bytes:
    """Return the news that a turn's next one came at ``at``, seconds since the epoch."""
    return _RETURN.pack(turn, at)


def returns_in(news: bytes | None) -> Iterator[tuple[bytes, float]]:
    """Yield turns, and when their next ones came."""
    found = news or b""
    for start in range(0, len(found) - RETURN_BYTES + 1, RETURN_BYTES):
        turn, at = _RETURN.unpack(found[start : start + RETURN_BYTES])
        yield turn, at
