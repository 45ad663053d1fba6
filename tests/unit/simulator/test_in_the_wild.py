"""The figures of ATC'25, section 3, on logs whose figures are known, and on odd ones."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from lpc_apps.logs.traces import Trace, TracedRequest
from lpc_apps.logs.traces.request import turn_bucket
from lpc_apps.simulator.describe import describe
from lpc_apps.simulator.ideal_size import ideal_size
from lpc_apps.simulator.in_the_wild import MOST_TYPES, in_the_wild, quantile
from lpc_apps.simulator.reuse_laws import FEWEST, classes_by_turn
from lpc_apps.simulator.workload import from_trace

HOUR = 3600.0


def request(
    arrival: float, conversation: str, turn: int, blocks: Sequence[int], category: str = "text", user: str = "", size: int = 16
) -> TracedRequest:
    return TracedRequest(arrival, size * len(blocks), 1, tuple(blocks), conversation, turn, category, user=user)


def log_of(*requests: TracedRequest, start: float | None = None, size: int = 16) -> Trace:
    return Trace("log", size, list(requests), start=start)


def wild(*requests: TracedRequest, start: float | None = None, size: int = 16) -> dict[str, Any]:
    trace = log_of(*requests, start=start, size=size)
    return in_the_wild(trace, from_trace(trace))


KNOWN = (
    request(0.0, "a", 1, (1, 2, 3)),
    request(10.0, "b", 1, (1, 2, 4), "file"),
    request(100.0, "a", 2, (1, 2, 3, 5, 6)),
    request(200.0, "c", 1, (7, 8)),
)
"""`a` has two turns, whose prompts share blocks with `b`. At least one token of each prompt is computed."""
BEFORE_MIDNIGHT = 86_400.0 - 90.0


def test_hits_are_counted_by_kind_of_request_and_by_who_used_the_block_last() -> None:
    assert wild(*KNOWN)["kinds"] == {
        "single": {"requests": 2, "tokens": 5 * 16, "hits": 2 * 16, "own": 0},
        "first": {"requests": 1, "tokens": 3 * 16, "hits": 0, "own": 0},
        "later": {"requests": 1, "tokens": 5 * 16, "hits": 3 * 16, "own": 16},  # `b` used blocks 1 and 2 last
    }


def test_a_turn_whose_predecessors_the_log_lacks_is_a_later_one() -> None:
    kinds = wild(request(0.0, "a", 4, (1,)), request(1.0, "b", 1, (2,)))["kinds"]
    assert {kind: of["requests"] for kind, of in kinds.items()} == {"single": 1, "first": 0, "later": 1}


def test_multi_turn_shares_and_next_turns_are_by_type_and_time() -> None:
    # The last quarter of the log, from second 150 on, may have successors after it.
    assert wild(*KNOWN, start=BEFORE_MIDNIGHT)["types"] == {
        "text": {
            "requests": 3,
            "later": 1 / 3,
            "conversations": 2,
            "multi_turn": 1 / 2,
            "next_turn": {"23:58": {"turns": 1, "share": 1.0}, "00:00": {"turns": 1, "share": 0.0}},
        },
        "file": {
            "requests": 1,
            "later": 0.0,
            "conversations": 1,
            "multi_turn": 0.0,
            "next_turn": {"23:58": {"turns": 1, "share": 0.0}},
        },
    }


def test_hits_and_lives_are_in_the_order_of_time_across_midnight() -> None:
    found = wild(*KNOWN, start=BEFORE_MIDNIGHT)
    assert (found["interval_s"], found["of_day"]) == (60, False)
    assert list(found["over_time"].items()) == [
        ("23:58", {"requests": 2, "tokens": 96, "hits": 32, "later": 0, "life_p50_s": 100.0}),
        ("00:00", {"requests": 1, "tokens": 80, "hits": 48, "later": 48, "life_p50_s": None}),
        ("00:01", {"requests": 1, "tokens": 32, "hits": 0, "later": 0, "life_p50_s": None}),
    ]


def test_hours_of_several_days_count_together_in_the_order_of_the_day() -> None:
    at = [0.0, 5.0, 2 * HOUR, 24 * HOUR, 72 * HOUR + 1.0]  # from 22:30 on
    found = wild(*(request(time, f"c{n}", 1, (n,)) for n, time in enumerate(at)), start=22.5 * HOUR)
    assert found["of_day"]
    assert {time: of["requests"] for time, of in found["over_time"].items()} == {"00:00": 1, "22:00": 4}
    assert list(found["over_time"]) == ["00:00", "22:00"]


@pytest.mark.parametrize(
    ("hours", "width"), [(0.3, 60), (1.0, 300), (5.7, 900), (5.8, 3600), (23.0, 3600), (24.0, 3600), (500.0, 3600)]
)
def test_there_are_at_most_24_intervals(hours: float, width: int) -> None:
    requests = [request(hours * HOUR * n / 999, f"c{n}", 1, (n,)) for n in range(1000)]
    found = wild(*requests, start=1.7e9)
    assert found["interval_s"] == width
    assert 7 <= len(found["over_time"]) <= 24
    assert sum(of["requests"] for of in found["over_time"].values()) == 1000


def test_reuses_have_the_type_of_the_use_before_and_lives_that_of_the_last_use() -> None:
    found = wild(*KNOWN)
    reuse, life = found["reuse_within"], found["life_within"]
    assert reuse["text"]["blocks"] == 3 and reuse["file"]["blocks"] == 2
    assert (reuse["text"]["within_s"]["10"], reuse["text"]["within_s"]["120"]) == (2 / 3, 1.0)
    assert (reuse["file"]["within_s"]["60"], reuse["file"]["within_s"]["120"]) == (0.0, 1.0)
    assert life["text"]["blocks"] == 3 and life["text"]["within_s"]["60"] == 0.0 and list(life["text"]["within_s"])[-1] == "120"
    assert life["file"] == {"blocks": 0, "within_s": {}}


def test_the_stride_is_what_other_prompts_read_between_two_uses() -> None:
    # Blocks 1 and 2 are used by neighbouring requests; between the two uses of block 3 the prompt of `b` is read.
    assert wild(*KNOWN)["offsets"] == {"0": {"uses": 13, "reused": 5 / 13, "stride_p50_tokens": 0.0, "stride_p90_tokens": 48.0}}


def test_a_prompt_is_divided_at_the_offsets() -> None:
    long = [request(float(time), f"c{time}", 1, range(10), size=512) for time in range(2)]
    other = request(0.5, "d", 1, range(100, 104), size=512)
    offsets = wild(long[0], other, long[1], size=512)["offsets"]
    assert {offset: (of["uses"], of["reused"], of["stride_p50_tokens"]) for offset, of in offsets.items()} == {
        "0": (2 * 2 + 2, 2 / 6, 2048.0),
        "1000": (2 * 6 + 2, 6 / 14, 2048.0),
        "4000": (2 * 2, 2 / 4, 2048.0),
    }


def test_skew_is_the_part_that_the_most_reused_blocks_have() -> None:
    # Of eight blocks two are reused twice and one once.
    blocks = wild(*KNOWN)["skew"]["blocks"]
    assert (blocks["0.1"], blocks["0.3"], blocks["0.5"], blocks["1"]) == (
        pytest.approx(0.8 * 2 / 5),
        pytest.approx((2 * 2 + 0.4) / 5),
        1.0,
        1.0,
    )


def test_skew_by_user_needs_users() -> None:
    users = [request(float(n), f"c{n}", 1, (1, n + 2), user=f"u{n % 2 and n}") for n in range(9)]  # u0 has five of them
    skew = wild(*users)["skew"]
    assert skew["turns"]["0.2"] == pytest.approx(5 / 9) and skew["hits"]["1"] == 1.0
    assert set(wild(*KNOWN)["skew"]) == {"blocks"}


def test_infrequent_types_count_together_and_a_log_without_types_has_one() -> None:
    many = [request(float(n), f"c{n}", 1, (n,), f"type{min(n, 9)}") for n in range(12)]
    assert set(wild(*many)["types"]) >= {"type9", "(others)"} and len(wild(*many)["types"]) == MOST_TYPES + 1
    buckets = [request(float(n), "a", n + 1, range(n + 1), turn_bucket(n + 1)) for n in range(6)]
    assert list(wild(*buckets)["types"]) == ["(all)"]
    assert list(wild(request(0.0, "a", 1, (1,), ""))["types"]) == ["(none)"]


def test_a_quantile_counts_weights() -> None:
    assert quantile([], 0.5) is None
    values = [(3.0, 1), (1.0, 8), (2.0, 1)]
    assert [quantile(values, share) for share in (0.1, 0.5, 0.8, 0.9, 1.0)] == [1.0, 1.0, 1.0, 2.0, 3.0]


def chains(
    times: Sequence[float | None], *, blocks: int = 1, until: float = 30_000.0, category: str = "text"
) -> list[TracedRequest]:
    """Return prompts at 0 that share nothing, each used again after a time, or never; and another request that ends the log."""
    found = [
        request(time, f"c{n}", turn, range(100 * n, 100 * n + blocks), category)
        for n, again in enumerate(times)
        for turn, time in ((1, 0.0), (2, again))
        if time is not None
    ]
    return [*sorted(found, key=lambda each: each.arrival), request(until, "end", 1, (-5,), "end")]


def classes(*requests: TracedRequest) -> dict[tuple[str, int], dict[str, Any]]:
    trace = log_of(*requests)
    return {(of["type"], of["turn"]): of for of in classes_by_turn(trace, from_trace(trace))}


def test_the_data_are_the_share_of_blocks_used_again_and_blocks_that_wait_are_censored() -> None:
    # 60 blocks are used again after 50 s; 60 others are not in the 200 s of the log.
    found = classes(*chains([50.0, None], blocks=60, until=200.0))
    first = found["text", 1]
    assert (first["requests"], first["blocks"], first["reused"], first["reuse_p50_s"]) == (2, 120, 60, 50.0)
    assert dict(first["data"])[45.0] == 0.0 and dict(first["data"])[60.0] == pytest.approx(0.5)
    assert first["data"][-1][0] == 180.0
    assert found["text", 2]["hit_rate"] == 59 / 60 and found["text", 2]["law"] is None and found["text", 2]["reused"] == 0


def test_uses_that_follow_within_a_moment_do_not_count() -> None:
    first = classes(*chains([0.2], blocks=60, until=10.0))["text", 1]
    assert (first["blocks"], first["reused"], first["law"]) == (0, 0, None)


def test_exponential_times_fit_their_law_and_others_do_not() -> None:
    count, q, tau = 1000, 0.6, 120.0
    exponential = [-tau * math.log(1 - (n + 0.5) / (q * count)) for n in range(int(q * count))]
    law = classes(*chains([*exponential, *[None] * 400]))["text", 1]["law"]
    assert law["q"] == pytest.approx(q, abs=0.01) and law["tau_s"] == pytest.approx(tau, rel=0.03) and law["apart"] < 0.01
    soon_or_late = [2.0] * 300 + [1500.0] * 300
    apart = classes(*chains([*soon_or_late, *[None] * 400]))["text", 1]["law"]["apart"]
    # At 2.5 s the data are at 30%, and an exponential law with a mean of minutes is near 0.
    assert 0.25 < apart < 0.31


def test_a_class_with_few_reuses_has_no_law() -> None:
    few = classes(*chains([10.0] * (FEWEST - 1) + [None] * 100))["text", 1]
    enough = classes(*chains([10.0] * FEWEST + [None] * 100))["text", 1]
    assert few["law"] is None and enough["law"] is not None


def test_later_turns_share_a_class() -> None:
    turns = [request(10.0 * n, "a", n + 1, range(n + 1)) for n in range(9)]
    found = classes(*turns)
    assert {of: each["requests"] for of, each in found.items()} == {("text", n): 1 for n in range(1, 5)} | {("text", 5): 5}
    assert found["text", 1]["next_turn"] == 1.0 and found["text", 5]["next_turn"] == 1.0


def test_the_smallest_size_that_reaches_the_ideal_of_a_loop_is_the_working_set() -> None:
    # Two prompts of ten blocks in turn: below 20 blocks LRU evicts each before it returns.
    prompts = [request(100.0 * n, f"c{n}", 1, range(20 * (n % 2), 20 * (n % 2) + 10)) for n in range(8)]
    found = ideal_size(from_trace(log_of(*prompts)))
    assert found["ideal_hit_rate"] == pytest.approx(6 * 9 / 80)
    # 50% of the hits are five of nine blocks of each prompt, and 100% leave out the last one, which is computed.
    assert found["reach"] == {"0.5": 240, "0.9": 304, "0.99": 304, "1": 304}
    assert [size["hit_rate"] for size in found["sizes"] if size["tokens"] <= 160] == [0.0] * 5


class Lru:
    """A cache of single blocks, the least recently used first."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.blocks: dict[int, None] = {}

    def use(self, chain: Sequence[int], servable: int) -> int:
        hits = next((n for n, block in enumerate(chain[:servable]) if block not in self.blocks), servable)
        for block in reversed(chain):  # the deepest is evicted first
            self.blocks.pop(block, None)
            self.blocks[block] = None
        for block in [*self.blocks][: max(len(self.blocks) - self.room, 0)]:
            del self.blocks[block]
        return hits


