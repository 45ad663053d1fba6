"""Tiers behind the cache: what they hold, how long loads take, and what is worth moving before anybody asks."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from eviction_client.curve import KNOTS
from lpc.commands.cli import app
from lpc.simulator.amounts import SimulationError
from lpc.simulator.engine import Result, simulate
from lpc.simulator.policies import REGISTRY, PolicySettings
from lpc.simulator.reuse_classes import ReuseClasses
from lpc.simulator.tiers import PrefetchSpec, Tiering, TierSpec
from lpc.simulator.tiers.order import ByValue, Knowing, Order, Values
from lpc.simulator.tiers.prefetch import Verdict
from lpc.simulator.tiers.spec import parse_prefetches, parse_tiers
from lpc.simulator.tiers.tier import Link, Tier
from lpc.simulator.workload import Turn, Workload
from lpc.simulator.workloads import WORKLOADS
from tests.unit.simulator.test_engine import SIZE, open_workload, replay, turn

MEMORY = TierSpec("memory", 4 * SIZE, 10_000.0)
DISK = TierSpec("disk", 100 * SIZE, 2_000.0, 0.5)


def tier(blocks: int, order: Order | None = None, *, exclusive: bool = False) -> Tier:
    return Tier("memory", blocks, order or Order(), Link(1.0, 0.0), exclusive=exclusive)


def seen(*turns: Turn, memory: TierSpec = MEMORY, blocks: int = 4, **tiering: object) -> Result:
    return replay(open_workload(*turns), blocks, tiering=Tiering((memory, DISK), **tiering))  # type: ignore[arg-type]


def scattered() -> list[Turn]:
    """Return a conversation whose blocks are on disk when it returns, and what drove them there."""
    chats = [turn([n, n + 1, n + 2], float(n), conversation=f"c{n}") for n in range(10, 50, 10)]
    back = turn([10, 11, 12], 100.0, conversation="c10", number=2)
    chats[0].next = back
    return [*chats, back]


def test_a_tier_gives_up_what_was_used_longest_ago_and_hands_it_on() -> None:
    memory = tier(2)
    assert memory.store([1, 2], 0.0) == []
    memory.load([1], 1.0)

    assert memory.store([3], 2.0) == [2]
    assert [content in memory for content in (1, 2, 3)] == [True, False, True]


def test_what_is_loaded_leaves_an_exclusive_tier_and_stays_in_others() -> None:
    for exclusive in (False, True):
        memory = tier(2, exclusive=exclusive)
        memory.store([1], 0.0)
        memory.load([1], 1.0)
        assert (1 in memory) is not exclusive


def test_no_block_is_loaded_behind_a_gap() -> None:
    # 12 and 13 are evicted first; with room for one block behind the cache, 12 is gone when 11 follows.
    first = turn([10, 11, 12], conversation="a")
    result = replay(
        open_workload(first, turn([20, 21, 22], 10.0), turn([10, 11, 12], 20.0)),
        4,
        tiering=Tiering((replace(MEMORY, capacity=SIZE),)),
    )
    assert result.tier_tokens == SIZE  # the root, which was evicted last


def test_loads_follow_one_another_and_prefetches_have_the_time_between() -> None:
    link = Link(100.0, 0.5)
    assert link.load(100, 10.0) == 11.5
    assert link.load(100, 10.0) == 12.5  # a second of it waiting for the first
    assert link.spare(11.0) == 0.0
    assert link.spare(13.0) == pytest.approx(100.0)
    assert link.spare(14.0) == pytest.approx(100.0)


def test_what_comes_from_disk_passes_the_memorys_link_too() -> None:
    result = seen(*scattered())

    assert result.tiers is not None
    assert result.tiers.loaded == {"memory": 0, "disk": 48}
    assert result.ttft[-1] == pytest.approx(1 / 1000 + 48 / 2000 + 0.5)
    slow = replace(MEMORY, tokens_s=10.0)
    assert seen(*scattered(), memory=slow).ttft[-1] == pytest.approx(1 / 1000 + 48 / 10)


def test_a_prefetch_that_knows_the_future_finds_all_in_memory_and_moves_nothing_else() -> None:
    result = seen(*scattered(), prefetch=PrefetchSpec("oracle"))

    assert result.tiers is not None
    assert result.tiers.loaded == {"memory": 48, "disk": 0}
    assert result.ttft[-1] == pytest.approx(1 / 1000 + 48 / 10_000)
    assert (result.tiers.prefetched, result.tiers.used) == (48, 48)


def test_a_prefetch_waits_for_the_loads_that_requests_wait_for() -> None:
    # A load of 4,000 tokens takes the disk's link for two seconds, in which a prefetch of 48 tokens is to be made.
    turns = scattered()
    large = range(1000, 1250)
    busy = [turn(large, 0.0, conversation="large"), turn(large, 94.0, conversation="large", number=2)]
    everything = sorted([*busy, *turns], key=lambda t: t.arrival)
    alone = seen(*everything, blocks=260, memory=replace(MEMORY, capacity=SIZE))
    beside = seen(*everything, blocks=260, memory=replace(MEMORY, capacity=SIZE), prefetch=PrefetchSpec("oracle"))
    assert alone.ttft[-2] == beside.ttft[-2]


def test_what_a_waiting_request_needs_comes_near_while_it_waits() -> None:
    turns = [*scattered()[:-1], turn([60], 99.0, output=30), turn([10, 11, 12], 100.0, conversation="c10", number=2)]
    none, arrival = (seen(*turns, prefetch=PrefetchSpec(kind)) for kind in ("none", "arrival"))

    assert none.waited == arrival.waited == 1
    assert none.ttft[-1] - arrival.ttft[-1] == pytest.approx(48 / 2000 + 0.5 - 48 / 10_000)
    assert arrival.tiers is not None
    assert (arrival.tiers.prefetched, arrival.tiers.used) == (48, 48)


def by_value(*turns: Turn, guard: bool = False, tables: list[list[float]] | None = None) -> tuple[Values, ByValue]:
    """Return a tier's order after turns that ended one second apart."""
    classes = ReuseClasses(100, open_workload(*turns))
    values = Values(classes, 100, guard=guard)
    for at, each in enumerate(turns, 1):
        classes.start(each, float(at))
        classes.finish(each, float(at))
        classes.tables = tables
        values.note(float(at))
    order = ByValue(values)
    order.note(turns[-1])
    return values, order


