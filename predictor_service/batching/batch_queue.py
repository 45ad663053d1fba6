"""The queue of requests for the model, and the choice of the next batch.

There is no timer: a batch is formed when the model is free, from the requests that were queued while it was busy. The choice
depends only on the queue (:meth:`BatchQueue.next_batch`); `batcher.py` runs the model.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from lpc.model.session import Provider
from predictor_service.batching.budget import TokenBudget
from predictor_service.batching.job import Job
from predictor_service.errors import Overloaded

DropReason = Literal["cancelled", "expired"]
Lane = Literal["short", "long"]

LANES: Final[dict[Provider, tuple[Lane | None, ...]]] = {"cpu": ("short", "long"), "cuda": (None,)}
"""Lanes whose batches run at the same time; None: all jobs in one lane. On a CPU 512 tokens take 15 to 30 times as long as a
short prompt, which would wait for them. A GPU has no such difference, and its memory is for one batch."""
SHORT_TOKENS: Final = 128
"""Largest number of tokens of a job of the lane `short`."""

PATIENCE_SHARE: Final = 0.5
"""A request is admitted if the queued work takes at most this share of the time to its deadline. Later requests whose length
is closer to the oldest one run first, so that the real wait is up to twice as long."""
SHORT_WAIT_S: Final = 1.0
"""Shorter waits are never a reason to refuse: an estimate from so few batches is not reliable."""
PACE_DECAY: Final = 0.98
"""Weight of earlier observations of the pace after each batch."""


def lane_of(job: Job) -> Lane:
    """Return the lane of a job's length."""
    return "short" if job.tokens <= SHORT_TOKENS else "long"


@dataclass
class Batch:
    """The next jobs to run, all of one model, in ascending order of length; and the jobs dropped instead of run."""

    jobs: list[Job]
    dropped: dict[DropReason, list[Job]] = field(default_factory=lambda: {"cancelled": [], "expired": []})

    @property
    def tokens(self) -> int:
        """Number of tokens, including padding."""
        return len(self.jobs) * self.jobs[-1].tokens if self.jobs else 0


class BatchQueue:
    """Bounded queue of jobs in order of arrival.

    A request takes a permit before any work is done for it, tokenisation included, so a full queue refuses at once.
    """

    def __init__(self, max_items: int, max_batch_items: int, budget: TokenBudget) -> None:
        self.max_items = max_items
        self.max_batch_items = max_batch_items
        self.budget = budget
        self._waiting: list[Job] = []
        self._permits = 0
        self._served_items = self._served_seconds = 0.0

    def admit(self, count: int = 1, patience: float = math.inf) -> None:
        """Take permits, all or none.

        Without the check of deadlines an overloaded queue, oldest first, would run requests whose answers come just too late.

        Args:
            patience: seconds until the deadline.

        Raises:
            Overloaded: too few permits are left, or the answers would come too late at the model's current pace.
        """
        if self._permits + count > self.max_items:
            raise Overloaded(
                f"{self._permits} conversations wait for the model, and at most {self.max_items} may: retry later, or add "
                "sidecars"
            )
        wait = self.wait_s
        if wait > SHORT_WAIT_S and wait > PATIENCE_SHARE * patience:
            raise Overloaded(
                f"{self._permits} conversations wait for the model, {wait:.1f} s of work, which is too much for a deadline "
                f"in {patience:.1f} s: retry later, or add sidecars"
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

    def observe_batch(self, items: int, seconds: float) -> None:
        """Update the estimate of the model's pace from a finished batch."""
        self._served_items = PACE_DECAY * self._served_items + items
        self._served_seconds = PACE_DECAY * self._served_seconds + seconds

    @property
    def wait_s(self) -> float:
        """Estimated seconds for all admitted conversations; 0 before the first batch."""
        return self._permits * self._served_seconds / self._served_items if self._served_items else 0.0

    def release(self) -> None:
        """Return one permit: its request has been answered or cancelled."""
        self._permits -= 1

    @property
    def depth(self) -> int:
        """Number of requests admitted and not answered."""
        return self._permits

    def put(self, job: Job, now: float) -> None:
        """Append a job whose permit was taken."""
        job.queued_at = now
        self._waiting.append(job)

    def put_back(self, jobs: list[Job]) -> None:
        """Put jobs that were taken but not run back at the front."""
        self._waiting[:0] = jobs

    def __len__(self) -> int:
        return len(self._waiting)

    def next_batch(self, now: float, lane: Lane | None = None) -> Batch:
        """Remove and return the jobs of a lane that the model should run now; None: of all lanes.

        The oldest job of the lane is always among them, so none starves. The others are those closest in length, as long as
        the batch stays within the budget. Padding counts, because on a CPU a padding token costs as much as a real one. Jobs
        that were cancelled or whose deadline has passed are removed and not run.
        """
        batch: Batch = Batch([])
        alive, others = [], []
        for job in self._waiting:
            if lane is not None and lane_of(job) != lane:
                others.append(job)
            elif job.future.done():
                batch.dropped["cancelled"].append(job)
            elif job.deadline <= now:
                batch.dropped["expired"].append(job)
            else:
                alive.append(job)
        if alive:
            batch.jobs = self._around_oldest(alive)
            taken = set(map(id, batch.jobs))
            alive = [job for job in alive if id(job) not in taken]
        # Lanes do not compare their ages, so their order in the list does not matter.
        self._waiting = alive + others
        return batch

    def take_all(self) -> list[Job]:
        """Remove all jobs, and return those without an answer."""
        waiting, self._waiting = self._waiting, []
        return [job for job in waiting if not job.future.done()]

    def _around_oldest(self, alive: list[Job]) -> list[Job]:
        oldest = alive[0]
        order = sorted((job for job in alive if job.model is oldest.model), key=lambda job: job.tokens)
        low = high = next(i for i, job in enumerate(order) if job is oldest)
        while high - low + 1 < self.max_batch_items:
            items = high - low + 2
            shorter = order[low - 1].tokens if low > 0 else None
            longer = order[high + 1].tokens if high + 1 < len(order) else None
            # The next shorter entry needs padding itself; the next longer one needs padding of all others.
            waste_shorter = order[high].tokens - shorter if shorter is not None else float("inf")
            waste_longer = (longer - order[high].tokens) * (items - 1) if longer is not None else float("inf")
            if longer is not None and waste_longer <= waste_shorter and items * longer <= self.budget.tokens:
                high += 1
            elif shorter is not None and items * order[high].tokens <= self.budget.tokens:
                low -= 1
            else:
                break
        return order[low : high + 1]
