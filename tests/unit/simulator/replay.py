"""Requests made by hand, and a cache that runs them one after the other."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from lpc_apps.simulator.cache import BlockCache
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.policy import EvictionPolicy
from lpc_apps.simulator.workload import Cost, Turn, Workload

BLOCK_TOKENS = 16


def workload(turns: Iterable[Turn] = (), *, closed: bool = False, block_tokens: int = BLOCK_TOKENS) -> Workload:
    return Workload("by hand", block_tokens, list(turns), closed, 0.0, float("inf"))


def make(
    policy: str, capacity: int, block_tokens: int = BLOCK_TOKENS, cost: Cost | None = None, *, closed: bool = False
) -> EvictionPolicy[Any]:
    made = workload(closed=closed, block_tokens=block_tokens)
    return REGISTRY[policy](capacity, made, PolicySettings(cost=cost or Cost()))


class OneByOne:
    """A cache in which every request ends before the next one comes.

    Attributes:
        evicted: content ids in the order in which they went.
        hits: blocks.
    """

    def __init__(
        self, policy: str, capacity: int, block_tokens: int = BLOCK_TOKENS, cost: Cost | None = None, *, closed: bool = False
    ) -> None:
        self.policy = make(policy, capacity, block_tokens, cost, closed=closed)
        self.cache = BlockCache(capacity, self.policy)
        self.block_tokens = block_tokens
        self.evicted: list[int] = []
        self.hits = 0
        self.now = 0.0
        self._awaited: dict[str, Turn] = {}

    def ask(
        self,
        *contents: int,
        conversation: str | None = None,
        turn: int = 1,
        output: int = 0,
        at: float | None = None,
        back_after: float | None = None,
    ) -> int:
        """Run a request of whole blocks, a second after the one before or ``at`` seconds; return its hits, in blocks.

        Args:
            back_after: seconds until the conversation's next turn, which has the same blocks; None: it ends.
        """
        self.now = self.now + 1 if at is None else at
        name = str(contents[0]) if conversation is None else conversation
        tokens = len(contents) * self.block_tokens
        use = self._awaited.pop(name, None) or Turn(name, turn, "", tokens, output, contents, contents, arrival=self.now)
        if back_after is not None:
            use.next = Turn(name, turn + 1, "", tokens, 0, contents, contents, arrival=self.now + back_after, gap=back_after)
            self._awaited[name] = use.next
        self.policy.arrive(use, self.now)
        path = self.policy.path(use)
        hits = self.cache.hit_blocks(path)
        gone = self.cache.allocate(path, 0, self.now)
        assert gone is not None
        self.evicted += chain.from_iterable(gone)
        self.cache.release(path, 0, use, self.now)
        self.hits += hits
        return hits


def run(policy: str, capacity: int, contents: Sequence[int]) -> OneByOne:
    """Run requests of one block each."""
    replay = OneByOne(policy, capacity)
    for content in contents:
        replay.ask(content)
    return replay
