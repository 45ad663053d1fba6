"""The plug-in in SGLang's real radix cache, with its Rust and its Python core."""

import itertools
import logging
import random
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.mem_cache.radix_cache import RadixCache

from eviction_client.background import AtOnce
from eviction_client.engines.sglang.building import build
from eviction_client.errors import EngineUnsupported
from eviction_client.scorer import Scorer
from eviction_client.settings import ClientSettings
from lpc.bench.sglang_cache import BACKENDS, Cache
from lpc.bench.told import Told
from lpc.wire import bugs
from tests.sglang.workloads import SideBySide

SUPPORTS = {"engine": "SGLang", "tier": "radix cache"}

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def shows(what: str) -> Any:
    return pytest.mark.supports(**SUPPORTS, what=what)


def refuses(what: str) -> Any:
    return pytest.mark.refuses(**SUPPORTS, what=what)


def tokens(conversation: int, length: int = 100) -> range:
    return range(conversation * 1000, conversation * 1000 + length)


class Clock(list[float]):
    def __call__(self) -> float:
        return self[0]


@pytest.fixture
def clock() -> Clock:
    return Clock([1.8e9])


def kept(cache: Cache, conversations: int, length: int = 100) -> list[int]:
    """The conversations of which something is cached."""
    return [i for i in range(conversations) if cache.cached(tokens(i, length))]


@shows("no predictions: SGLang's own LRU, hit by hit (Rust and Python cores)")
@pytest.mark.parametrize("seed", range(3))
def test_without_answers_the_hits_are_those_of_sglangs_own_lru(backend: str, seed: int, clock: Clock) -> None:
    """Requests that wait and touch their prefix, chunks, aborts, retractions: all of it."""
    lru = Cache(2500, policy="lru", backend=backend)
    ours = Cache(2500, backend=backend, predictor=Told(lambda _: None), clock=clock)
    side = SideBySide([lru, ours], clock, seed, plain=False)
    side.run(250)
    assert len(lru.evicted) > 20
    assert side.hits[1] == side.hits[0] and sum(side.hits[0]) > 0
    assert len(ours.evicted) == len(lru.evicted)
    assert ours.tree.evictable_size() == lru.tree.evictable_size()
    assert ours.scorer.failures == 0


@shows("a constant prior with credit in force: LRU's hits")
@pytest.mark.parametrize(("seed", "credit"), [(0, None), (1, 0.0), (2, 250.0)])
def test_with_the_same_credit_for_all_the_hits_are_those_of_lru(
    backend: str, seed: int, credit: float | None, clock: Clock
) -> None:
    lru = Cache(2500, policy="lru", backend=backend)
    ours = Cache(2500, backend=backend, predictor=Told(lambda _: credit), clock=clock, guard=False)
    side = SideBySide([lru, ours], clock, seed, plain=True)
    side.run(250)
    assert len(lru.evicted) > 20
    assert side.hits[1] == side.hits[0] and sum(side.hits[0]) > 0
    assert ours.scorer.failures == 0


@shows("leaves are evicted in the order of last use + credit")
def test_conversations_go_in_the_order_of_last_use_and_credit(backend: str, clock: Clock) -> None:
    given = dict(zip(map(str, range(20)), random.Random(1).sample(range(-500, 500), 20), strict=True))
    cache = Cache(
        20 * 102, backend=backend, predictor=Told(lambda name: float(given.get(name, 3000))), clock=clock, guard=False
    )
    for i in range(20):
        clock[0] += 10
        cache.serve(str(i), tokens(i))
    assert kept(cache, 20) == list(range(20))
    gone: list[int] = []
    for i in itertools.count(100):
        before = kept(cache, 20)
        cache.serve(str(i), tokens(i, 30), reply=[7])
        gone += [j for j in before if j not in kept(cache, 20)]
        if len(gone) == 20:
            break
    assert gone == sorted(range(20), key=lambda i: 10 * i + given[str(i)])