@pytest.mark.parametrize("seed", range(8))
def test_hits_by_size_are_those_of_a_cache_of_single_blocks(seed: int) -> None:
    random = Random(seed)
    prefixes = [(), *((n,) for n in range(3))]
    requests, known, number = [], list(prefixes), 10
    for at in range(60):
        start = random.choice(known)
        start = start[: random.randint(0, len(start))]
        more = random.randint(1, 4)
        chain = (*start, *range(number, number + more))
        number += more
        known.append(chain)
        requests.append(replace(request(float(at), f"c{at}", 1, chain), output_tokens=random.choice((1, 40))))
    workload = from_trace(log_of(*requests))
    found = ideal_size(workload)
    tokens = sum(each.input_tokens for each in requests)
    for size in found["sizes"]:
        cache = Lru(size["tokens"] // 16)
        hits = sum(cache.use(turn.all_contents, turn.servable(16)) for turn in workload.turns())
        assert size["hit_rate"] == pytest.approx(16 * hits / tokens)
    assert found["ideal_hit_rate"] > 0


def test_a_log_without_hits_reaches_nothing() -> None:
    found = ideal_size(from_trace(log_of(*(request(float(n), f"c{n}", 1, (2 * n, 2 * n + 1)) for n in range(5)))))
    assert found["ideal_hit_rate"] == 0.0 and set(found["reach"].values()) == {None}


ODD = {
    "one request": [request(0.0, "a", 1, (1,))],
    "no full block": [TracedRequest(0.0, 3, 0, (1,), "a", 1, "text")],
    "no times": [request(0.0, f"c{n % 3}", n // 3 + 1, range(n // 3 + 1)) for n in range(9)],
    "all single": [request(float(n), f"c{n}", 1, (n,)) for n in range(50)],
    "not linkable": [TracedRequest(float(n), 32, 1, (1, n + 2), f"c{n}", 1, "text", linkable=False) for n in range(9)],
    "years": [request(1e8 * n, "a", n + 1, range(n + 1)) for n in range(4)],
    "same prompt": [request(float(n), f"c{n}", 1, (1, 2, 3)) for n in range(100)],
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("start", [None, 0.0, 1.75e9 + 0.9])
def test_odd_logs_are_described(name: str, start: float | None) -> None:
    trace = log_of(*ODD[name], start=start)
    found = json.loads(json.dumps(describe(trace, from_trace(trace)), allow_nan=False))
    kinds = found["kinds"].values()
    assert sum(of["requests"] for of in kinds) == sum(of["requests"] for of in found["over_time"].values()) == len(ODD[name])
    hits = sum(of["hits"] for of in kinds)
    assert hits == sum(of["hits"] for of in found["over_time"].values())
    assert hits / sum(of["tokens"] for of in kinds) == pytest.approx(found["ideal_hit_rate"])
