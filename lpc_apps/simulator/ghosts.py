"""Ghost caches of segments: they hit what `eviction_client.policy.ghosts.GhostCache` hits with the segments' single blocks.

All requests use a segment as a whole, so its blocks lie next to each other in the queue, the deepest first. One node with their
number stands for them, and eviction takes from the number. These caches have none above them.

One difference: if a part of a segment is kept for a waiting request, and another request computes the rest, all of it is kept.
"""

from collections.abc import Hashable, Sequence
from typing import Any

from eviction_client.policy.ghosts import GhostBlock, GhostCache, sampled
from eviction_client.policy.request import Span
from lpc_apps.simulator.segments import Segment
from lpc_apps.simulator.sidecar import block_hash


class Sampled:
    """The sampled blocks of a segment. ``size``: their number, at least 1."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


class Samples:
    """The samples of a workload's segments, each counted once."""

    def __init__(self) -> None:
        self._found: dict[int, dict[Segment, Sampled | None]] = {}
        """By one block in how many, and segment; None: the sample is empty."""

    def of(self, path: Sequence[Segment], every: int) -> list[Sampled]:
        """Return the samples of one block in ``every`` of some segments, without empty ones."""
        found = self._found.setdefault(every, {})
        for segment in path:
            if segment not in found:
                size = segment.size if every == 1 else sum(sampled(block_hash(block), every) for block in segment.contents)
                found[segment] = Sampled(size) if size else None
        return [sample for sample in map(found.__getitem__, path) if sample is not None]


class _Held(GhostBlock[Sampled]):
    """The first ``size`` blocks of a sample."""

    __slots__ = ("size",)

    def __init__(self, number: int, content: Sampled | None = None) -> None:
        super().__init__(number, content)
        self.size = 0


class SegmentGhostCache(GhostCache[Sampled]):
    """A ghost cache whose chains consist of samples of segments. ``room`` and all counts are blocks."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._held: dict[Sampled | None, _Held] = {}
        self._size = 0

    @staticmethod
    def count(chain: Sequence[Sampled]) -> int:
        """Return the number of blocks in a chain."""
        return sum(sample.size for sample in chain)

    def hits(self, prompt: Sequence[Sampled], above: GhostCache[Sampled] | None = None) -> int:  # noqa: ARG002
        """Return the number of leading blocks of a prompt that are here."""
        return sum([block.size for block in self._leading(prompt)])

    def wait(self, request: Hashable, prompt: Sequence[Sampled], above: GhostCache[Sampled] | None = None) -> None:  # noqa: ARG002
        """Retain the blocks that a waiting request will hit."""
        self.queue.wait(request, [block.block_id for block in self._leading(prompt)])

    def _leading(self, prompt: Sequence[Sampled]) -> list[_Held]:
        """Return what is here of a prompt before the first gap."""
        held, leading = self._held, []
        for sample in prompt:
            block = held.get(sample)
            if block is None:
                break
            leading.append(block)
            if block.size < sample.size:
                break
        return leading

    def use(self, chain: Sequence[Sampled], spans: Sequence[Span]) -> None:
        """Insert a finished request's blocks, by class from the chain's start, and evict as the rule says."""
        queue, held = self.queue, self._held
        left = self.room
        parts: list[tuple[list[_Held], int]] = []
        used: list[_Held] = []
        for start, end, reuse_class, _, _ in spans:
            run = []
            for sample in chain[start:end]:
                if not left:
                    break
                block = held.pop(sample, None)
                if block is None:
                    self._numbers += 1
                    block = _Held(self._numbers, sample)
                else:
                    queue.remove(block)
                    self._size -= block.size
                block.size = min(sample.size, left)
                left -= block.size
                run.append(block)
            used += run
            parts.append((run[::-1], reuse_class))
        size = sum(block.size for block in used)
        self._evict(self._size + size - self.room)
        held.update((block.content, block) for block in used)
        self._size += size
        queue.insert_chain(reversed(parts), self._clock())

    def _evict(self, excess: int) -> None:
        if excess <= 0:
            return
        self.evicted += excess
        self._size -= excess
        queue = self.queue
        queue.renew()
        while excess:
            block: Any = queue.first()
            if block.size > excess:
                block.size -= excess
                return
            excess -= block.size
            queue.popleft()
            del self._held[block.content]

    def clear(self) -> None:
        """Remove all blocks. Requests go on waiting."""
        self._held.clear()
        self._size = 0
        super().clear()

    def __len__(self) -> int:
        return self._size