@shows("`req.priority`, which schedules, is left alone")
def test_what_the_scheduler_reads_is_not_touched(backend: str, clock: Clock) -> None:
    cache = Cache(500, backend=backend, predictor=Told(lambda _: 100.0), clock=clock, guard=False)
    for priority in (None, 0, -5, 7):
        req = cache.arrive(f"p{priority}", tokens(1), priority=priority)
        cache.compute(req)
        assert req.priority == priority
        cache.end(req, [7, 7])
        assert req.priority == priority


def test_a_priority_of_the_callers_does_not_order_the_tree(backend: str, clock: Clock) -> None:
    cache = Cache(330, backend=backend, predictor=Told(lambda _: None), clock=clock)
    for i, priority in enumerate([9, 0, 0, 0]):
        clock[0] += 1
        cache.serve(str(i), tokens(i), priority=priority)
    assert kept(cache, 4) == [1, 2, 3]


def test_what_a_request_uses_is_never_evicted(backend: str, clock: Clock) -> None:
    cache = Cache(330, backend=backend, predictor=Told(lambda name: -1000.0), clock=clock, guard=False)
    cache.serve("0", tokens(0))
    running = cache.arrive("0 again", [*tokens(0), 5, 6])
    cache.compute(running)
    for i in range(1, 8):
        clock[0] += 1
        cache.serve(str(i), tokens(i))
    assert cache.cached(tokens(0)) == 100
    cache.end(running, [7, 7])
    for i in range(8, 12):
        clock[0] += 1
        cache.serve(str(i), tokens(i))
    # Its history kept the key of the first turn: nothing newer is in its place, and it sinks with the others.
    assert 0 not in kept(cache, 12)


def test_a_shared_prefix_keeps_the_highest_key_and_a_split_carries_it_over(backend: str, clock: Clock) -> None:
    given = {"long": 900.0}
    cache = Cache(650, backend=backend, predictor=Told(lambda name: given.get(name, 0.0)), clock=clock, guard=False)
    cache.serve("long", tokens(0, 200))
    clock[0] += 1
    cache.serve("branch", [*tokens(0, 120), *range(900_000, 900_080)])
    for i in range(1, 9):
        clock[0] += 10
        cache.serve(str(i), tokens(i))
    assert cache.cached(tokens(0, 200)) == 200
    assert cache.cached([*tokens(0, 120), *range(900_000, 900_080)]) == 120


@shows("a key only rises: that a conversation is over shows in what is new of it")
def test_a_lower_key_leaves_the_history_where_it_is_and_takes_what_is_new_first(backend: str, clock: Clock) -> None:
    given = {"first": 0.0, "last": -3000.0}
    cache = Cache(400, backend=backend, predictor=Told(lambda name: given.get(name, 0.0)), clock=clock, guard=False)
    cache.serve("first", tokens(0, 50), reply=[7])
    clock[0] += 10
    cache.serve("other", tokens(1), reply=[7])
    clock[0] += 10
    cache.serve("last", tokens(0, 200), reply=[7])
    for i in (2, 3):
        clock[0] += 1
        cache.serve(str(i), tokens(i, 60), reply=[7])
    assert cache.cached(tokens(1)) == 100
    assert cache.cached(tokens(0, 200)) == 50, "what the ended conversation had new is gone, its older part is not"
    for i in (4, 5, 6):
        clock[0] += 1
        cache.serve(str(i), tokens(i, 60), reply=[7])
    assert cache.cached(tokens(0, 200)) == 0, "the history keeps its old key, by which it is the oldest here"
    assert cache.cached(tokens(1)) == 100


@pytest.mark.parametrize("guard", [True, False])
def test_hints_hold_under_either_rule(backend: str, guard: bool, clock: Clock) -> None:
    cache = Cache(550, backend=backend, predictor=Told(lambda _: None), clock=clock, guard=guard, hints=True, hints_share=0.5)
    hints: list[dict[str, Any]] = [{"lpc_retain_seconds": 60}, {}, {}, {"lpc_done": True}, {}]
    for i, hint in enumerate(hints):
        clock[0] += 1
        cache.serve(str(i), tokens(i), reply=[7], custom_params=hint)
    expected = [[0, 1, 2, 4], [0, 2, 4], [0, 4], [0]]
    for i, left in enumerate(expected):
        clock[0] += 1
        cache.serve(f"n{i}", tokens(10 + i), reply=[7])
        assert kept(cache, 5) == left
    clock[0] += 100
    for i in range(6):
        clock[0] += 1
        cache.serve(f"m{i}", tokens(20 + i), reply=[7])
    assert kept(cache, 5) == [], "no hint holds for ever"


