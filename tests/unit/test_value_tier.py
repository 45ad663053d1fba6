"""A tier's chunks in the reuse classes of the requests that used them."""

from collections.abc import Sequence

import pytest

from eviction_client.policy.finished_request import ClassSpan, FinishedRequest
from eviction_client.policy.free_queue import DONE
from eviction_client.policy.ghosts import Freed, GhostCache, Ghosts
from eviction_client.policy.tier import Tier
from eviction_client.stores import BlockHash
from lpc.model.curve import KNOTS

LOW, HIGH = range(2)
TABLES = [[value / (1.0 + age) for age in KNOTS] for value in (1e-3, 1.0)]


def chain(name: str, blocks: int) -> list[BlockHash]:
    return [BlockHash(f"{name}{place}".encode()) for place in range(blocks)]


class Bench:
    """A tier whose contents are named by block hashes."""

    def __init__(self, *, guarded: bool = False, known: bool = True, hints_share: float = 0.0) -> None:
        self.now = 1000.0
        self.tier = Tier(
            *("t", 100),
            blocks=100,
            classes=len(TABLES),
            prompts_only=True,
            guarded=guarded,
            hints_share=hints_share,
            tables=lambda: TABLES if known else None,
            clock=lambda: self.now,
        )

    def use(self, blocks: Sequence[BlockHash], *runs: ClassSpan, retain_s: float = 0.0, stored: bool = True) -> None:
        self.now += 1.0
        if stored:
            for block in blocks:
                self.tier.store(block)
        self.tier.ended(FinishedRequest("r", None, blocks, len(blocks), self.now, 0, runs, retain_s))
        self.tier.used("r", blocks[::-1])

    def order(self) -> list[str]:
        return [bytes(content).decode() for content in self.tier.order()]  # type: ignore[call-overload]


def test_the_parts_of_a_chain_leave_by_their_values_the_deepest_first() -> None:
    bench = Bench()
    bench.use(chain("a", 4), ClassSpan(2, HIGH), ClassSpan(4, LOW))
    bench.use(chain("b", 1), ClassSpan(1, LOW))
    assert bench.order() == ["a3", "a2", "b0", "a1", "a0"]


@pytest.mark.parametrize(("guarded", "known"), [(True, True), (False, False)])
def test_while_lru_is_in_force_or_nothing_is_known_the_tiers_own_order_stays(guarded: bool, known: bool) -> None:
    bench = Bench(guarded=guarded, known=known)
    bench.use(chain("a", 2), ClassSpan(2, HIGH))
    bench.use(chain("b", 2), ClassSpan(2, LOW))
    assert not bench.tier.decides and bench.order() == ["a1", "a0", "b1", "b0"]


def test_what_a_running_request_has_stored_goes_last() -> None:
    bench = Bench()
    for block in chain("running", 2):
        bench.tier.store(block)
    bench.use(chain("a", 1), ClassSpan(1, HIGH))
    assert bench.order() == ["a0", "running1", "running0"] and len(bench.tier) == 3


def test_hints_decide_under_either_rule_until_their_chunks_are_gone() -> None:
    bench = Bench(guarded=True, hints_share=0.02)
    bench.use(chain("kept", 2), ClassSpan(2, LOW), retain_s=60.0)
    bench.use(chain("too many", 2), ClassSpan(2, LOW), retain_s=60.0)
    bench.use(chain("done", 1), ClassSpan(1, DONE))
    assert bench.tier.decides
    assert bench.order() == ["done0", "too many1", "too many0", "kept1", "kept0"]
    bench.tier.evicted([BlockHash(name.encode()) for name in ("done0", "kept0", "kept1")], by="value")
    assert not bench.tier.decides and bench.tier.evictions == {"value": 3, "lru": 0} and len(bench.tier) == 2


def test_what_a_waiting_request_will_load_goes_last_and_then_next() -> None:
    bench = Bench(known=False)
    bench.tier.wanted = False
    bench.tier.step()
    for name in "abc":
        bench.use(chain(name, 2), ClassSpan(2, LOW))
    assert not bench.tier.decides
    bench.tier.wait("first", chain("a", 2))
    bench.tier.wait("second", [*chain("b", 1), *chain("not here", 1)])
    assert bench.tier.decides
    assert bench.order() == ["b1", "c1", "c0", "b0", "a1", "a0"]
    assert bench.tier.choose(2, lambda content: content != b"b1") == [b"c1", b"c0"]
    assert bench.order() == ["b1", "c1", "c0", "b0", "a1", "a0"], "to choose changes nothing"
    for request in ("first", "second", "third"):
        bench.tier.served(request)
    assert not bench.tier.decides
    assert sorted(bench.order()[:3]) == ["a0", "a1", "b0"] and bench.order()[3:] == ["b1", "c1", "c0"]


def test_the_tiers_ghost_caches_keep_what_the_pools_does_not_have() -> None:
    bench = Bench()
    above: GhostCache[BlockHash] = GhostCache(10, 2, value_enabled=True, clock=lambda: bench.now)
    ghosts = Ghosts[BlockHash](10, 2, lambda *_: True, clock=lambda: bench.now)
    ghosts.observe(chain("a", 4), [Freed(chain("a", 4), LOW)])
    above.use([Freed(chain("a", 2), LOW)])
    ghosts.wait("waits", chain("a", 6), above=above)
    kept = ghosts.following(False).queue
    assert len(kept._needed) == 2
    ghosts.served("waits")
    assert not kept.keeps
