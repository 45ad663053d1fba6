"""Spans of a chain of blocks: consecutive blocks of which the cache knows the same.

A prompt's spans are found when it arrives, with its gaps and uses; those of a request when it ends, with all features and the
reuse class. The lists for the queues have them joined where the classes are equal.
"""

from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple, Self

from eviction_client.policy.features import NOTHING_KNOWN, Features
from eviction_client.policy.uses import Use


class Span(NamedTuple):
    """The blocks of a chain from depth ``start`` to before depth ``end``.

    Attributes:
        reuse_class: number of the class, once the request has ended.
        features: until then the gap and the level alone.
        use: the latest use of the blocks, if one is known; of a request's parts: if other conversations have used them.
    """

    start: int
    end: int
    reuse_class: int = 0
    features: Features = NOTHING_KNOWN
    use: Use | None = None

    def at(self, start: int, end: int) -> "Span":
        """Return the same of other blocks."""
        return span_of((start, end, self.reuse_class, self.features, self.use))

    def of_class(self, reuse_class: int) -> "Span":
        """Return the same blocks in another class."""
        return span_of((self.start, self.end, reuse_class, self.features, self.use))


span_of: Final = partial(tuple.__new__, Span)
"""Returns a span of a tuple, in half the time of `Span`: an engine waits for a request's spans."""


class Spans(list[Span]):
    """The spans of a chain, from its start: each starts where the one before it ends. Methods return new lists."""

    __slots__ = ()

    def joined(self) -> Self:
        """Return the spans with neighbours of one class joined and empty ones left out. A joined one is the last one's."""
        found = type(self)()
        since, latest = 0, None
        for span in self:
            start, end, reuse_class, features, use = span
            if start < end:
                if reuse_class == latest:
                    found[-1] = span_of((since, end, reuse_class, features, use))
                else:
                    found.append(span)
                    since, latest = start, reuse_class
        return found

    def shortened(self, length: int) -> Self:
        """Return the spans of a chain's first ``length`` blocks; some may be empty."""
        if not self or self[-1].end <= length:
            return self
        return type(self)(span.at(min(span.start, length), min(span.end, length)) for span in self)

    def cut(self, depth: int, reuse_class: int) -> Self:
        """Return the spans with another class from ``depth`` on."""
        if not self or depth >= self[-1].end:
            return self
        rest = self[-1].at(depth, self[-1].end).of_class(reuse_class)
        return type(self)((*self.shortened(depth), rest)).joined()

    def of_classes(self, numbers: Iterable[int]) -> Self:
        """Return the same blocks in other classes."""
        return type(self)(span.of_class(number) for span, number in zip(self, numbers, strict=True))
