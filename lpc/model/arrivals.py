"""When the turns of conversations arrive, and the gaps between them: a bounded memory of numbers, without text.

A gap is counted from arrival to arrival, as the think-time model's (`lpc.training.think_time`). A sidecar knows the gaps of
those turns only that came to it; with several sidecars, let a conversation's requests go to one.
"""

import math
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

DAY_S: Final = 86_400.0


class Gaps(NamedTuple):
    """The gaps of a conversation so far; NaN where there was none, or it is not known.

    Attributes:
        last: seconds between the arrivals of the turn before and of this one.
        mean_log: mean of ln(gap) over all of them.
    """

    last: float
    mean_log: float


NO_GAPS: Final = Gaps(math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class Arrival:
    """What is known of a turn beside its text when it arrives: input of the think-time model.

    Attributes:
        turn_count: user turns of the conversation, this one included.
        input_tokens: of the prompt with its history, in the served model's tokens; NaN where not known.
        category: the request's class, in the operator's terms; may be empty.
        at: seconds since the Unix epoch.
        gaps: of the conversation, up to this turn.
    """

    turn_count: int
    input_tokens: float
    category: str
    at: float
    gaps: Gaps

    @property
    def hour(self) -> float:
        """Hour of the day, UTC, in [0, 24)."""
        return self.at % DAY_S / 3600


class GapMemory:
    """Remembers the latest arrival of each conversation and its gaps. Thread-safe.

    Invariant: conversations are in order of their latest arrival, and at most ``capacity``: the one idle longest is forgotten
    first. Their ids are kept as keyed hashes only, with a key of this process.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._key = os.urandom(32)
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[float, float, float, int]] = OrderedDict()
        """Latest arrival and last gap, seconds; sum of ln(gap), and how many gaps it has."""

    def __len__(self) -> int:
        return len(self._known)

    def arrive(self, conversation_id: str, at: float) -> Gaps:
        """Note that a turn of a conversation arrived, and return its gaps up to this turn.

        Several arrivals at one instant are one turn, and an arrival noted after a later one changes nothing. Without an id
        nothing is remembered or known.

        Args:
            conversation_id: opaque; empty for none.
            at: seconds since the Unix epoch.
        """
        if not conversation_id or not self.capacity:
            return NO_GAPS
        name = blake2b(conversation_id.encode(), digest_size=16, key=self._key).digest()
        with self._lock:
            before, last, total, count = self._known.get(name, (at, math.nan, 0.0, 0))
            gap = at - before
            if gap > 0:
                last, total, count = gap, total + math.log(gap), count + 1
            self._known[name] = (max(at, before), last, total, count)
            self._known.move_to_end(name)
            if len(self._known) > self.capacity:
                self._known.popitem(last=False)
        return Gaps(last, total / count) if count else NO_GAPS