def test_a_flood_of_hints_retains_no_more_than_its_share(backend: str, clock: Clock) -> None:
    cache = Cache(1050, backend=backend, predictor=Told(lambda _: None), clock=clock, hints=True, hints_share=0.2)
    for i in range(8):
        clock[0] += 1
        cache.serve(str(i), tokens(i), reply=[7], custom_params={"lpc_retain_seconds": 600})
    assert cache.scorer.retained.held <= 210 and cache.scorer.retained.refused >= 600
    for i in range(8):
        clock[0] += 1
        cache.serve(f"n{i}", tokens(10 + i), reply=[7])
    assert len(kept(cache, 8)) == 2


def test_a_finished_branch_does_not_take_the_trunk_of_others_along(backend: str, clock: Clock) -> None:
    cache = Cache(550, backend=backend, predictor=Told(lambda _: None), clock=clock, hints=True)
    for i, hint in enumerate(({}, {"lpc_done": True})):
        clock[0] += 1
        cache.serve(str(i), [*tokens(50), *tokens(i)], reply=[7], custom_params=hint)
    for i in range(2):
        clock[0] += 1
        cache.serve(f"n{i}", tokens(10 + i), reply=[7])
    assert cache.cached([*tokens(50), *tokens(0)]) == 200


@shows("an answer that comes after the request's end is laid on what is still there")
def test_a_late_answer_raises_what_is_still_there(backend: str, clock: Clock) -> None:
    predictor = Told(lambda name: None if name == "late" else 0.0)
    cache = Cache(440, backend=backend, predictor=predictor, clock=clock, guard=False)
    cache.serve("late", tokens(0))
    for i in (1, 2):
        clock[0] += 1
        cache.serve(str(i), tokens(i))
    predictor.answer("late", 600.0)
    for i in range(3, 9):
        clock[0] += 1
        cache.serve(str(i), tokens(i))
    assert cache.cached(tokens(0)) == 100
    assert cache.scorer.failures == 0
    cache.tree.sanity_check()


def test_a_retracted_requests_blocks_count_as_used_now(backend: str, clock: Clock) -> None:
    cache = Cache(440, backend=backend, predictor=Told(lambda _: 0.0), clock=clock, guard=False)
    for i in (1, 2):
        clock[0] += 1
        cache.serve(str(i), tokens(i))
    clock[0] += 1
    stopped = cache.arrive("stopped", tokens(0))
    cache.compute(stopped)
    cache.retract(stopped)
    for i in (3, 4):
        clock[0] += 1
        cache.serve(str(i), tokens(i))
    assert cache.cached(tokens(0)) == 100 and not cache.cached(tokens(1))
    assert cache.scorer.failures == 0
    cache.tree.sanity_check()


@shows("a change of rule: what comes after it outranks what was before")
def test_when_the_guard_changes_its_mind_credit_given_before_ends(backend: str, clock: Clock) -> None:
    cache = Cache(440, backend=backend, predictor=Told(lambda name: 3000.0 if name == "0" else 0.0), clock=clock, guard=False)
    cache.serve("0", tokens(0))
    clock[0] += 1
    cache.serve("1", tokens(1))
    cache.scorer._learner.trusting = False
    for i in (2, 3, 4):
        clock[0] += 1
        cache.serve(str(i), tokens(i))
    assert kept(cache, 5) == [0, 2, 3, 4], "among those of before, credit still orders"
    cache.serve("5", tokens(5))
    assert kept(cache, 6) == [2, 3, 4, 5]
    cache.scorer._learner.trusting = True
    clock[0] += 1
    cache.serve("6", tokens(6))
    assert kept(cache, 7) == [3, 4, 5, 6]