@pytest.mark.parametrize("guard", [True, False])
def test_while_the_value_is_unknown_or_has_not_earned_its_place_a_tier_evicts_as_stock_does(guard: bool) -> None:
    tables = [[1.0 + number] * len(KNOTS) for number in range(100)] if guard else None
    _, asked = by_value(turn([1, 2]), turn([3]), turn([4], 1.0), guard=guard, tables=tables)
    stock = Order()
    for order in (asked, stock):
        order.enter([1, 2], 1.0)
        order.enter([3], 2.0)
        order.touch([1], 3.0)
        order.enter([4], 4.0)
    assert [asked.evict(1, 5.0) for _ in range(4)] == [stock.evict(1, 5.0) for _ in range(4)] == [[2], [3], [1], [4]]


def test_a_tier_evicts_the_lowest_value_at_the_age_since_the_last_use() -> None:
    # A value that rises with age: the blocks used last are worth the least, and come into the tier first here.
    rising = [[float(place) for place in range(len(KNOTS))]] * 100
    values, order = by_value(turn([1]), turn([2]), turn([3]), tables=rising)
    order.enter([3], 5.0)
    order.enter([1], 6.0)
    order.enter([2], 7.0)

    assert [values.value(content, 8.0) for content in (1, 2, 3)] == sorted(
        (values.value(n, 8.0) for n in (1, 2, 3)), reverse=True
    )
    assert [order.evict(1, 8.0) for _ in range(2)] == [[3], [2]]


def test_blocks_needed_soon_are_evicted_last_whatever_their_value() -> None:
    _, order = by_value(turn([1]), turn([2]), tables=[[1e-3] * len(KNOTS)] * 100)
    order.enter([1], 3.0, soon=True)
    order.enter([2], 4.0)

    assert order.evict(2, 5.0) == [2, 1]


def test_an_order_that_knows_keeps_a_shared_block_while_one_conversation_goes_on() -> None:
    order = Knowing()
    ends, goes_on = turn([1, 2], conversation="a"), turn([1, 3], conversation="b")
    goes_on.next = turn([1, 3], 9.0, conversation="b", number=2)
    for each in (goes_on, ends):
        order.note(each)
    order.enter([1], 1.0)
    order.enter([2], 2.0)
    order.enter([3], 3.0)

    assert order.evict(3, 4.0) == [2, 1, 3]


