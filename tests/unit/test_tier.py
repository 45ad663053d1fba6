"""A tier's chunks in the reuse classes of the requests that used them."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

import pytest

from eviction_client.policy.ghosts import CHOSEN, GhostCache
from eviction_client.policy.policy import Policy
from eviction_client.policy.queue.free_queue import DONE
from eviction_client.policy.request import TrackedRequest
from eviction_client.policy.rules import RULES
from eviction_client.policy.rules.mq import mq_tables
from eviction_client.policy.tier import ChunkTier
from eviction_client.stores import BlockHash
from tests.spans import spans_of

LOW, HIGH = range(2)


def chain(name: str, blocks: int) -> list[BlockHash]:
    return [BlockHash(f"{name}{place}".encode()) for place in range(blocks)]


class Bench:
    """A tier whose contents are named by block hashes, under MQ: classes are levels."""

    def __init__(self, rule: str = "mq", hints_share: float = 0.0, pool: int = 0) -> None:
        self.now = 1000.0
        self.policy: Policy[BlockHash] = Policy(100, block_tokens=16, clock=lambda: self.now, rule=rule)
        self.policy.tables_of = {"mq": mq_tables(1e6)}.get  # type: ignore[method-assign, assignment]
        self.tier = ChunkTier(
            *("t", 100),
            self.policy,
            blocks=100,
            prompts_only=True,
            pool=pool,
            hints_share=hints_share,
            clock=lambda: self.now,
        )

    def use(self, blocks: Sequence[BlockHash], *runs: tuple[int, int], retain_s: float = 0.0, stored: bool = True) -> None:
        self.now += 1.0
        if stored:
            for block in blocks:
                self.tier.store(block)
        self.tier.finished(
            TrackedRequest("r", blocks=blocks, at=self.now, spans=spans_of(*runs), retain_s=retain_s), ordered=True
        )
        self.tier.used("r", blocks[::-1])

    def order(self) -> list[str]:
        return [bytes(content).decode() for content in self.tier.order()]  # type: ignore[call-overload]


def test_the_parts_of_a_chain_leave_by_their_values_the_deepest_first() -> None:
    bench = Bench()
    bench.use(chain("a", 4), (2, HIGH), (4, LOW))
    bench.use(chain("b", 1), (1, LOW))
    assert bench.order() == ["a3", "a2", "b0", "a1", "a0"]


def test_while_lru_is_in_force_the_tiers_own_order_stays() -> None:
    bench = Bench("lru")
    bench.use(chain("a", 2), (2, HIGH))
    bench.use(chain("b", 2), (2, LOW))
    assert not bench.tier.decides and bench.order() == ["a1", "a0", "b1", "b0"]


def test_chunks_stored_by_a_running_request_go_last() -> None:
    bench = Bench()
    for block in chain("running", 2):
        bench.tier.store(block)
    bench.use(chain("a", 1), (1, HIGH))
    assert bench.order() == ["a0", "running1", "running0"] and len(bench.tier) == 3


def test_hints_decide_under_either_rule_until_their_chunks_are_gone() -> None:
    bench = Bench("lru", hints_share=0.02)
    bench.use(chain("kept", 2), (2, LOW), retain_s=60.0)
    bench.use(chain("too many", 2), (2, LOW), retain_s=60.0)
    bench.use(chain("done", 1), (1, DONE))
    assert bench.tier.decides
    assert bench.order() == ["done0", "too many1", "too many0", "kept1", "kept0"]
    bench.tier.evicted([BlockHash(name.encode()) for name in ("done0", "kept0", "kept1")], by="plugin")
    assert not bench.tier.decides and bench.tier.evictions == {"plugin": 3, "lru": 0} and len(bench.tier) == 2


def test_chunks_that_a_waiting_request_will_load_go_last_and_then_next() -> None:
    bench = Bench("lru")
    for name in "abc":
        bench.use(chain(name, 2), (2, LOW))
    assert not bench.tier.decides
    bench.tier.wait("first", chain("a", 2))
    bench.tier.wait("second", [*chain("b", 1), *chain("not here", 1)])
    assert bench.tier.decides
    assert bench.order() == ["b1", "c1", "c0", "b0", "a1", "a0"]
    assert bench.tier.choose(2, lambda content: content != b"b1") == [b"c1", b"c0"]
    assert bench.order() == ["b1", "c1", "c0", "b0", "a1", "a0"], "to choose changes nothing"
    for request in ("first", "second", "third"):
        bench.tier.release(request)
    assert not bench.tier.decides
    assert sorted(bench.order()[:2]) == ["a0", "a1"]
    assert bench.order()[2:] == ["b1", "b0", "c1", "c0"], "b0 has to wait for b1, which continues it"


class Tree(Bench):
    """A tier of 40 chunks for a tree of texts: requests load and store their chunks, wait, and end with any classes."""

    ROOM = 40

    def __init__(self, rule: str, seed: int) -> None:
        super().__init__(rule, hints_share=0.1)
        self.random = random.Random(seed)
        self.cached: set[BlockHash] = set()
        self.users: Counter[BlockHash] = Counter()
        self.running: list[list[BlockHash]] = []
        self.gone = 0

    def path(self) -> list[BlockHash]:
        """Return the chunks of a text, each named by the whole text before it."""
        text = "".join(self.random.choice("001") for _ in range(self.random.randrange(1, 9)))
        return [BlockHash(text[: place + 1].encode()) for place in range(len(text))]

    def start(self) -> None:
        path = self.path()
        hits = list(takewhile(self.cached.__contains__, path))
        self.users.update(hits)
        new = [chunk for chunk in path if chunk not in self.cached]
        excess = len(self.cached) + len(new) - self.ROOM
        chosen = self.tier.choose(excess, lambda chunk: not self.users[chunk]) if excess > 0 else []
        if chosen is None and not self.tier.decides:
            chosen = [chunk for chunk in self.order_of_own() if not self.users[chunk]][:excess]
        if chosen is None or len(chosen) < excess:
            self.users.subtract(hits)
            return
        for chunk in chosen:
            self.cached.remove(chunk)
            deeper = [chunk + more for more in (b"0", b"1")]
            assert not self.cached.intersection(deeper), "what continues it is stored"
        self.tier.evicted(chosen, by="plugin")
        self.gone += len(chosen)
        for chunk in path:
            if chunk not in self.cached and len(self.cached) < self.ROOM:
                self.tier.store(chunk)
                self.cached.add(chunk)
        self.users.update(path[len(hits) :])
        if self.random.random() < 0.5:
            self.tier.touch([chunk for chunk in reversed(path) if chunk in self.cached])
        self.running.append(path)

    def order_of_own(self) -> list[BlockHash]:
        return list(self.tier.order())  # type: ignore[arg-type]

    def end(self) -> None:
        path = self.running.pop(self.random.randrange(len(self.running)))
        self.users.subtract(path)
        cut, first = self.random.randrange(len(path)), self.random.choice((LOW, HIGH, LOW, HIGH, DONE))
        spans = [(cut, first)] if cut else []
        spans.append((len(path), self.random.choice((LOW, HIGH))))
        retain_s = self.random.choice((0.0, 0.0, 0.0, 5.0))
        request = str(self.random.random())
        if self.random.random() < 0.9:
            self.tier.finished(
                TrackedRequest(request, blocks=path, at=self.now, spans=spans_of(*spans), retain_s=retain_s), ordered=True
            )
        self.tier.used(request, [chunk for chunk in reversed(path) if chunk in self.cached])


@pytest.mark.parametrize("rule", ["mq", "lru"])
def test_a_chunk_is_evicted_after_all_that_continues_it_also_while_requests_wait(rule: str) -> None:
    for seed in range(40):
        tree = Tree(rule, seed)
        rng = tree.random
        for _ in range(300):
            tree.now += rng.choice((0.0, 0.3, 5.0, 80.0))
            tree.tier.step()
            if rng.random() < 0.2:
                tree.tier.wait(rng.randrange(7), list(takewhile(tree.cached.__contains__, tree.path())))
            if rng.random() < 0.2:
                tree.tier.release(rng.randrange(7))
            if rng.random() < 0.6:
                tree.start()
            if tree.running and (len(tree.running) > 4 or rng.random() < 0.5):
                tree.end()
            assert set(tree.order_of_own()) == tree.cached
        assert tree.gone > 50


def test_the_tiers_ghost_caches_keep_a_hit_unless_the_pools_has_all_of_it() -> None:
    bench = Bench()
    ghosts = bench.tier.ghosts
    ghosts.observe(chain("a", 4), 4, {rule: spans_of((4, 0)) for rule in (*RULES, CHOSEN)})
    above: GhostCache[BlockHash] = GhostCache(10, 2, clock=lambda: bench.now)
    above.use(chain("a", 2), spans_of((2, 0)))
    ghosts.wait("waits", chain("a", 6), above=above)
    queue = ghosts.caches["lru"].queue
    assert len(queue.needed) == 4, "with the two that the pool has: the others continue them"
    ghosts.wait("waits", chain("a", 2), above=above)
    assert not queue.keeps
    ghosts.wait("waits", chain("a", 6), above=above)
    ghosts.release("waits")
    assert not queue.keeps


def test_replies_are_not_in_a_tier_of_prompts_and_hits_above_count_for_all_rules() -> None:
    bench = Bench("auto")
    blocks = [BlockHash(bytes(30) + bytes([place, 0])) for place in range(8)]
    finished = bench.policy.finished(TrackedRequest("r"), blocks, 6, bench.now)
    above: GhostCache[BlockHash] = GhostCache(10, 1, clock=lambda: bench.now)
    above.use(blocks[:3], spans_of((3, 0)))
    bench.tier.learn(finished, above)
    assert bench.tier.ghosts.latest == dict.fromkeys((*RULES, CHOSEN), 3)
    assert {len(cache) for cache in bench.tier.ghosts.caches.values()} == {6}


def homes(bench: Bench, requests: int, *, ordered: bool = True) -> Counter[str | None]:
    found: Counter[str | None] = Counter()
    for number in range(requests):
        finished = TrackedRequest[BlockHash](number, at=bench.now)
        bench.tier.finished(finished, ordered=ordered)
        found[finished.home] += 1
    return found


@pytest.mark.parametrize(("pool", "share"), [(100, 1 / 2), (50, 1 / 3), (900, 0.9)])
def test_pool_and_a_small_tier_divide_the_requests_by_their_sizes(pool: int, share: float) -> None:
    found = homes(Bench(pool=pool), 300)
    assert abs(found["pool"] - 300 * share) <= 1 and found["tier"] == 300 - found["pool"]


def test_nothing_is_divided_with_a_large_tier_or_while_lru_orders_one_of_the_two() -> None:
    assert set(homes(Bench(pool=100), 3, ordered=False)) == {None}
    assert set(homes(Bench("lru", pool=100), 3)) == {None}
    for pool in (0, 49):
        bench = Bench(pool=pool)
        assert set(homes(bench, 3)) == {None}
        assert {cache.room for cache in (*bench.tier.ghosts.caches.values(), bench.tier.ghosts.chosen)} == {100}


def test_chunks_of_a_request_whose_home_is_the_pool_go_first_unless_a_hint_retains_them() -> None:
    bench = Bench(pool=100, hints_share=0.02)
    bench.use(chain("tier", 2), (2, HIGH))
    bench.use(chain("pool", 2), (2, HIGH))
    bench.use(chain("last", 1), (1, HIGH))
    bench.use(chain("kept", 2), (2, HIGH), retain_s=1.0)
    assert bench.order() == ["pool1", "pool0", "tier1", "tier0", "last0", "kept1", "kept0"]
    bench.now += 1000.0
    bench.tier.step()
    assert bench.order()[-2:] == ["kept1", "kept0"], "whose class is not that of a copy"


def test_ghost_caches_of_a_divided_tier_stand_for_both_but_lrus_for_the_tier_below_the_pool() -> None:
    bench = Bench("auto", pool=100)
    ghosts = bench.tier.ghosts
    assert {rule: cache.room for rule, cache in ghosts.caches.items()} == {**dict.fromkeys(RULES, 200), "lru": 100}
    above: GhostCache[BlockHash] = GhostCache(10, 1, clock=lambda: bench.now)
    blocks = [BlockHash(bytes(30) + bytes([place, 0])) for place in range(150)]
    finished = bench.policy.finished(TrackedRequest("r"), blocks, 150, bench.now)
    above.use(blocks[:3], spans_of((3, 0)))
    bench.tier.learn(finished, above)
    assert ghosts.latest == {rule: 3 if rule == "lru" else 0 for rule in (*RULES, CHOSEN)}
    assert {rule: len(cache) for rule, cache in ghosts.caches.items()} == {**dict.fromkeys(RULES, 150), "lru": 100}
    bench.tier.distrust(bench.policy.renewed())
    assert bench.tier.rule == "lru"
    ghosts = bench.tier.ghosts
    assert ghosts.caches["lru"].room == 100 and ghosts.caches["value"].room == 200
    bench.tier.learn(bench.policy.finished(TrackedRequest("s"), blocks, 150, bench.now), above)
    assert len(ghosts.chosen) == 100 and ghosts.latest[CHOSEN] == ghosts.latest["lru"] == 3
