"""vLLM's free queue in the order of scores, and the batches whose free vLLM puts off."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from eviction_client.queue import FreeBlockQueue
from eviction_client.score import FIRST_OUT

BUCKETS: Final = (-8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 8.0)
"""Upper bounds, log-odds at eviction, of the buckets in which evictions are counted; one more is open."""


class ScoredBlocks(list[KVCacheBlock]):
    """Blocks that are to be freed later, and their score. Reversed, as vLLM frees them, they are still scored blocks.

    Attributes:
        score: of all these blocks, as decided when the batch was made; None: the untagged score at the time of the free.
    """

    def __init__(self, blocks: Iterable[KVCacheBlock], score: float | None) -> None:
        super().__init__(blocks)
        self.score = score

    def __reversed__(self) -> "ScoredBlocks":  # type: ignore[override]  # all that its caller does is iterate
        return ScoredBlocks(self[::-1], self.score)


class LearnedFreeQueue(FreeBlockQueue[KVCacheBlock], FreeKVCacheBlockQueue):
    """vLLM's free queue in the order of scores. A drop-in: without scores it is the stock queue.

    Attributes:
        untagged: gives the score of blocks that are freed outside of :meth:`scoring`.
        even: score at which the log-odds were 0 when a block was last scored; what evictions are counted against.
        evictions: blocks evicted by :data:`BUCKETS`.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock] = (), untagged: Callable[[], float] | None = None) -> None:
        super().__init__(KVCacheBlock(block_id=-1), KVCacheBlock(block_id=-1))
        self.fake_free_list_head = self.head
        self.fake_free_list_tail = self.tail
        self.untagged = untagged or (lambda: 0.0)
        self.even = 0.0
        self.evictions = [0] * (len(BUCKETS) + 1)
        self._score: float | None = None
        self.prepend_n(blocks)

    def scoring(self, score: float | None, free: Callable[..., None], *arguments: Any) -> None:
        """Call ``free(*arguments)``, vLLM's own; the blocks with content that it appends get this score (None: untagged).

        vLLM's frees end in ``append_n(blocks)``, which has no place for a score. It is kept for the length of this call.
        """
        self._score = score
        try:
            free(*arguments)
        finally:
            self._score = None

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks with content into the order, ``blocks[0]`` to be evicted first."""
        if not blocks:
            return
        score = self._score
        self.insert(blocks, self.untagged() if score is None else score)

    def append(self, block: KVCacheBlock) -> None:
        """As :meth:`append_n`."""
        self.append_n((block,))

    def popleft(self) -> KVCacheBlock:
        """Take out the block to be evicted first. Raises ValueError, in vLLM's words, when there is none."""
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take out the n blocks to be evicted first, in order; ValueError when fewer are free."""
        if n == 0:
            return []
        score = self.next_score
        if score != FIRST_OUT:
            self.evictions[bisect_left(BUCKETS, score - self.even)] += n
        return super().popleft_n(n)

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:  # noqa: ARG002
        """Iterate free blocks in eviction order, from the front: blocks freed since may lie before any cursor."""
        return iter(self)
