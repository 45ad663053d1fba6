"""Which engine each router chooses, by hand, and what the kinds of knowledge know."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from lpc.errors import UsageError
from lpc_apps.logs.formats import open_trace
from lpc_apps.simulator.amounts import SimulationError
from lpc_apps.simulator.engine import Engine
from lpc_apps.simulator.fleet.knowledge import (
    KNOWLEDGE,
    Corrected,
    Events,
    Everything,
    Knowledge,
    NumberedEvents,
    OwnLru,
    Sent,
    Text,
    parse_knowledge,
)
from lpc_apps.simulator.fleet.routers import REGISTRY, FewestSessions, Router, parse_router
from lpc_apps.simulator.policies import REGISTRY as POLICIES
from lpc_apps.simulator.policies import PolicySettings
from lpc_apps.simulator.replay import Replay
from lpc_apps.simulator.waiting import Queueing
from lpc_apps.simulator.workload import Cost, Turn, Workload, from_trace
from response_cache.gateway.engines import Engines
from response_cache.gateway.metrics import Metrics

SIZE = 16
COST = Cost(prefill_tokens_s=1000.0, output_token_s=0.1)


def request(session: str, blocks: Sequence[int], turn: int = 1) -> Turn:
    """Return a request without a reply whose prompt ends one token after these blocks."""
    return Turn(session, turn, "", len(blocks) * SIZE + 1, 0, blocks, blocks)


class Fixed(Knowledge):
    """Knowledge that a test sets."""

    name = "fixed"
    rule = ""

    def __init__(self, waiting: Sequence[float] = (0, 0, 0), cached: Sequence[int] = (0, 0, 0)) -> None:
        self.waiting, self.held, self.flying = list(waiting), list(cached), [0] * len(waiting)
        self.prompt_token_s = 0.001
        self.up = list(range(len(waiting)))

    def cached(self, engine: int, turn: Turn, now: float) -> int:
        return self.held[engine]

    def waiting_s(self, engine: int, now: float) -> float:
        return self.waiting[engine]

    def in_flight(self, engine: int) -> int:
        return self.flying[engine]


def router(name: str, known: Knowledge) -> Router:
    kind, number = parse_router(name)
    return kind(known, Random(0), number)


def test_every_router_and_knowledge_has_a_rule_and_routers_a_source() -> None:
    assert all(one.rule and one.source for one in REGISTRY.values())
    assert all(one.rule for one in KNOWLEDGE.values())


def test_round_robin_takes_the_engines_in_turn_and_leaves_out_one_that_is_down() -> None:
    known = Fixed()
    turns = router("round-robin", known)
    assert [turns.choose(request("a", [1]), 0.0) for _ in range(4)] == [0, 1, 2, 0]
    known.up = [0, 2]
    assert {turns.choose(request("a", [1]), 0.0) for _ in range(4)} == {0, 2}


def test_least_loaded_counts_requests_and_draws_among_equals() -> None:
    known = Fixed()
    known.flying = [2, 1, 1]
    least = router("least-loaded", known)
    assert {least.choose(request("a", [1]), 0.0) for _ in range(50)} == {1, 2}


def test_session_hash_ranks_the_engines_as_the_gateway_does() -> None:
    known = Fixed([0.0] * 8)
    engines = Engines([f"engine-{number}" for number in range(8)], Metrics())
    hashed = router("session-hash", known)
    for number in range(100):
        for place, engine in enumerate(engines.all):
            known.flying[place] = engine.in_flight = (number * 7 + place * place * 5) % 40
        chosen = hashed.choose(request(f"session {number}", [1]), 0.0)
        assert f"engine-{chosen}" == engines.ranked(f"session {number}".encode())[0].url


def test_session_hash_moves_only_the_sessions_of_an_engine_that_is_down() -> None:
    known = Fixed([0.0] * 5)
    hashed = router("session-hash", known)
    sessions = [request(f"s{number}", [1]) for number in range(200)]
    before = [hashed.choose(turn, 0.0) for turn in sessions]
    known.up = [0, 1, 3, 4]
    after = [hashed.choose(turn, 0.0) for turn in sessions]
    assert all(a == b for a, b in zip(after, before, strict=True) if b != 2)
    assert 2 not in after
    assert min(before.count(engine) for engine in range(5)) > 20


def test_fewest_sessions_keeps_sessions_and_forgets_idle_ones() -> None:
    known = Fixed([0.0, 0.0])
    fewest = router("fewest-sessions", known)
    homes = {name: fewest.choose(request(name, [1]), 0.0) for name in "abcd"}
    assert sorted(homes.values()) == [0, 0, 1, 1]
    later = FewestSessions.IDLE_S
    on_zero = [name for name in "abcd" if homes[name] == 0]
    for name in on_zero:
        assert fewest.choose(request(name, [1]), later) == 0
    # The two sessions of engine 1 are idle by now, so it has the fewest: none.
    assert [fewest.choose(request(name, [1]), later + 1) for name in "ef"] == [1, 1]
    known.up = [1]
    assert fewest.choose(request(on_zero[0], [1]), later + 2) == 1
    known.up = [0, 1]
    assert fewest.choose(request(on_zero[0], [1]), later + 3) == 1


def test_prefix_takes_the_longest_match_above_the_threshold_while_loads_are_balanced() -> None:
    known = Fixed(cached=(0, 480, 640))
    known.flying = [0, 5, 60]
    longest = router("prefix", known)
    long = request("a", range(100))  # 1,601 tokens: the match has 40%
    assert longest.choose(long, 0.0) == 2
    assert router("prefix:0.5", known).choose(long, 0.0) == 0
    known.flying = [0, 5, 65]
    assert longest.choose(long, 0.0) == 0
    known.flying = [200, 210, 265]
    assert longest.choose(long, 0.0) == 2


def test_cost_weighs_missing_prefill() -> None:
    # The prompt has 1,601 tokens. Engine 0 holds 1,000 and is busy for 2.5 s; engine 1 holds nothing and is idle.
    known = Fixed(waiting=(2.5, 0.0, 9.0), cached=(1000, 0, 0))
    long = request("a", range(100))
    assert router("cost:1", known).choose(long, 0.0) == 1
    assert router("cost:2.4", known).choose(long, 0.0) == 1
    assert router("cost:2.6", known).choose(long, 0.0) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hash", "unknown router 'hash': choose from round-robin"),
        ("", "unknown router ''"),
        ("cost", "needs its W, a number from 0 on: cost:11"),
        ("cost:", "needs its W"),
        ("cost:much", "needs its W"),
        ("cost:-1", "needs its W"),
        ("cost:nan", "needs its W"),
        ("cost:inf", "needs its W"),
        ("prefix:x", "needs its SHARE, a number from 0 on: prefix:0.3"),
        ("round-robin:2", "the router round-robin takes no number"),
    ],
)
def test_a_router_that_does_not_exist_is_one_clear_error(text: str, said: str) -> None:
    with pytest.raises(SimulationError, match=re.escape(said)):
        parse_router(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "nothing",
            "choose from all, sent, corrected, text, gateway[:SHARE], lru:SHARE, events:SECONDS, numbered-events:SECONDS",
        ),
        ("all:3", "is not a knowledge of routers"),
        ("events", "needs a number of seconds from 0 on: events:5"),
        ("events:-1", "needs a number of seconds"),
        ("events:soon", "needs a number of seconds"),
        ("events:inf", "needs a number of seconds"),
        ("lru", "needs a share of the engine's cache, above 0 and at most 10: lru:0.9"),
        ("lru:0", "needs a share of the engine's cache"),
        ("lru:11", "needs a share of the engine's cache"),
        ("gateway:0", "needs a share of the engine's cache, above 0 and at most 10: gateway:0.9"),
        ("gateway:", "needs a share of the engine's cache"),
    ],
)
def test_a_knowledge_that_does_not_exist_is_one_clear_error(text: str, said: str) -> None:
    with pytest.raises(SimulationError, match=re.escape(said)):
        parse_knowledge(text)


def engines_of(turns: Sequence[Turn], blocks: int = 100) -> tuple[Workload, Replay, list[Engine]]:
    workload = Workload("by hand", SIZE, list(turns), False, 0.0, float("inf"))
    replay = Replay(workload)
    lru = POLICIES["lru"]
    engines = [
        Engine(
            replay,
            blocks * SIZE,
            lambda n: lru(n, workload, PolicySettings()),
            cost=COST,
            queueing=Queueing(in_turn=True),
        )
        for _ in range(2)
    ]
    return workload, replay, engines


def test_all_knows_the_caches_and_the_prefill_that_waits() -> None:
    first, second, third = request("a", range(10)), request("b", range(100, 140)), request("a", range(12), 2)
    workload, _, engines = engines_of([first, second, third])
    known = Everything(workload, engines, COST.prompt_token_s)
    for turn in (first, second):
        known.sent(0, turn, 0.0)
        engines[0].arrive(turn, 0.0)
    assert known.cached(0, third, 0.0) == 10 * SIZE
    assert known.cached(1, third, 0.0) == 0
    assert known.missing(0, third, 0.0) == 2 * SIZE + 1
    assert known.waiting_s(0, 0.05) == pytest.approx(0.161 - 0.05 + 0.641)
    assert known.waiting_s(1, 0.05) == 0.0
    assert (known.in_flight(0), known.in_flight(1)) == (2, 0)


def test_sent_believes_in_the_last_engine_of_a_session() -> None:
    system, own = [1, 2], [3, 4, 5]
    first, again, other = request("a", system + own), request("a", [*system, *own, 6], 2), request("b", [*system, 7])
    workload, _, engines = engines_of([first, again, other])
    known = Sent(workload, engines, COST.prompt_token_s)
    known.sent(0, first, 0.0)
    assert (known.cached(0, again, 0.0), known.cached(1, again, 0.0)) == (5 * SIZE, 0)
    assert known.cached(0, other, 0.0) == 2 * SIZE
    # The other session goes to engine 1: the shared blocks are believed to be at both, the session's own at its own.
    known.sent(1, other, 0.0)
    assert (known.cached(0, again, 0.0), known.cached(1, again, 0.0)) == (5 * SIZE, 2 * SIZE)
    # The session moves: its own blocks are believed to be at the new engine alone.
    known.sent(1, again, 0.0)
    assert (known.cached(0, again, 0.0), known.cached(1, again, 0.0)) == (2 * SIZE, 6 * SIZE)
    known.failed(1)
    known.returned(1)
    assert (known.cached(0, again, 0.0), known.cached(1, again, 0.0)) == (2 * SIZE, 0)


def test_cached_tokens_of_answers_correct_the_prefill_that_waits() -> None:
    turns = [request("a", range(10), number) for number in range(1, 102)]
    workload, _, engines = engines_of(turns)
    known, sent = (kind(workload, engines, COST.prompt_token_s) for kind in (Corrected, Sent))
    for number, turn in enumerate(turns[:-1]):
        for one in (known, sent):
            one.sent(0, turn, float(number))
            one.started(0, turn, float(number), 40)  # of the 160 that are believed to be there
            one.first_token_due(0, turn, float(number))
            one.answered(0, turn, float(number))
    for one in (known, sent):
        one.sent(0, turns[-1], 200.0)
        assert one.missing(0, turns[-1], 200.0) == 1
    assert sent.waiting_s(0, 200.0) == pytest.approx(0.001)
    assert known.waiting_s(0, 200.0) == pytest.approx(0.001 + 0.120, abs=0.002)
    known.failed(0)
    known.returned(0)
    assert known.waiting_s(0, 200.0) == 0.0


def test_text_takes_requests_that_differ_in_tools_alone_for_the_same(tmp_path: Path) -> None:
    tools = ({"type": "function", "function": {"name": name * 40, "parameters": {}}} for name in ("read", "write"))
    words = {"role": "user", "content": "which files changed since the last release? " * 20}
    log = tmp_path / "log.jsonl"
    log.write_text(
        "".join(
            json.dumps({"time": time, "session": str(time), "tools": [tool], "messages": [words]}) + "\n"
            for time, tool in enumerate(tools)
        )
    )
    workload = from_trace(open_trace(log, "chat", texts=True))
    first, second = workload.arrivals
    assert first.contents[0] != second.contents[0]
    assert not open_trace(log, "chat").requests[0].text_blocks
    _, _, engines = engines_of([])
    sent, text = (kind(workload, engines, COST.prompt_token_s) for kind in (Sent, Text))
    for known in (sent, text):
        known.sent(1, first, 0.0)
    assert [sent.cached(engine, second, 1.0) for engine in (0, 1)] == [0, 0]
    assert text.cached(0, second, 1.0) == 0
    assert text.cached(1, second, 1.0) == second.servable(workload.block_tokens) * workload.block_tokens
    with pytest.raises(UsageError, match="a log of the format mooncake has no text of messages: give one of vllm, "):
        open_trace(log, "mooncake", texts=True)


def test_lru_follows_what_is_handed_on_in_a_cache_of_its_share() -> None:
    first, second, third = (request(name, range(at, at + 10)) for name, at in (("a", 0), ("b", 100), ("c", 200)))
    workload, _, engines = engines_of([first, second, third], blocks=20)
    known = OwnLru(workload, engines, COST.prompt_token_s, 0.75)  # 15 blocks
    known.sent(0, first, 0.0)
    assert known.cached(0, first, 0.0) == 0
    known.handed(0, first, 0.0)
    assert known.cached(0, first, 0.0) == 10 * SIZE
    known.answered(0, first, 1.0)
    # The second request takes five blank blocks and the last five of the first one.
    known.sent(0, second, 2.0)
    known.handed(0, second, 2.0)
    assert (known.cached(0, first, 2.0), known.cached(0, second, 2.0)) == (5 * SIZE, 10 * SIZE)
    # There is no room for the third while the second runs; it is there once it is answered.
    known.sent(0, third, 2.0)
    known.handed(0, third, 2.0)
    assert known.cached(0, third, 2.0) == 0
    known.answered(0, second, 3.0)
    known.answered(0, third, 4.0)
    assert known.cached(0, third, 4.0) == 10 * SIZE
    known.failed(0)
    assert known.cached(0, third, 4.0) == 0


def test_prefill_waits_until_the_first_token() -> None:
    first, second = request("a", range(10)), request("b", range(100, 140))
    workload, _, engines = engines_of([first, second])
    known = Sent(workload, engines, COST.prompt_token_s)
    known.sent(0, first, 0.0)
    known.sent(0, second, 0.0)
    known.first_token_due(0, first, 0.161)
    assert known.waiting_s(0, 0.16) == pytest.approx(0.161 + 0.641)
    assert known.waiting_s(0, 0.161) == pytest.approx(0.641)
    assert known.in_flight(0) == 2
    known.answered(0, first, 0.2)
    assert known.in_flight(0) == 1
    known.failed(0)
    assert known.up == [1]
    assert (known.waiting_s(0, 0.2), known.in_flight(0)) == (0.0, 0)


def test_events_come_late_and_an_eviction_ends_the_prefix_there() -> None:
    turn = request("a", range(10))
    workload, _, engines = engines_of([turn])
    known = Events(workload, engines, COST.prompt_token_s, 5.0)
    known.started(0, turn, 1.0, 0)
    assert known.cached(0, turn, 5.9) == 0
    assert known.cached(0, turn, 6.0) == 10 * SIZE
    known.evicted(0, 7.0, [7])
    assert known.cached(0, turn, 11.9) == 10 * SIZE
    assert known.cached(0, turn, 12.0) == 7 * SIZE
    assert known.cached(1, turn, 12.0) == 0


def test_a_restarted_engine_is_cleared_at_once_or_ignored_until_its_numbers_pass() -> None:
    old, new = request("a", range(10)), request("b", range(20, 30))
    workload, _, engines = engines_of([old, new])
    vllm_router = Events(workload, engines, COST.prompt_token_s)
    dynamo = NumberedEvents(workload, engines, COST.prompt_token_s)
    for known in (vllm_router, dynamo):
        known.started(0, old, 0.0, 0)
        known.started(0, old, 0.0, 0)
        assert known.cached(0, old, 0.0) == 10 * SIZE
        known.failed(0)
        known.returned(0)
        known.started(0, new, 1.0, 0)
    assert (vllm_router.cached(0, old, 1.0), vllm_router.cached(0, new, 1.0)) == (0, 10 * SIZE)
    assert (dynamo.cached(0, old, 1.0), dynamo.cached(0, new, 1.0)) == (10 * SIZE, 0)
    for at in (2.0, 3.0):  # the third event is the first that it reads
        dynamo.started(0, new, at, 0)
    assert dynamo.cached(0, new, 3.0) == 10 * SIZE
