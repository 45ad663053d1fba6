"""A fleet: what must hold whatever the sessions, the router, its knowledge and the engines' failures are."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc_apps.simulator.amounts import SimulationError
from lpc_apps.simulator.engine import simulate
from lpc_apps.simulator.fleet import run as fleet_run
from lpc_apps.simulator.fleet.held import HeldTurns, Repeated, RouterQueue
from lpc_apps.simulator.fleet.knowledge import KNOWLEDGE, Gateway
from lpc_apps.simulator.fleet.run import Fleet, FleetResult, copies, simulate_fleet
from lpc_apps.simulator.fleet.verdict import fleet_verdict
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.run import SimulationRun, WorkloadSpec, run_one
from lpc_apps.simulator.waiting import Queueing
from lpc_apps.simulator.workload import Cost, Turn, Workload
from lpc_apps.simulator.workloads.few_shot import few_shot
from tests.pooled_order import drawn
from tests.unit.simulator.test_closed_loop import LOGS, build_turns, loop, session

SIZE = 16
COST = Cost(prefill_tokens_s=1000.0, output_token_s=0.1)
ROUTERS = ("round-robin", "least-loaded", "session-hash", "fewest-sessions", "prefix", "cost:1", "cost:11")
KNOWN = ("all", "sent", "corrected", "text", "lru:0.9", "events:2", "numbered-events:2")


def replay(
    workload: Workload, blocks: int, fleet: Fleet, queueing: Queueing | None = None, policy: str = "lru"
) -> tuple[FleetResult, Counter[Turn]]:
    """Return the result, and how often each request was answered."""
    rule, ends = REGISTRY[policy], Counter[Turn]()

    class Watched(rule):  # type: ignore[misc, valid-type]
        def finish(self, turn: Turn, now: float) -> None:
            ends[turn] += 1
            super().finish(turn, now)

    result = simulate_fleet(
        workload,
        blocks * SIZE,
        lambda n: Watched(n, workload, PolicySettings()),
        fleet,
        cost=COST,
        queueing=queueing or Queueing(),
    )
    return result, ends


def agents(at_a_time: int, requests: int, seed: int = 0) -> Workload:
    """Return a closed loop of 40 sessions that share a system prompt."""
    rng = np.random.default_rng(7)
    sessions = []
    for number in range(40):
        lengths = [(int(rng.integers(50, 300)), int(rng.integers(1, 60)), float(rng.uniform(0, 20))) for _ in range(6)]
        turns = session(number + 1, lengths)
        for turn in turns:
            turn.contents = (7, *turn.contents[1:]) if len(turn.contents) else turn.contents
            turn.all_contents = (7, *turn.all_contents[1:]) if len(turn.all_contents) else turn.all_contents
        sessions.append(turns)
    return loop(sessions, at_a_time, requests, seed, warm_up=0)


@settings(max_examples=40, deadline=None)
@given(
    LOGS,
    st.integers(1, 5),
    st.integers(10, 60),
    st.sampled_from(ROUTERS),
    st.sampled_from(KNOWN),
    st.sampled_from(["lru", "mq", "plugin"]),
    st.sampled_from([Queueing(), Queueing("warm-first", keep=True), Queueing("lpm")]),
)
def test_a_fleet_of_one_serves_what_one_engine_serves(
    log: Any, at_a_time: int, blocks: int, router: str, knows: str, policy: str, queueing: Queueing
) -> None:
    turns = build_turns(log)
    rule = REGISTRY[policy]
    workload = loop(turns, at_a_time, 30)
    one = simulate(
        workload, blocks * SIZE, lambda n: rule(n, workload, PolicySettings()), cost=COST, queueing=queueing
    ).figures()
    workload = loop(turns, at_a_time, 30)
    fleet, _ = replay(workload, blocks, Fleet(1, router, knows), queueing, policy)
    assert {name: fleet.figures()[name] for name in one} == one
    assert fleet.figures()["imbalance"] == 1.0
    assert (fleet.moved, fleet.resent) == (0, 0)


@pytest.mark.parametrize("in_turn", [False, True])
def test_a_fleet_of_one_serves_a_workload_by_the_clock_as_one_engine_does(in_turn: bool) -> None:
    run = SimulationRun(WorkloadSpec(workload="chat-lognormal"), "lru", 0.05, queueing=Queueing(in_turn=in_turn))
    one = run_one(run)
    fleet = run_one(replace(run, fleet=Fleet(1, "cost:4")))
    assert one["requests"] > 1000
    assert {name: fleet[name] for name in one} == one


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 5),
    st.sampled_from(ROUTERS),
    st.sampled_from(KNOWN),
    st.one_of(st.none(), st.tuples(st.floats(0, 60), st.floats(0, 30))),
    st.one_of(st.none(), st.floats(0, 60)),
    st.sampled_from([Queueing(), Queueing("warm-first", keep=True)]),
    st.sampled_from([None, "fcfs", "warm-first"]),
    st.integers(0, 2),
    st.integers(1, 3),
)
def test_every_request_is_served_exactly_once(
    engines: int,
    router: str,
    knows: str,
    down: tuple[float, float] | None,
    restart: float | None,
    queueing: Queueing,
    queue: RouterQueue | None,
    ahead: int,
    routers: int,
) -> None:
    sent: dict[Turn, float] = {}
    workload = agents(10, 150)
    fleet = Fleet(
        engines, router, knows, None if down is None else (down[0], sum(down)), restart, 0, queue, ahead, routers=routers
    )
    before = fleet_run.FleetRun.arrive

    def watched(self: Any, turn: Turn, now: float) -> bool:
        sent[turn] = now
        return before(self, turn, now)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fleet_run.FleetRun, "arrive", watched)
        result, ends = replay(workload, 200, fleet, queueing)
    assert max(ends.values()) == 1
    assert set(ends) <= set(sent)
    whole = result.all
    assert whole.requests == sum(result.requests) == 150
    assert len(whole.ttft) == len(whole.waits) == 150
    assert len(whole.latency) == 150
    # What was sent and not served waits at the end.
    assert len(sent) == 150 + len(whole.still_waiting)
    assert 0 <= whole.hit_tokens <= whole.prompt_tokens == whole.all_prompt_tokens
    assert min((*whole.ttft, *whole.waits)) >= 0


def test_an_engine_that_fails_loses_its_cache_and_its_requests_go_elsewhere() -> None:
    def served(down: tuple[float, float] | None = None) -> FleetResult:
        return replay(agents(30, 300), 400, Fleet(3, "session-hash", down=down))[0]

    steady, failing, gone = served(), served((40.0, 60.0)), served((40.0, 1e9))
    assert steady.resent == 0 < failing.resent
    assert steady.moved < failing.moved
    assert gone.requests[0] < failing.requests[0] < steady.requests[0]
    assert failing.all.hit_rate < steady.all.hit_rate


def test_a_restart_of_the_engine_costs_hits_and_of_the_router_only_those_that_it_remembers() -> None:
    def hits(**settings: Any) -> float:
        return replay(agents(10, 300), 2000, Fleet(3, **settings))[0].all.hit_rate

    assert hits(router="session-hash", router_restart=30.0) == hits(router="session-hash")
    assert hits(router="cost:11", router_restart=30.0) == hits(router="cost:11")
    assert hits(router="cost:11", knows="sent", router_restart=30.0) < hits(router="cost:11", knows="sent")
    assert hits(router="session-hash", down=(30.0, 30.0)) < hits(router="session-hash")


def test_a_router_that_holds_requests_in_order_changes_nothing_on_engines_in_order() -> None:
    for router in ("session-hash", "cost:4"):
        plain = replay(agents(20, 300), 200, Fleet(2, router))[0].figures()
        for ahead in (0, 3):
            held = replay(agents(20, 300), 200, Fleet(2, router, queue="fcfs", ahead=ahead))[0].figures()
            assert {**held, "waited": 0} == {**plain, "waited": 0}


def test_held_requests_are_handed_on_one_by_one_and_warm_ones_first() -> None:
    cold = [Turn(f"cold {n}", 1, "", 1000, 0, (), ()) for n in range(2)]
    warm = Turn("warm", 2, "", 1000, 0, (), ())
    missing = {cold[0]: 1000, cold[1]: 1000, warm: 50}
    orders: tuple[tuple[RouterQueue, list[Turn]], ...] = (
        ("fcfs", [cold[0], cold[1], warm]),
        ("warm-first", [cold[0], warm, cold[1]]),
    )
    for order, expected in orders:
        held = HeldTurns(order, missing.__getitem__, 2000, speed=1000.0)
        held.note(2000, 2000)  # the engine computes again what it had
        handed = []
        for turn in (cold[0], cold[1], warm):
            held.add(turn, 0.0)
            handed.append(held.hand_on(0.0))
        assert handed == [cold[0], None, None]
        assert list(held) == [cold[1], warm]
        held.first_token(cold[0])
        second = held.hand_on(0.0)
        assert second is not None
        assert held.hand_on(0.0) is None
        held.first_token(second)
        assert [cold[0], second, held.hand_on(0.0)] == expected


def test_resent_and_recomputed_tokens_count_as_repeated() -> None:
    first, second = (Turn("a", n, "", 33 + 16 * n, 0, range(2 + n), range(2 + n)) for n in (0, 1))
    repeated = Repeated(Workload("by hand", SIZE, [first, second], False, 0.0, float("inf")))
    assert repeated.tokens(first, 33) == 0
    assert repeated.tokens(second, 49) == 32
    assert repeated.tokens(second, 49 - 32) == 48 - 32


def test_warm_first_in_the_router_serves_what_it_serves_in_the_engine() -> None:
    def figures(fleet: Fleet, queueing: Queueing | None = None) -> dict[str, Any]:
        spec = WorkloadSpec(workload="cliff", sessions=60, requests=1000)
        settings = PolicySettings(cost=Cost(5000.0))
        return run_one(SimulationRun(spec, "lru", 200_000, queueing=queueing or Queueing(), settings=settings, fleet=fleet))

    stock = figures(Fleet(2, "session-hash"))
    in_engines = figures(Fleet(2, "session-hash"), Queueing("warm-first"))
    all_known = figures(Fleet(2, "session-hash", queue="warm-first"))
    believed = figures(Fleet(2, "session-hash", "lru:0.9", queue="warm-first"))
    assert in_engines["throughput_tokens_s"] > 2 * stock["throughput_tokens_s"]
    same = ("throughput_tokens_s", "hit_rate", "latency_p99_s", "wait_longest_s")
    assert [all_known[name] for name in same] == pytest.approx([in_engines[name] for name in same])
    assert believed["throughput_tokens_s"] > 0.9 * all_known["throughput_tokens_s"]


def test_runs_are_repeatable_and_seeds_differ() -> None:
    def figures(seed: int) -> dict[str, Any]:
        return replay(agents(10, 200, seed), 100, Fleet(4, "cost:1", "sent", seed=seed))[0].figures()

    assert figures(1) == figures(1)
    assert figures(1) != figures(2)


def test_a_router_that_keeps_sessions_hits_more_than_one_that_does_not() -> None:
    rates = {name: replay(agents(10, 300), 2000, Fleet(4, name))[0].all.hit_rate for name in ROUTERS}
    assert min(rates[name] for name in ("session-hash", "fewest-sessions", "cost:11")) > rates["round-robin"] + 0.1


def test_two_routers_that_know_what_they_sent_hit_less_than_one() -> None:
    one, two = (replay(agents(12, 400), 200, Fleet(3, "cost:11", "sent", routers=routers))[0] for routers in (1, 2))
    assert two.all.hit_tokens < one.all.hit_tokens
    assert two.moved > one.moved


def test_moved_and_imbalance_count_sessions_and_requests() -> None:
    def turns(session: str, arrivals: Sequence[float]) -> list[Turn]:
        return [Turn(session, n, "", 32, 0, [1, 2], [1, 2], arrival=at) for n, at in enumerate(arrivals, 1)]

    arrivals = sorted([*turns("a", [0.0, 1.0, 3.0]), *turns("b", [2.0])], key=lambda turn: turn.arrival)
    workload = Workload("by hand", SIZE, arrivals, False, 0.0, float("inf"))
    result, _ = replay(workload, 10, Fleet(2, "round-robin"))
    # a goes to engines 1, 2 and 2 in its requests 1, 2 and 4.
    assert (result.returned, result.moved, result.requests) == (2, 1, [2, 2])
    assert replay(workload, 10, Fleet(4, "session-hash"))[0].figures()["imbalance"] == pytest.approx(
        max(replay(workload, 10, Fleet(4, "session-hash"))[0].requests)
    )


def test_copies_are_blocks_beyond_the_first_of_each() -> None:
    assert copies([{1, 2, 3}, {1, 2}, {1}]) == pytest.approx(3 / 6)
    assert copies([{1}, {2}]) == 0.0
    assert copies([set(), set()]) == 0.0


def test_a_bound_of_one_engine_and_failures_without_a_queue_are_refused() -> None:
    spec = WorkloadSpec(workload="chat-lognormal")
    with pytest.raises(SimulationError, match="belady is a bound of one engine: leave it out of --policies"):
        run_one(SimulationRun(spec, "belady", 0.05, fleet=Fleet(2, "round-robin")))
    with pytest.raises(SimulationError, match="add --closed or --in-turn to --router-queue"):
        run_one(SimulationRun(spec, "lru", 0.05, fleet=Fleet(2, "round-robin", queue="fcfs")))
    with pytest.raises(SimulationError, match="add --closed or --in-turn to --engine-down"):
        run_one(SimulationRun(spec, "lru", 0.05, fleet=Fleet(2, "round-robin", down=(1.0, 2.0))))


@pytest.mark.parametrize("router", ["round-robin", "session-hash"])
def test_pooling_changes_nothing_where_no_block_is_used_on_two_engines(router: str) -> None:
    """An engine alone, or one that keeps its sessions, knows its own blocks better than its former times."""
    turns = [session(number + 1, [(200 + 7 * number, 30, 5.0)] * 5) for number in range(30)]
    engines = 1 if router == "round-robin" else 2
    alone, _ = replay(loop(turns, 12, 150), 120, Fleet(engines, router), policy="plugin")
    pooled, _ = replay(loop(turns, 12, 150), 120, Fleet(engines, router, pooled=True), policy="plugin")
    assert pooled == alone


def test_an_engine_alone_does_not_pool_with_itself() -> None:
    workload = few_shot(seed=3, requests=1_000)
    alone, pooled = (
        simulate_fleet(workload, 40_000, lambda n: REGISTRY["plugin"](n, workload, PolicySettings()), fleet)
        for fleet in (Fleet(1, "round-robin"), Fleet(1, "round-robin", pooled=True))
    )
    assert pooled == alone


def test_without_predictions_pooling_changes_nothing_under_the_guard() -> None:
    """Its classes have the odds of predictions alone, so the claims of other engines on shared blocks cost nothing."""
    workload = few_shot(seed=3, requests=1_000)
    alone, pooled = (
        simulate_fleet(workload, 40_000, lambda n: REGISTRY["plugin"](n, workload, PolicySettings()), fleet)
        for fleet in (Fleet(2, "round-robin"), Fleet(2, "round-robin", pooled=True))
    )
    assert pooled == alone


def test_pooling_reaches_the_plug_in_of_another_engine_and_no_other_policy() -> None:
    workload = drawn(0, conversations=60)
    settings = PolicySettings(rule="lpc")
    hits = {
        (policy, pooled): simulate_fleet(
            *(workload, 4_000, lambda n, rule=REGISTRY[policy]: rule(n, workload, settings)),
            Fleet(2, "round-robin", pooled=pooled),
        ).figures()["hit_rate"]
        for policy in ("lru", "plugin-sidecar")
        for pooled in (False, True)
    }
    assert hits["lru", True] == hits["lru", False]
    assert hits["plugin-sidecar", True] > hits["plugin-sidecar", False] + 0.01


def row(router: str, policy: str, queue: str, rate: float, p99: float) -> dict[str, Any]:
    return {
        "workload": "w",
        "closed_loop": True,
        "engines": 4,
        "capacity_tokens": 2_000_000,
        "knows": "all",
        "held": None,
        "seeds": 1,
        "policy": policy,
        "queue": queue,
        "pooled": False,
        "routers": 1,
        "router": router,
        "throughput_tokens_s": rate,
        "latency_p99_s": p99,
        "hit_rate": 0.5,
        "ttft_mean_s": 1.0,
        "ttft_p99_s": 2.0,
        "prefill_load": 1.0,
    }


def test_the_paragraph_says_what_the_router_and_what_the_plug_in_change() -> None:
    keep = ("plugin", "warm-first, keep")
    rows = [
        *(row("session-hash", "lru", "fcfs", 289e3, 125), row("cost:4", "lru", "fcfs", 558e3, 30)),
        *(row("session-hash", *keep, 538e3, 33), row("cost:4", *keep, 551e3, 31)),
    ]
    text = fleet_verdict(rows)
    assert "Stock engines behind `session-hash` serve 289K prompt tokens/s (hits 50.0%, p99 2.1 min)." in text
    assert "**The router:** behind `cost:4` they serve 558K prompt tokens/s (hits 50.0%, p99 30 s): 1.93 times that." in text
    assert "**The plug-in:** engines with plugin, warm-first, keep behind `session-hash` serve 538K" in text
    assert "(hits 50.0%, p99 33 s): 1.86 times that." in text
    assert "**Both:** with plugin, warm-first, keep behind `cost:4` they serve 551K" in text
    assert "within 2% of those of stock engines there" in text
    assert text.endswith("Best of all is `cost:4` with stock engines.")


def test_the_paragraph_says_what_pooling_changes() -> None:
    alone = [row(router, "plugin", "fcfs", 500e3, 30) for router in ("session-hash", "cost:4")]
    assert "Pooling" not in fleet_verdict(alone)
    pooled = [one | {"pooled": True, "hit_rate": rate} for one, rate in zip(alone, (0.499, 0.5025), strict=True)]
    assert "**Pooling** of shared blocks changes hits by -0.10 to +0.25 points." in fleet_verdict([*alone, *pooled])


def test_the_paragraph_names_no_router_that_gains_nothing() -> None:
    text = fleet_verdict([row("session-hash", "lru", "fcfs", 100e3, 10), row("cost:4", "lru", "fcfs", 101e3, 9)])
    assert "**The router:** no other of the 2 that were run gains more than 2%." in text
    assert text.endswith("Best of all is `session-hash` with stock engines.")


@pytest.mark.parametrize("queue", [None, "warm-first"])
def test_the_gateway_knows_no_caches_size_unless_it_holds_requests(
    queue: RouterQueue | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `lpc gateway` asks engines for it only for its queue."""
    made: list[Gateway] = []

    class Seen(Gateway):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setitem(KNOWLEDGE, "gateway", Seen)
    replay(agents(10, 100), 200, Fleet(2, "gateway", queue=queue))
    assert [one.cache is not None for one in made[0].router.engines] == [queue is not None] * 2


@pytest.mark.parametrize(("knows", "share"), [("gateway", 1), ("gateway:1.2", 1.2), ("gateway:0.5", 0.5), ("all", 1)])
def test_the_gateway_takes_caches_to_have_the_share_of_their_size_that_is_asked_for(
    knows: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Gateway] = []

    class Seen(Gateway):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setitem(KNOWLEDGE, "gateway", Seen)
    workload = agents(10, 100)
    replay(workload, 200, Fleet(2, "gateway", knows, queue="warm-first"))
    assert [queue.cache.capacity for queue in made[0].queues] == [int(share * 200 * workload.block_tokens)] * 2
