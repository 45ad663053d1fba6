"""Requests waiting for the model, and the decision which of them form the next batch.

No timer: a batch is formed when the model is free, from what has queued meanwhile. The decision is a pure function of what
waits (:meth:`BatchQueue.next_batch`); the thread that runs the model is elsewhere (`batcher.py`).
"""

import asyncio
import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from lpc.model.features import Features
from lpc.model.inference import Model
from lpc.model.returns.memory import Arrived
from predictor_service.batching.budget import TokenBudget
from predictor_service.batching.inference import Inferred
from predictor_service.errors import Overloaded

DropReason = Literal["cancelled", "expired"]

PATIENCE_SHARE: Final = 0.5
"""A request is let in if what waits before it takes at most this share of its patience: those that come later and are nearer
in length to the oldest run before it, so that its own wait is up to twice as long."""
SHORT_WAIT_S: Final = 1.0
"""A wait below it is never a reason to refuse: so few batches say little of the pace."""
PACE_DECAY: Final = 0.98
"""What an observation of the pace still counts after the next batch."""


class Outcome(NamedTuple):
    """What came of one entry, and its time in the queue and in the model (microseconds)."""

    inferred: Inferred
    queue_us: int
    infer_us: int


@dataclass(eq=False, slots=True)
class Entry:
    """One request in the queue.

    Attributes:
        features: input of the model; its length is what counts against the budget.
        model: the model whose tokenizer made the features: only it can run them.
        turn: for the return model; None: only the embedding is wanted.
        outcome: resolved when the model has run. Cancelled by a caller that has gone.
        deadline: on the event loop's clock, seconds; infinite when there is none.
        queued: when it entered, the deadline's clock.
    """

    features: Features
    model: Model
    turn: Arrived | None
    outcome: "asyncio.Future[Outcome]"
    deadline: float
    queued: float = 0.0


@dataclass
class Batch:
    """What the model runs next: entries in ascending order of length, all of one model; and what was dropped on the way."""

    entries: list[Entry]
    dropped: dict[DropReason, list[Entry]] = field(default_factory=lambda: {"cancelled": [], "expired": []})

    @property
    def tokens(self) -> int:
        """Tokens with padding."""
        return len(self.entries) * len(self.entries[-1].features.input_ids) if self.entries else 0


class BatchQueue:
    """Waiting entries in order of arrival, bounded.

    Admission is a permit taken before any work is done for a request (tokenisation counts as waiting): a full queue refuses
    at once.
    """

    def __init__(self, max_items: int, max_batch_items: int, budget: TokenBudget) -> None:
        self.max_items = max_items
        self.max_batch_items = max_batch_items
        self.budget = budget
        self._waiting: list[Entry] = []
        self._permits = 0
        self._served_items = self._served_seconds = 0.0

    def admit(self, count: int = 1, patience: float = math.inf) -> None:
        """Take permits, all or none.

        Without the look at patience, a queue of more work than its callers have time would let all of them wait for nothing,
        and give the model, oldest first, the ones whose answers come just too late.

        Args:
            patience: seconds from now after which the answers are worthless.

        Raises:
            Overloaded: fewer permits are left, or at the model's present pace the answers would come too late.
        """
        if self._permits + count > self.max_items:
            raise Overloaded(
                f"{self._permits} conversations wait for the model, and at most {self.max_items} may: retry later, or add "
                "sidecars"
            )
        wait = self.wait_s
        if wait > SHORT_WAIT_S and wait > PATIENCE_SHARE * patience:
            raise Overloaded(
                f"{self._permits} conversations wait for the model, {wait:.1f} s of work, too much for a deadline in "
                f"{patience:.1f} s: retry later, or add sidecars"
            )
        self._permits += count

    @contextlib.contextmanager
    def permit(self, patience: float) -> Iterator[None]:
        """Hold one permit (:meth:`admit`) while the block runs. Raises Overloaded."""
        self.admit(1, patience)
        try:
            yield
        finally:
            self.release()

    def served(self, items: int, seconds: float) -> None:
        """Learn the model's pace from a batch that it has run."""
        self._served_items = PACE_DECAY * self._served_items + items
        self._served_seconds = PACE_DECAY * self._served_seconds + seconds

    @property
    def wait_s(self) -> float:
        """Seconds that the model takes for what has been admitted, at its present pace; 0 before its first batch."""
        return self._permits * self._served_seconds / self._served_items if self._served_items else 0.0

    def release(self) -> None:
        """Give one permit back: its request has its answer, or has gone."""
        self._permits -= 1

    @property
    def depth(self) -> int:
        """Requests admitted and not answered."""
        return self._permits

    def put(self, entry: Entry, now: float) -> None:
        """Add an entry whose permit was taken."""
        entry.queued = now
        self._waiting.append(entry)

    def put_back(self, entries: list[Entry]) -> None:
        """Put entries that were taken out and not run before all others."""
        self._waiting[:0] = entries

    def __len__(self) -> int:
        return len(self._waiting)

    def next_batch(self, now: float) -> Batch:
        """Take out the entries that the model should run now.

        The oldest entry is always among them, so none starves. The others are those next to it in length, as long as the
        batch, padding counted, stays within the budget: equal lengths waste nothing, and on a CPU a padded token costs as
        much as a real one. Entries whose caller has gone or whose deadline has passed are taken out and not run.
        """
        batch: Batch = Batch([])
        alive = []
        for entry in self._waiting:
            if entry.outcome.done():
                batch.dropped["cancelled"].append(entry)
            elif entry.deadline <= now:
                batch.dropped["expired"].append(entry)
            else:
                alive.append(entry)
        if alive:
            batch.entries = self._around_oldest(alive)
            taken = set(map(id, batch.entries))
            alive = [entry for entry in alive if id(entry) not in taken]
        self._waiting = alive
        return batch

    def take_all(self) -> list[Entry]:
        """Take out all entries that still want an answer."""
        waiting, self._waiting = self._waiting, []
        return [entry for entry in waiting if not entry.outcome.done()]

    def _around_oldest(self, alive: list[Entry]) -> list[Entry]:
        oldest = alive[0]
        order = sorted((e for e in alive if e.model is oldest.model), key=_length)
        low = high = next(i for i, entry in enumerate(order) if entry is oldest)
        while high - low + 1 < self.max_batch_items:
            items = high - low + 2
            shorter = _length(order[low - 1]) if low > 0 else None
            longer = _length(order[high + 1]) if high + 1 < len(order) else None
            # Taking the next shorter one wastes its padding; the next longer one pads all that are in.
            waste_shorter = _length(order[high]) - shorter if shorter is not None else float("inf")
            waste_longer = (longer - _length(order[high])) * (items - 1) if longer is not None else float("inf")
            if longer is not None and waste_longer <= waste_shorter and items * longer <= self.budget.tokens:
                high += 1
            elif shorter is not None and items * _length(order[high]) <= self.budget.tokens:
                low -= 1
            else:
                break
        return order[low : high + 1]


def _length(entry: Entry) -> int:
    return len(entry.features.input_ids)
