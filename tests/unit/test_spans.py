"""Spans of a chain: joined, shortened and cut, they give each block the same class, and each starts where one ends."""

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from eviction_client.policy.request import Spans
from tests.spans import spans_of

chains = st.lists(st.tuples(st.integers(0, 3), st.integers(-4, 2))).map(
    lambda parts: spans_of(*zip(accumulate(size for size, _ in parts), (number for _, number in parts), strict=True))
)


def classes(spans: Spans) -> list[int]:
    """Return the class of each block."""
    found: list[int] = []
    for span in spans:
        assert span.start == len(found)
        found += [span.reuse_class] * (span.end - span.start)
    return found


@given(chains, st.integers(0, 12))
def test_shortened_and_joined_spans_give_each_block_its_class(spans: Spans, length: int) -> None:
    short = spans.shortened(length).joined()
    assert classes(short) == classes(spans)[:length]
    assert all(span.start < span.end for span in short)
    assert all(before.reuse_class != after.reuse_class for before, after in pairwise(short))


@given(chains, st.integers(0, 12))
def test_a_cut_gives_the_blocks_from_a_depth_on_another_class(spans: Spans, depth: int) -> None:
    before = classes(spans)
    after = classes(spans.cut(depth, 9))
    assert after == before[:depth] + [9] * len(before[depth:])
