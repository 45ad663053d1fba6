"""Scores kept in the engine's own process: the default, and the store of single engines.

Blocks are forgotten lowest score first, when there are too many or when they have sunk out of sight. What finds the
lowest is a heap of *records*, not of blocks: one push per finished request. A record in the heap is a promise to look
at its blocks when its score comes up; those that have got a higher score since belong to another record of the heap.
"""

import heapq
import logging
import math
import threading
from collections.abc import Sequence

from eviction_client.score import forgotten_below
from eviction_client.stores.base import SHARED, BlockHash, ConversationId, StoreCounters, pooled
from eviction_client.stores.tally import Tally
from lpc.wire.bugs import log_bug

logger = logging.getLogger(__name__)

_UNHELD: tuple[str | None, float] = (None, 0.0)

_REFERENCES_PER_BLOCK = 4
"""Places in records of the heap per block remembered. A conversation that goes on leaves its earlier turns' records
behind; past this the lowest record goes even when there is room."""


class MemoryStore:
    """Scores of one process. Thread-safe.

    Args:
        max_blocks: blocks remembered.
    """

    def __init__(self, *, max_blocks: int = 1_000_000) -> None:
        self._max_blocks = max_blocks
        self._lock = threading.Lock()
        self._blocks: dict[BlockHash, tuple[str, float]] = {}  # owner and score
        # (score, order of arrival, blocks); the second keeps the comparison away from the third.
        self._records: list[tuple[float, int, Sequence[BlockHash]]] = []
        self._references = 0
        self._arrivals = 0
        self._answers: dict[BlockHash, float] = {}
        self._tally = Tally()
        self._closed = False

    def record(self, conversation: ConversationId, blocks: Sequence[BlockHash], score: float) -> None:
        """See :meth:`MetadataStore.record`."""
        with self._lock:
            if self._closed:
                return
            try:
                usable = math.isfinite(score) and isinstance(conversation, str) and conversation != SHARED
                blocks = tuple(blocks)
                usable = usable and all(isinstance(block, bytes) for block in blocks)
            except TypeError as error:
                self._failed(error)
                return
            if not usable:
                self._tally.add(rejected=1)
                return
            known = self._blocks
            for block in blocks:
                owner, before = known.get(block, _UNHELD)
                known[block] = pooled(owner, before, conversation, score)
            self._arrivals += 1
            heapq.heappush(self._records, (score, self._arrivals, blocks))
            self._references += len(blocks)
            dropped = 0
            while len(known) > self._max_blocks or self._references > _REFERENCES_PER_BLOCK * self._max_blocks:
                dropped += self._forget_lowest_record()
            self._tally.add(recorded=len(blocks), written=len(blocks), dropped=dropped)

    def look_ahead(self, blocks: Sequence[BlockHash], *, shared: bool = False) -> None:
        """See :meth:`MetadataStore.look_ahead`. The answer is there at once."""
        with self._lock:
            if self._closed:
                return
            try:
                known = {block: self._blocks[block] for block in blocks if block in self._blocks}
                self._answers = {block: score for block, (owner, score) in known.items() if owner == SHARED or not shared}
                asked = len(blocks)
            except TypeError as error:
                self._failed(error)
                return
            self._tally.add(looked_up=asked, known=len(self._answers))

    def take_answers(self) -> dict[BlockHash, float]:
        """See :meth:`MetadataStore.take_answers`."""
        with self._lock:
            answers, self._answers = self._answers, {}
            return answers

    def trim(self, now: float) -> None:
        """See :meth:`MetadataStore.trim`."""
        threshold = forgotten_below(now)
        with self._lock:
            trimmed = 0
            while self._records and self._records[0][0] < threshold:
                trimmed += self._forget_lowest_record()
            self._tally.add(trimmed=trimmed)

    def scores(self, blocks: Sequence[BlockHash]) -> list[float | None]:
        """See :meth:`MetadataStore.scores`."""
        with self._lock:
            found = [self._blocks.get(block) for block in blocks]
        return [None if entry is None else entry[1] for entry in found]

    def flush(self, timeout: float) -> bool:  # noqa: ARG002 - nothing is ever waiting
        """See :meth:`MetadataStore.flush`."""
        return True

    def close(self, timeout: float = 1.0) -> None:  # noqa: ARG002
        """See :meth:`MetadataStore.close`."""
        with self._lock:
            self._closed = True
            self._blocks, self._records, self._answers, self._references = {}, [], {}, 0

    @property
    def healthy(self) -> bool:
        """True until closed."""
        return not self._closed

    @property
    def counters(self) -> StoreCounters:
        """See :meth:`MetadataStore.counters`."""
        return self._tally.counters

    def __len__(self) -> int:
        return len(self._blocks)

    def _failed(self, error: TypeError) -> None:
        """Count and log what only a bug of the plug-in can pass to a store."""
        self._tally.add(bugs=1)
        log_bug(logger, "the store in memory", error)

    def _forget_lowest_record(self) -> int:
        """Drop the record of the lowest score and those of its blocks that have no higher one; return how many."""
        lowest, _, blocks = heapq.heappop(self._records)
        self._references -= len(blocks)
        forgotten = 0
        for block in blocks:
            entry = self._blocks.get(block)
            if entry is not None and entry[1] <= lowest:
                del self._blocks[block]
                forgotten += 1
        return forgotten
