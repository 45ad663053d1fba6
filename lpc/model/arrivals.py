"""When the turns of conversations arrive, and the gaps between them.

The law (`GapHistory`), the same in sidecar, training and simulator:
- A gap is counted from arrival to arrival, seconds: logs have no completion times, so it contains the service time.
- Several arrivals of a conversation at one instant are one turn. So every gap is above 0 and has a logarithm.
- What is not known is NaN: a first turn has no gap before it.
- An arrival that is noted after a later one changes nothing: the gaps are those up to the latest turn.

A sidecar (`GapMemory`) knows the gaps of those turns only that came to it.
"""

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
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


class GapHistory(NamedTuple):
    """What is kept of a conversation to know its gaps.

    Attributes:
        latest: when its latest turn arrived, seconds of any one clock; NaN before its first.
        last: the gap before that turn; NaN where there is none.
        log_sum, number: of ln(gap) over all gaps so far, and of gaps.
    """

    latest: float
    last: float
    log_sum: float
    number: int

    def arrive(self, at: float) -> "GapHistory":
        """Return the history after an arrival; itself where that is not a further turn."""
        if math.isnan(self.latest):
            return self._replace(latest=at)
        gap = at - self.latest
        return GapHistory(at, gap, self.log_sum + math.log(gap), self.number + 1) if gap > 0 else self

    @property
    def gaps(self) -> Gaps:
        """The gaps up to the latest turn."""
        return Gaps(self.last, self.log_sum / self.number) if self.number else NO_GAPS


UNSEEN: Final = GapHistory(math.nan, math.nan, 0.0, 0)
"""Of a conversation of which no turn has arrived."""


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
    """Remembers the gap history of each conversation: numbers, no text. Thread-safe.

    Invariant: conversations are in order of their latest arrival, and at most ``capacity``: the one idle longest is forgotten
    first. Their ids are kept as keyed hashes only, with a key of this process.

    Attributes:
        forgotten: called for each conversation that is forgotten to make room.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.forgotten: Callable[[], object] = lambda: None
        self._key = os.urandom(32)
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, GapHistory] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def arrive(self, conversation_id: str, at: float) -> Gaps:
        """Note that a turn of a conversation arrived, and return its gaps up to this turn.

        By `GapHistory`, for arrivals in whatever order they are noted. Without an id nothing is remembered or known.

        Args:
            conversation_id: opaque; empty for none.
            at: seconds since the Unix epoch.
        """
        if not conversation_id or not self.capacity:
            return NO_GAPS
        name = blake2b(conversation_id.encode(), digest_size=16, key=self._key).digest()
        with self._lock:
            history = self._known[name] = self._known.get(name, UNSEEN).arrive(at)
            self._known.move_to_end(name)
            full = len(self._known) > self.capacity
            if full:
                self._known.popitem(last=False)
        if full:
            self.forgotten()
        return history.gaps