def test_prefetches_are_moved_once_they_have_been_right_and_no_longer_when_they_are_wrong() -> None:
    verdict = Verdict(0.4)
    assert not verdict.open
    for _ in range(20):
        verdict.judge(100, True)
    assert verdict.open
    wrong = 0
    while verdict.open:
        verdict.judge(100, False)
        wrong += 1
    assert wrong < 20
    for _ in range(200):
        verdict.judge(100, False)
    assert not verdict.open


def generated(name: str, requests: int = 1_500) -> Workload:
    return WORKLOADS[name](0, requests=requests)


def behind(found: Workload, prefetch: PrefetchSpec, *, invert: bool = False) -> Result:
    working_set = found.working_set_tokens()
    specs = parse_tiers(["memory=2%", "disk=40%"])
    tiering = Tiering(tuple(spec.of(working_set) for spec in specs), prefetch=prefetch, invert=invert)
    capacity = round(0.02 * working_set)
    return simulate(
        found, capacity, lambda blocks: REGISTRY["lru"](blocks, found, PolicySettings()), cost=None, tiering=tiering
    )


PUNCTUAL_S = 200.0
TURN_OVER = 700


@cache
def punctual(count: int = 1_100) -> Workload:
    """Return conversations, one every 2 s, that return after 200 s; those from the 700th on look alike and never do."""
    turns = []
    for n in range(count):
        blocks = range(100 * n, 100 * n + 64)
        first = turn(blocks, 2.0 * n, conversation=f"c{n}")
        turns.append(first)
        if n < TURN_OVER:
            first.next = turn(range(100 * n, 100 * n + 66), 2.0 * n + PUNCTUAL_S, conversation=f"c{n}", number=2)
            turns.append(first.next)
    return Workload("punctual", SIZE, sorted(turns, key=lambda t: t.arrival), False, 800.0, float("inf"))


def tiered(prefetch: PrefetchSpec, *, start: float = 800.0, until: float = float("inf"), invert: bool = False) -> Result:
    """Replay them with 20 conversations in the cache, 60 in memory, all others on disk."""
    found = punctual()
    found.count_from, found.until = start, until
    size = 64 * SIZE
    specs = (TierSpec("memory", 60 * size, 200_000.0), TierSpec("disk", 2_000 * size, 50_000.0, 0.005))
    tiering = Tiering(specs, prefetch=prefetch, invert=invert)
    return simulate(found, 20 * size, lambda n: REGISTRY["lru"](n, found, PolicySettings()), tiering=tiering)


def test_predicted_prefetches_are_used_and_stop_when_nobody_returns_any_more() -> None:
    none = tiered(PrefetchSpec(), until=2.0 * TURN_OVER).tiers
    predicted = tiered(PrefetchSpec("predicted", 20_000.0, 0.4), until=2.0 * TURN_OVER).tiers
    assert none is not None
    assert predicted is not None
    assert predicted.used >= 0.6 * predicted.prefetched > 0
    assert np.mean(predicted.returning) < 0.8 * np.mean(none.returning)

    # 200 s after the last ones that return nothing is right any more, and 200 conversations seem due after that.
    wasted = tiered(PrefetchSpec("predicted", 20_000.0, 0.4), start=2.0 * TURN_OVER + PUNCTUAL_S).tiers
    assert wasted is not None
    assert 0 < wasted.prefetched < 80 * 64 * SIZE
    assert wasted.used == 0


def test_inverted_predictions_only_group_conversations_badly() -> None:
    """Each group has the curve of its own reuse, so what is moved is still used."""
    figures = tiered(PrefetchSpec("predicted", 20_000.0, 0.4), until=2.0 * TURN_OVER, invert=True).tiers

    assert figures is not None
    assert figures.used >= 0.6 * figures.prefetched


def test_a_budget_of_bytes_is_kept() -> None:
    moved = [tiered(PrefetchSpec("predicted", rate, 0.4), until=2.0 * TURN_OVER).tiers for rate in (100.0, 20_000.0)]

    assert moved[0] is not None
    assert moved[1] is not None
    assert 0 < moved[0].prefetched < 100.0 * 620.0 < moved[1].prefetched


