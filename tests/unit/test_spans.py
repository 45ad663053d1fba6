"""Spans of a chain: joined, shortened and cut, they say the same of each block."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from eviction_client.policy.spans import ClassSpan, cut, joined, shortened

chains = st.lists(st.tuples(st.integers(0, 3), st.integers(-4, 2))).map(
    lambda parts: [ClassSpan(sum(size for size, _ in parts[: i + 1]), number) for i, (_, number) in enumerate(parts)]
)


def classes(spans: list[ClassSpan]) -> list[int]:
    """Return the class of each block."""
    found: list[int] = []
    for end, number in spans:
        found += [number] * (end - len(found))
    return found


@given(chains, st.integers(0, 12))
def test_shortened_and_joined_spans_give_each_block_its_class(spans: list[ClassSpan], length: int) -> None:
    short = joined(shortened(spans, length))
    assert classes(short) == classes(spans)[:length]
    assert all(before.end < after.end for before, after in pairwise(short))
    assert all(before.reuse_class != after.reuse_class for before, after in pairwise(short))


@given(chains, st.integers(0, 12))
def test_a_cut_gives_the_blocks_from_a_depth_on_another_class(spans: list[ClassSpan], depth: int) -> None:
    before = classes(spans)
    after = classes(cut(spans, depth, len(before), 9))
    assert after == before[:depth] + [9] * len(before[depth:])
