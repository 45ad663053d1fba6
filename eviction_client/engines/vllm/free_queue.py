"""vLLM's free queue by reuse classes, and the batches whose free vLLM puts off."""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from eviction_client.policy.hints import Retained
from eviction_client.policy.queue.floors import FlooredQueue
from eviction_client.policy.queue.free_queue import DONE, PREEMPTED, FreeQueue, Run, chain_of
from eviction_client.policy.request import TrackedRequest

GROUP_BYTES: Final = 4
"""vLLM appends the number of the KV-cache group to a block's hash."""
UNCACHED: Final = 4
"""Blocks at the end of a chain that may be computed and not yet in the prefix cache, as with tokens in flight."""


class FreedLater(list[KVCacheBlock]):
    """Blocks whose free is delayed, with the request that held them. vLLM reverses the list, which keeps the request.

    Attributes:
        request: the finished request; None: it continues.
    """

    def __init__(self, blocks: Iterable[KVCacheBlock], request: TrackedRequest[Any] | None) -> None:
        super().__init__(blocks)
        self.request = request

    def __reversed__(self) -> "FreedLater":  # type: ignore[override]  # all that its caller does is iterate
        return FreedLater(self[::-1], self.request)


class LearnedFreeQueue(FreeQueue[KVCacheBlock], FreeKVCacheBlockQueue):
    """vLLM's free queue with reuse classes: a drop-in replacement, equal to the stock queue while LRU is in force.

    Args:
        classes: reuse classes.
        scales: hashes of a chain per block, by KV-cache group.
        plain: class of blocks that are freed without a request.
        below: returns whether the tier below holds a block; None: there is no tier.
    """

    def __init__(
        self,
        blocks: Sequence[KVCacheBlock] = (),
        classes: int = 1,
        *,
        scales: Sequence[int] = (1,),
        plain: int = 0,
        retained: Retained[KVCacheBlock] | None = None,
        below: Callable[[KVCacheBlock], bool] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        copies = below is not None
        super().__init__(KVCacheBlock(block_id=-1), KVCacheBlock(block_id=-1), classes, copies=copies, clock=clock)
        self._below = below
        self.fake_free_list_head = self.head
        self.fake_free_list_tail = self.tail
        self.retained: Retained[KVCacheBlock] = Retained(0) if retained is None else retained
        self._scales = scales
        self._request: TrackedRequest[Any] | None = None
        self._plain = self._class = plain
        self._last: Run | None = None
        """The run of the blocks that were inserted last, the start of their chain."""
        super().prepend_n(blocks)

    def placing(self, request: TrackedRequest[Any] | None, free: Callable[..., None], *arguments: Any) -> None:
        """Call vLLM's ``free(*arguments)``, whose blocks belong to a request.

        vLLM's frees end in ``append_n(blocks)``, which has no parameter for the request, so it is stored during this call.

        Args:
            request: the finished request; None: it continues, and its blocks are evicted last.
        """
        self._request, self._class = request, PREEMPTED if request is None else self._plain
        try:
            free(*arguments)
        finally:
            self._request, self._class = None, self._plain

    def free(self, free: Callable[[Iterable[KVCacheBlock]], None], blocks: Sequence[KVCacheBlock]) -> None:
        """Call vLLM's ``free(blocks)``, ``blocks[0]`` the deepest of a chain, and note which blocks the freed ones continue.

        Those are in use by other requests, and so is each block before them.
        """
        if len(blocks) < 2 or blocks[-1].ref_cnt < 2:
            free(blocks)
        elif len(self._scales) > 1:
            # vLLM frees the groups' chains one after the other, or as one list.
            for _, chain in groupby(blocks, _group_of):
                self._free_part(free, list(chain))
        else:
            self._free_part(free, blocks)

    def _free_part(self, free: Callable[[Iterable[KVCacheBlock]], None], blocks: Sequence[KVCacheBlock]) -> None:
        shared = bisect_left(blocks, True, key=_used_by_others)
        self._last = None
        free(blocks)
        if self._last is not None and shared < len(blocks):
            self.continues(blocks[shared], self._last)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks without content at the very front, ``blocks[0]`` to be reused first."""
        if blocks:
            self.retained.release(block.block_id for block in blocks)
            super().prepend_n(blocks)

    def clear(self) -> None:
        """As :meth:`FreeQueue.clear`; hints retain nothing any more."""
        self.retained.clear()
        self._last = None
        super().clear()

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add blocks with content that were just used, ``blocks[0]`` to be evicted first."""
        if not blocks:
            return
        if len(self._scales) > 1 and _group_of(blocks[0]) != _group_of(blocks[-1]):
            for _, chain in groupby(blocks, _group_of):
                self._append(list(chain))
        else:
            self._append(blocks)

    def _append(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add the freed blocks of one chain."""
        request, now = self._request, self._clock()
        if request is not None and request.retain_s and self._hold(blocks, request, now):
            return
        if self.retained.held:
            self.retained.release(block.block_id for block in blocks)
        if request is None:
            self._last = self.insert(blocks, self._class, now)
        elif len(request.spans) == 1 and request.home != "tier":  # a chain is a generator: a microsecond more
            self._last = self.insert(blocks, request.spans[0].reuse_class, now)
        else:
            parts = self.parts(blocks, request)
            self._last = self.insert_chain(parts if request.home != "tier" else self._copies(parts), now)
        if request is not None and request.follows:
            request.runs += [(run, _name(run.head)) for run in chain_of(self._last)]

    def _hold(self, blocks: Sequence[KVCacheBlock], request: TrackedRequest[Any], now: float) -> bool:
        """Add the blocks of a request with a hint; False: no hint may retain as many blocks, so nothing is added."""
        until = now + request.retain_s
        if not self.retained.hold({block.block_id: 1 for block in blocks}, until, now):
            return False
        run: Run | None = None
        for part, reuse_class in self.parts(blocks, request):
            if part:
                done = reuse_class == DONE
                run = self.insert(part, DONE, now, run) if done else self.retain(part, reuse_class, until, run)
        self._last = run
        return True

    def may_retain(self, blocks: Iterable[KVCacheBlock], until: float) -> bool:
        """Return whether blocks may be retained because a hint retains what continues them; they count as that hint's."""
        return self.retained.follow((block.block_id for block in blocks), until, self._clock())

    def append(self, block: KVCacheBlock) -> None:
        """As :meth:`append_n`."""
        self.append_n((block,))

    def popleft(self) -> KVCacheBlock:
        """Remove and return the first block in eviction order. Raises vLLM's ValueError if there is none."""
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return all free blocks in eviction order, which is not the order of the links."""
        return list(self.eviction_order())

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:  # noqa: ARG002
        """Iterate over free blocks in eviction order from the front, because blocks freed since may precede any cursor."""
        return self.eviction_order()

    def _copies(self, parts: Iterable[tuple[Sequence[KVCacheBlock], int]]) -> Iterator[tuple[Sequence[KVCacheBlock], int]]:
        """Give the parts that the tier below holds, by their deepest blocks, the classes of copies."""
        for part, reuse_class in parts:
            held = reuse_class >= 0 and part and self._below is not None and self._below(part[0])
            yield part, reuse_class + self._classes if held else reuse_class

    def parts(
        self, blocks: Sequence[KVCacheBlock], request: TrackedRequest[Any]
    ) -> Iterator[tuple[Sequence[KVCacheBlock], int]]:
        """Split a request's freed blocks, the deepest first, by reuse class.

        Shared blocks are the start of a chain, so the freed blocks are its end, and the depth of the first determines the
        others. If the hashes disagree, all blocks get the class of the chain's end.
        """
        scales = self._scales
        if not request.spans:
            return iter([(blocks, request.newest)])
        if len(scales) == 1:
            return self._in_group(blocks, request, scales[0])
        groups = (
            (list(part), scales[number] if number < len(scales) else 1) for number, part in groupby(blocks, key=_group_of)
        )
        return (part for alike, scale in groups for part in self._in_group(alike, request, scale))

    @staticmethod
    def _in_group(
        blocks: Sequence[KVCacheBlock], request: TrackedRequest[Any], scale: int
    ) -> Iterator[tuple[Sequence[KVCacheBlock], int]]:
        depth = _depth_of(blocks, request.blocks, scale)
        if depth is None:
            yield blocks, request.spans[-1].reuse_class
            return
        at = 0
        for span in reversed(request.spans):
            count = depth - span.start // scale + 1
            if count > 0:
                part = blocks[at : at + count]
                yield part, span.reuse_class
                at += len(part)
                depth -= len(part)
                if at == len(blocks):
                    return


class FlooredFreeQueue(FlooredQueue[KVCacheBlock], LearnedFreeQueue):
    """The free queue with floors of tenants."""

    def free(self, free: Callable[[Iterable[KVCacheBlock]], None], blocks: Sequence[KVCacheBlock]) -> None:
        """As :meth:`LearnedFreeQueue.free`. Blocks that others use are the tenant's as well, as is what continues them."""
        if self._request is not None:
            self.own((block for block in blocks if block.ref_cnt > 1 and block.block_hash is not None), self._request.tenant)
        super().free(free, blocks)

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add blocks with content that were just used, ``blocks[0]`` to be evicted first."""
        if self._request is not None:
            self.own(blocks, self._request.tenant)
        super().append_n(blocks)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks without content at the very front, ``blocks[0]`` to be reused first."""
        self.disown(blocks)
        super().prepend_n(blocks)


def _depth_of(blocks: Sequence[KVCacheBlock], chain: Sequence[bytes], scale: int) -> int | None:
    """Return the depth, in blocks, of the first of the blocks that a request has freed, the deepest first.

    None: they are not a contiguous part of the chain.
    """
    end = len(chain) // scale
    deepest, last = _name(blocks[0]), _name(blocks[-1])
    for depth in range(end - 1, max(end - 1 - UNCACHED, -1), -1):
        if chain[(depth + 1) * scale - 1] == deepest:
            first = depth - len(blocks) + 1
            return depth if first >= 0 and chain[(first + 1) * scale - 1] == last else None
    return None


def _name(block: KVCacheBlock) -> bytes:
    """Return the hash of a block in its request's chain."""
    name: bytes = (block.block_hash or b"")[:-GROUP_BYTES]
    return name


def _used_by_others(block: KVCacheBlock) -> bool:
    return bool(block.ref_cnt > 1)


def _group_of(block: KVCacheBlock) -> int:
    return int.from_bytes((block.block_hash or b"")[-GROUP_BYTES:], "big")