@pytest.mark.parametrize("name", ["loop", "batch-scan", "adversary", "adversary-irregular"])
def test_on_workloads_made_to_refute_it_prefetch_costs_nothing(name: str) -> None:
    found = generated(name)
    none, predicted = (behind(found, PrefetchSpec(kind, 20_000.0, 0.4)) for kind in ("arrival", "predicted"))

    assert predicted.figures()["ttft_mean_s"] <= 1.005 * none.figures()["ttft_mean_s"]
    assert none.tiers is not None
    assert predicted.tiers is not None
    in_vain = (predicted.tiers.prefetched - predicted.tiers.used) - (none.tiers.prefetched - none.tiers.used)
    assert in_vain <= 0.01 * predicted.prompt_tokens


def test_tiers_and_budgets_are_read_and_refused() -> None:
    assert parse_tiers(["5%"]) == (TierSpec("memory", 0.05),)
    assert parse_tiers(["cpu=1M:100K", "nvme=50%:20K:2.5"]) == (
        TierSpec("cpu", 1_000_000, 100_000.0),
        TierSpec("nvme", 0.5, 20_000.0, 0.0025),
    )
    assert [spec.label for spec in parse_prefetches("none,predicted", "2K,20K", "40%")] == [
        *("none", "predicted 2K/s, 40%", "predicted 20K/s, 40%")
    ]
    for text in ("a=b=1M", "1M:2:3:4", "x y=1M", "1M:5%", "1M:1K:-1", "1M:1K:soon", "0"):
        with pytest.raises(SimulationError):
            parse_tiers([text])
    with pytest.raises(SimulationError, match="named alike"):
        parse_tiers(["a=1M", "a=2M"])
    for kinds, rate, useless in (("sometimes", "1K", "1%"), ("predicted", "5%", "1%"), ("predicted", "1K", "110%")):
        with pytest.raises(SimulationError):
            parse_prefetches(kinds, rate, useless)


@pytest.mark.parametrize(("policy", "hits", "evicted"), [("lru", 1_945_344, 35_315), ("value", 2_038_656, 34_586)])
def test_without_tiers_a_run_is_what_it_was_before_there_were_any(policy: str, hits: int, evicted: int) -> None:
    found = generated("documents")
    capacity = round(0.05 * found.working_set_tokens())
    result = simulate(found, capacity, lambda blocks: REGISTRY[policy](blocks, found, PolicySettings()))

    assert (result.hit_tokens, result.evicted, result.tiers) == (hits, evicted, None)
    assert not [name for name in result.figures() if name.startswith("prefetch_") or name == "tiers"]


def test_table_page_and_picture_show_what_tiers_serve_and_what_was_in_vain(tmp_path: Path) -> None:
    lines = []
    for n in range(300):
        chat, number = n % 60, n // 60
        blocks = [100 * chat + place for place in range(4 + number)]
        lines.append({"timestamp": 10_000 * n, "input_length": 512 * len(blocks), "output_length": 100, "hash_ids": blocks})
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out, page, picture = (tmp_path / name for name in ("out.json", "page.html", "picture.png"))
    options = [
        "--trace",
        str(log),
        "--policies",
        "lru,value",
        "--capacity",
        "10%",
        "--tier",
        "memory=10%",
        "--tier",
        "disk=90%",
    ]
    options += ["--prefetch", "none,oracle", "--tier-policy", "lru,value"]
    options += ["--html", str(page), "--picture", str(picture), "--json", str(out)]
    done = CliRunner().invoke(app, ["simulate", *options])

    assert done.exit_code == 0, done.output
    assert "Tiers behind the cache" in done.output
    summary = json.loads(out.read_text())["summary"]
    assert [(row["policy"], row["tier_policy"], row["prefetch"]) for row in summary] == [
        (policy, order, prefetch)
        for policy in ("lru", "value")
        for order in ("lru", "value")
        for prefetch in ("none", "oracle")
    ]
    stock, oracle = summary[0], summary[1]
    assert stock["served_gain"] == 0.0
    assert stock["tiers"]["disk"] > oracle["tiers"]["disk"]
    assert oracle["ttft_returning_mean_s"] < stock["ttft_returning_mean_s"]
    assert oracle["prefetch_used"] > 0.9
    text = page.read_text()
    assert "The tiers behind the cache" in text
    assert f"<td>{oracle['ttft_returning_mean_s']:.3f}</td>" in text
    assert picture.read_bytes().startswith(b"\x89PNG")
