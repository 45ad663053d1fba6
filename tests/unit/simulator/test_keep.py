"""Blocks that waiting requests need: which are evicted last, and when they are like all others again."""

from collections.abc import Sequence
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc_apps.simulator.blocks import Piece
from lpc_apps.simulator.cache import BlockCache
from lpc_apps.simulator.policies import REGISTRY
from lpc_apps.simulator.segments import Path
from lpc_apps.simulator.workload import Turn
from tests.nightly import LONG
from tests.unit.simulator.replay import make


class Cache:
    """A cache of blocks under a policy; each request is at its end at once."""

    def __init__(self, capacity: int, policy: str = "lru") -> None:
        self.now = 0.0
        self.policy = make(policy, capacity)
        self.cache: BlockCache[Piece] = BlockCache(capacity, self.policy, keep=True)

    def ask(self, *contents: int, waited: Turn | None = None) -> list[int]:
        """Run a request; return what was evicted for it."""
        self.now += 10
        turn, path = self._request(contents, waited)
        gone = self.cache.allocate(path, 0, self.now)
        assert gone is not None
        self.cache.start(turn, self.now)
        self.cache.release(path, 0, turn, self.now)
        return list(chain.from_iterable(gone))

    def wait(self, *contents: int) -> Turn:
        """Let a request wait."""
        turn, path = self._request(contents, None)
        self.cache.wait(turn, path, self.now)
        return turn

    def leave(self, turn: Turn) -> None:
        """Let a request wait no longer."""
        self.cache.start(turn, self.now)

    def _request(self, contents: Sequence[int], turn: Turn | None) -> tuple[Turn, Path]:
        turn = turn or Turn("", 1, "", 16 * len(contents) + 1, 0, contents, contents, arrival=self.now)
        return turn, self.policy.path(turn)


def test_blocks_that_a_waiting_request_needs_are_evicted_last() -> None:
    cache = Cache(4)
    for content in (1, 2, 3, 4):
        cache.ask(content)
    cache.wait(1)

    assert cache.ask(5, 6, 7) == [2, 3, 4]
    assert cache.ask(8, 9, 10, 11) == [7, 6, 5, 1]


def test_the_blocks_needed_soonest_are_the_very_last_and_of_a_chain_the_deepest_go_first() -> None:
    cache = Cache(6)
    cache.ask(1, 2)
    cache.ask(3, 4)
    cache.ask(5, 6)
    for contents in ((5, 6), (1, 2), (3, 4)):
        cache.wait(*contents)

    assert cache.ask(7, 8, 9, 10, 11, 12) == [4, 3, 2, 1, 6, 5]


def test_a_block_that_several_requests_need_has_the_place_of_the_first() -> None:
    cache = Cache(4)
    for content in (1, 2, 3, 4):
        cache.ask(content)
    cache.wait(1)
    cache.wait(2)
    cache.wait(1)

    assert cache.ask(5, 6, 7) == [3, 4, 2]


@pytest.mark.parametrize("policy", ["lru", "turn-ttl", "plugin", "belady"])
def test_a_block_that_nobody_needs_any_more_returns_to_its_place(policy: str) -> None:
    cache, plain = Cache(4, policy), Cache(4, policy)
    for content in (1, 2, 3, 4):
        cache.ask(content)
        plain.ask(content)
    first, second = cache.wait(1), cache.wait(2)
    assert cache.ask(5) == [3]
    plain.ask(5)
    cache.leave(first)
    cache.leave(second)

    assert cache.ask(6, 7) == [1, 2]


STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "wait", "leave", "serve"]), st.integers(0, 5), st.integers(1, 5)),
    min_size=30,
    max_size=80,
)


@pytest.mark.parametrize("policy", sorted(REGISTRY))
@settings(max_examples=15 if LONG else 6, deadline=None)
@given(steps=STEPS)
def test_needed_blocks_go_only_if_no_other_is_free(policy: str, steps: list[tuple[str, int, int]]) -> None:
    cache = Cache(12, policy)
    cached: set[int] = set()
    waiting: list[tuple[Turn, Sequence[int]]] = []
    """With the prefix that was cached."""
    for step, number, blocks in steps:
        contents = range(10 * number, 10 * number + blocks)
        waited = None
        if step == "wait":
            missing = (place for place, block in enumerate(contents) if block not in cached)
            waiting.append((cache.wait(*contents), contents[: next(missing, blocks)]))
            continue
        if step in ("leave", "serve") and waiting:
            waited, _ = waiting.pop(number % len(waiting))
            if step == "leave":
                cache.leave(waited)
                continue
            contents = range(waited.contents[0], waited.contents[-1] + 1)
        needed = {block for _, prefix in waiting for block in prefix}
        new = set(contents) - cached
        gone = cache.ask(*contents, waited=waited)
        assert len(gone) == len(set(gone)) == max(len(cached) + len(new) - 12, 0)
        assert set(gone) <= cached - set(contents)
        cached = (cached - set(gone)) | set(contents)
        if set(gone) & needed:
            assert cached <= needed | set(contents)
        assert len(cache.cache) == len(cached)