@shows("the lifetime is learnt from what SGLang evicts")
def test_the_lifetime_is_that_of_what_is_evicted(backend: str, clock: Clock) -> None:
    cache = Cache(1000, backend=backend, predictor=Told(lambda _: 0.0), clock=clock)
    for i in range(100):
        clock[0] += 7
        cache.serve(str(i), tokens(i), reply=[7])
    # Ten conversations fit, one comes every 7 s.
    assert cache.scorer.lifetime.seconds == pytest.approx(70, abs=8)
    cache.tree.reset()
    cache.pool.clear()
    assert cache.serve("again", tokens(0)) == 0


@shows("whatever fails in the plug-in, SGLang serves on, with an error in the log for each place")
@pytest.mark.parametrize("broken", ["ask", "take", "late_answers"])
def test_a_part_that_raises_keeps_nothing_from_being_served(
    backend: str, broken: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    predictor = Told(lambda _: 0.0)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    setattr(predictor, broken, fail)
    bugs._reports.clear()  # one report per place and process
    lru = Cache(2500, policy="lru", backend=backend)
    ours = Cache(2500, backend=backend, predictor=predictor, clock=clock)
    side = SideBySide([lru, ours], clock, 5, plain=False)
    with caplog.at_level(logging.ERROR):
        side.run(150)
    assert side.hits[1] == side.hits[0]
    assert ours.scorer.failures > 10
    assert 1 <= len([record for record in caplog.records if "serving goes on" in record.message]) <= 2, "one for each place"


def test_shadow_mode_keeps_the_order_and_counts(backend: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPC_SHADOW", "true")
    lru = Cache(2500, policy="lru", backend=backend)
    ours = Cache(2500, policy="lru", backend=backend, predictor=Told(lambda name: float(hash(name) % 999)), clock=clock)
    side = SideBySide([lru, ours], clock, 6, plain=False)
    side.run(200)
    assert side.hits[1] == side.hits[0]
    assert ours.scorer.shadow_counters.asked > 0 and ours.scorer.scored["prediction"] > 0


@refuses("more than one rank (--tp-size, --pp-size, --attn-cp-size)")
def test_more_than_one_rank_is_refused_with_one_message_and_plain_lru(
    backend: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        cache = Cache(500, backend=backend, predictor=Told(lambda _: 0.0), clock=clock, tp_size=2)
    errors = [record.message for record in caplog.records]
    assert len(errors) == 1 and "--tp-size 2" in errors[0] and "Stock LRU instead" in errors[0]
    assert not hasattr(cache.tree, "lpc")
    assert cache.context.params.eviction_policy == "lru"


@refuses("another radix cache than its own (--enable-lmcache, --enable-flexkv, --radix-cache-backend)")
@pytest.mark.parametrize("flag", [None, "enable_lmcache", "radix_cache_backend"])
def test_a_tree_of_another_kind_is_in_its_own_lru_and_is_built_once_where_that_is_foreseen(
    backend: str, flag: str | None, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(500, backend=backend)
    if flag is not None:
        monkeypatch.setattr(cache.context, "server_args", SimpleNamespace(**{flag: "other"}))
    built = []

    def stock(ctx: Any) -> RadixCache:
        built.append(RadixCache(ctx.params))
        return built[-1]

    def opens(settings: ClientSettings, _: Any) -> Scorer:
        return Scorer(settings, capacity=8, predictor=Told(lambda _: 0.0), clock=clock, background=AtOnce)

    with caplog.at_level(logging.ERROR):
        tree = build(stock, cache.context, opens=opens)
    assert tree is built[-1] and type(tree.eviction_strategy).__name__ == "LRUStrategy"
    assert len(built) == (2 if flag is None else 1)
    assert len([record for record in caplog.records if "Stock LRU instead" in record.message]) == 1


def test_it_can_be_made_to_refuse_to_start(backend: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPC_ON_UNKNOWN_ENGINE", "refuse")
    with pytest.raises(EngineUnsupported, match="--tp-size 2"):
        Cache(500, backend=backend, predictor=Told(lambda _: 0.0), clock=clock, tp_size=2)


def test_without_the_policy_it_is_off(backend: str, clock: Clock) -> None:
    cache = Cache(500, policy="lru", backend=backend, predictor=Told(lambda _: 0.0), clock=clock)
    assert not hasattr(cache.tree, "lpc")
