"""Segments: runs of blocks that all requests of a workload use together. The cache stores them instead of single blocks.

Most requests extend a chain, so a prompt of a thousand blocks has a few dozen segments. Every request with a block of a segment
has all of its blocks, so a cache of segments behaves like a cache of blocks. Segments are computed once per workload, as a
radix tree that is split where prompts diverge, where a prompt or reply ends, and before the last block of a prompt of whole
blocks, which is computed although it is cached.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol


class Chained(Protocol):
    """A turn, hashable by identity: content ids of its full prompt blocks, and of the full blocks of prompt and reply."""

    contents: Sequence[int]
    all_contents: Sequence[int]

    def servable(self, block_tokens: int) -> int:
        """Return how many of the prompt's blocks a cache may serve."""


EDGE_ID: Final = -1
"""Content id of the sentinels of queues; those of copies are below it, all others above."""


class Segment:
    """Consecutive blocks.

    Attributes:
        contents: their content ids.
        depth: number of blocks before the first one in its prefix.
        size: number of blocks.
    """

    __slots__ = ("contents", "depth", "size")

    def __init__(self, contents: tuple[int, ...], depth: int) -> None:
        self.contents = contents
        self.depth = depth
        self.size = len(contents)

    @property
    def origin(self) -> "Segment":
        """The segment in the paths of turns: the one that a copy repeats, or this one."""
        return self


class Copy(Segment):
    """A block that a request computes although it is cached: one of a reply, or the last one of a prompt.

    Its content id is its own and negative, so that it differs from the first block of this content.

    Attributes:
        index: place of the block in `origin`.
    """

    __slots__ = ("_origin", "index")

    def __init__(self, content: int, origin: Segment, index: int) -> None:
        super().__init__((content,), origin.depth + index)
        self._origin = origin
        self.index = index

    @property
    def origin(self) -> Segment:
        """The segment that has the block."""
        return self._origin


Path = tuple[Segment, ...]
"""A request's segments, from the start of its prompt to the end of its reply's full blocks."""


class Paths:
    """The paths of a workload's turns.

    Args:
        block_tokens: tokens of a block.
        chained: whether equal content ids have equal ids before them, as in every log.
    """

    def __init__(self, turns: Iterable[Chained], block_tokens: int, *, chained: bool = False) -> None:
        self._block_tokens = block_tokens
        self._chained = chained
        self._starting: dict[int, Segment] = {}
        """Segments by content id of the first block."""
        self._known: set[int] = set()
        """All blocks, unless they are chained: then none is inside a segment that a path does not enter at its start."""
        self._single: dict[int, Segment] = {}
        self._of: dict[Chained, Path] = {}
        self.extend(turns)

    def extend(self, turns: Iterable[Chained]) -> None:
        """Add turns. Once a cache is in use, they must share only whole segments with earlier turns."""
        found = list(turns)
        for turn in found:
            whole, prompt = tuple(turn.all_contents), len(turn.contents)
            self._add(whole)
            if prompt < len(whole):
                self._cut(whole, prompt)
            servable = turn.servable(self._block_tokens)
            if servable < prompt:
                self._cut(whole, servable)
        self._of.update((turn, self._walk(turn.all_contents)) for turn in found)

    def of(self, turn: Chained) -> Path:
        """Return a turn's path. A turn outside the workload has a path of single blocks."""
        path = self._of.get(turn)
        return self.blocks(turn.all_contents) if path is None else path

    def blocks(self, contents: Sequence[int]) -> Path:
        """Return a chain as segments of one block each; equal blocks have the same segment."""
        single = self._single
        path = []
        for depth, content in enumerate(contents):
            segment = single.get(content)
            if segment is None:
                segment = single[content] = Segment((content,), depth)
            path.append(segment)
        return tuple(path)

    def prompt_blocks(self) -> int:
        """Return the number of distinct blocks in all prompts."""
        seen: set[Segment] = set()
        for turn, path in self._of.items():
            prompt = len(turn.contents)
            seen.update(segment for segment in path if segment.depth < prompt)
        return sum(segment.size for segment in seen)

    def _add(self, contents: tuple[int, ...]) -> None:
        starting = self._starting
        at, end = 0, len(contents)
        while at < end:
            segment = starting.get(contents[at])
            if segment is None:
                if contents[at] in self._known:  # inside another segment: the block has several predecessors
                    self._split(*self._within(contents[at]))
                    continue
                new = contents[at:]
                if not self._chained:
                    if not self._known.isdisjoint(new):
                        new = new[: next(i for i, content in enumerate(new) if content in self._known)]
                    self._known.update(new)
                starting[new[0]] = Segment(new, at)
                at += len(new)
                continue
            stop = at + segment.size
            if self._chained and stop <= end and contents[stop - 1] == segment.contents[-1]:
                at = stop
                continue
            here = contents[at:stop]
            if here != segment.contents:
                self._split(segment, _common(here, segment.contents))
            at += segment.size

    def _cut(self, contents: tuple[int, ...], depth: int) -> None:
        """Let a segment end before a depth of a known chain."""
        at = 0
        while at < depth:
            segment = self._starting[contents[at]]
            if at + segment.size > depth:
                self._split(segment, depth - at)
            at += segment.size

    def _split(self, segment: Segment, size: int) -> None:
        """Cut a segment after its first ``size`` blocks."""
        rest = Segment(segment.contents[size:], segment.depth + size)
        self._starting[rest.contents[0]] = rest
        segment.contents = segment.contents[:size]
        segment.size = size

    def _within(self, content: int) -> tuple[Segment, int]:
        segment = next(each for each in self._starting.values() if content in each.contents)
        return segment, segment.contents.index(content)

    def _walk(self, contents: Sequence[int]) -> Path:
        path, at = [], 0
        while at < len(contents):
            segment = self._starting[contents[at]]
            path.append(segment)
            at += segment.size
        return tuple(path)


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Return the length of the common prefix of two different sequences."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
