"""What was recorded and waits to be written: bounded, oldest dropped first, turned into batches that can be sent again."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from eviction_client.curve import HORIZON_S
from eviction_client.score import REMEMBERED_S
from eviction_client.stores.base import SHARED, BlockHash, ConversationId
from eviction_client.stores.layout import MEMBER_BYTES, UNIT, Layout, floor, members
from eviction_client.stores.tally import Tally
from lpc.wire.bugs import log_bug

logger = logging.getLogger(__name__)

BATCH_BLOCKS: Final = 8192
"""Most blocks of one pipeline: Redis serves nobody else while it runs a shard's part of it (about 1 ms per 1,000 blocks)."""
RETRY_FOR_S: Final = 600.0
"""Age at which a batch that cannot be written is dropped. Twice as long Redis remembers what it has applied."""
LIVES_S: Final = 2 * HORIZON_S + REMEMBERED_S
"""Keys of Redis expire when nobody wrote to them for so long: the highest score has been trimmed by then, hints of up to
HORIZON_S included."""


@dataclass(frozen=True, slots=True)
class _Record:
    conversation: ConversationId
    blocks: Sequence[BlockHash]
    score: float


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch number carries.

    Attributes:
        commands: for each shard concerned, what follows RECORD_SCRIPT.
        blocks: how many it records.
        since: when it was made, monotonic seconds.
    """

    commands: list[tuple[Any, ...]]
    blocks: int
    since: float

    @property
    def stale(self) -> bool:
        """Whether it has been tried for too long."""
        return time.monotonic() - self.since > RETRY_FOR_S


class Outbox:
    """The scheduler puts records in, one background thread takes batches out. Thread-safe.

    Args:
        layout: where scores lie.
        max_blocks: blocks that may wait; over it the oldest records are dropped.
        tally: of the store.
    """

    def __init__(self, layout: Layout, max_blocks: int, tally: Tally) -> None:
        self._layout = layout
        self._max_blocks = max_blocks
        self._tally = tally
        self._lock = threading.Lock()
        self._records: deque[_Record] = deque()
        self._pending = 0
        self._batch: Batch | None = None
        self._batch_number = 0
        self._making = False

    def put(self, conversation: ConversationId, blocks: Sequence[BlockHash], score: float) -> bool:
        """Take a record, as `MetadataStore.record`; return whether there is something to write."""
        try:
            count = len(blocks)
            usable = math.isfinite(score) and isinstance(conversation, str) and conversation != SHARED
        except TypeError as error:
            self._bug(error)
            return False
        if not usable:
            self._tally.add(rejected=1)
            return False
        if count == 0:
            return False
        dropped = 0
        with self._lock:
            self._records.append(_Record(conversation, blocks, score))
            self._pending += count
            while self._pending > self._max_blocks and self._records:
                lost = len(self._records.popleft().blocks)
                self._pending -= lost
                dropped += lost
        self._tally.add(recorded=count, dropped=dropped)
        return True

    def batch(self) -> Batch | None:
        """Return the batch to be written next, the same one until it is settled; None where nothing waits."""
        if self._batch is None:
            # Records that are neither in the queue nor in a batch yet are still on their way.
            self._making = True
            try:
                self._batch = self._next()
            finally:
                self._making = False
        return self._batch

    def settle(self, *, written: bool) -> None:
        """Let go of the batch: it was written, or it never will be."""
        if self._batch is not None:
            self._tally.add(**{"written" if written else "dropped": self._batch.blocks})
            self._batch = None

    @property
    def pending_blocks(self) -> int:
        """Recorded blocks that are in no batch yet."""
        return self._pending

    def __bool__(self) -> bool:
        return bool(self._records or self._making or self._batch)

    def _bug(self, error: Exception) -> None:
        """Count and log what only a bug of the plug-in can leave here."""
        self._tally.add(bugs=1)
        log_bug(logger, "the outbox to Redis", error)

    def _next(self) -> Batch | None:
        """Turn what was recorded first into commands, one per shard."""
        layout = self._layout
        arguments: list[list[Any]] = [[] for _ in range(layout.shards)]
        blocks = 0
        while blocks < BATCH_BLOCKS:
            with self._lock:
                if not self._records:
                    break
                record = self._records.popleft()
                self._pending -= len(record.blocks)
            try:
                names = members(record.blocks)
                shards = layout.by_shard(record.blocks)
                owner, score = layout.owner(record.conversation), floor(record.score)
                blobs = [b"".join([names[i] for i in indices]) for indices in shards]
            except (TypeError, AttributeError, ValueError) as error:
                self._bug(error)
                continue
            blocks += len(names)
            for shard, blob in enumerate(blobs):
                if blob:
                    arguments[shard] += (owner, score, blob)
        if not blocks:
            return None
        self._batch_number += 1
        head = (self._batch_number, int(2 * RETRY_FOR_S * 1000), int(LIVES_S * 1000), UNIT, MEMBER_BYTES)
        commands = [
            (2, layout.scores_key(shard), layout.batch_key(shard), *head, *rest) for shard, rest in enumerate(arguments) if rest
        ]
        return Batch(commands, blocks, time.monotonic())
