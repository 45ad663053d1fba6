"""What a report says: figures as people write them, the gain in one sentence, names at lines that are not over one another."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc.simulator.report.gain import nearest, pairs, sentence
from lpc.simulator.report.hit_rates import chart_of
from lpc.simulator.report.labels import apart
from lpc.simulator.report.units import about, percent, seconds, tokens
from lpc.simulator.summary import QUEUE, derived


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *[(512, "512"), (1_000, "1K"), (1_500, "1.5K"), (160_000, "160K"), (875_003, "875K"), (999_960, "1M")],
        *[(1_234_567, "1.2M"), (17_500_058, "17.5M"), (7_000_023, "7M"), (320_000_000, "320M"), (2_000_000_000, "2G")],
    ],
)
def test_tokens_are_written_as_people_write_them(count: int, text: str) -> None:
    assert tokens(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(0.0483, "48 ms"), (0.474, "0.47 s"), (4.2, "4.2 s"), (48.9, "49 s"), (66, "66 s"), (474, "7.9 min")],
        *[(3600, "60 min"), (7_200, "2 h"), (200_000, "2.3 days")],
    ],
)
def test_times_are_written_as_people_write_them(value: float, text: str) -> None:
    assert seconds(value) == text


def test_shares_are_written_as_people_write_them() -> None:
    assert [percent(share) for share in (0.05431, 0.4, 1)] == ["5.4%", "40.0%", "100.0%"]
    assert [about(share) for share in (0.494, 0.02, 0.005, 0.0001, 0)] == ["49%", "2%", "0.5%", "<0.1%", "0%"]


def row(policy: str, capacity: int, rate: float, **more: Any) -> dict[str, Any]:
    fixed = {"workload": "w", "think_time_s": None, "seed": 0, "engines": 1, "sticky": True, "tier_tokens": 0, "tier_rate": 0.0}
    fixed |= {"predictor_gib": 0.0, "inverted": False, "by_fraction": False, "capacity_fraction": capacity / 1_000_000}
    computed = 1_000_000 * (1 - rate)
    fixed |= {"requests": 100, "prompt_tokens": 1_000_000, "prefill_throughput_tokens_s": 1_000_000 / (computed / 20_000)}
    return fixed | {
        "policy": policy,
        "capacity_tokens": capacity,
        "hit_rate": rate,
        "ttft_mean_s": 1 - rate,
        "ttft_p99_s": 2.0,
        **dict.fromkeys(("closed_loop", "throughput_tokens_s", "latency_mean_s", "latency_p99_s", "prefill_load", *QUEUE), 0.0),
        "queue": "fcfs",
        "worst_slowdown": None,
        **more,
    }


def rows(lru: tuple[float, ...], ours: tuple[float, ...]) -> list[dict[str, Any]]:
    sizes = (100_000, 200_000, 400_000)
    found = [row("lru", size, rate) for size, rate in zip(sizes, lru, strict=True)]
    return derived(found + [row("value", size, rate) for size, rate in zip(sizes, ours, strict=True)])


def test_the_gain_is_said_with_hits_prefill_first_token_and_the_smaller_cache() -> None:
    found = pairs(rows((0.1, 0.2, 0.4), (0.2, 0.3, 0.5)))
    # 100,000 tokens less to compute in 100 requests: 5 s, so 50 s in 1,000. LRU's 20% are ours at half the size.
    assert sentence(found[1]) == (
        "With a cache of **200K tokens** (20% of this traffic's working set) the plug-in serves **30.0%** of prompt tokens "
        "from the cache instead of LRU's 20.0% (1.5 times as many), saves **50 s of prefill** per 1,000 requests, sends the "
        "first token after **0.70 s** instead of 0.80 s, and hits as much as LRU does with a cache **50% smaller**."
    )
    # Even the smallest cache that was run hits more than LRU's 20%: nobody knows how small it could be.
    found = pairs(rows((0.1, 0.2, 0.4), (0.25, 0.3, 0.5)))
    assert "at least **50% smaller**" in sentence(found[1])
    assert "smaller" not in sentence(found[0])


def test_no_gain_and_a_loss_are_said_as_what_they_are() -> None:
    found = pairs(rows((0.1, 0.2, 0.4), (0.1001, 0.18, 0.5)))
    assert "hits what LRU hits" in sentence(found[0])
    assert "less than LRU's 20.0%" in sentence(found[1])
    assert all("nothing is gained" in sentence(pair) for pair in found[:2])


def test_the_cache_saved_is_found_on_the_policys_own_line() -> None:
    found = {(r["policy"], r["capacity_tokens"]): r for r in rows((0.1, 0.2, 0.45), (0.05, 0.3, 0.4))}
    ours = [found["value", size] for size in (100_000, 200_000, 400_000)]
    # Between 100K and 200K in the logarithm of the size, as the chart draws it.
    assert ours[0]["capacity_saved"] == pytest.approx(1 - 2 ** ((0.1 - 0.05) / 0.25))
    assert ours[1]["capacity_saved"] == pytest.approx(1 - 100 * 2 ** ((0.2 - 0.05) / 0.25) / 200)
    assert ours[2]["capacity_saved"] is None  # no size that was run hits 45%
    assert not any(r["capacity_saved_at_least"] for r in ours)


def test_the_size_that_is_spoken_of_is_the_nearest_or_the_middle_one() -> None:
    found = pairs(rows((0.1, 0.2, 0.4), (0.2, 0.3, 0.5)))
    assert [nearest(found, size) for size in (None, 90_000, 0.39, 10**9)] == [1, 0, 2, 2]
    assert nearest([], 1) == 0


def test_the_chart_takes_the_best_policy_that_can_run_and_leaves_the_others_to_who_asks() -> None:
    found = [row(name, size, rate) for size in (1000, 2000) for name, rate in (("lru", 0.1), ("value", 0.3), ("wa", 0.15))]
    found += [row(name, size, rate) for size in (1000, 2000) for name, rate in (("lpc", 0.2), ("oracle", 0.5), ("belady", 0.6))]
    chart = chart_of(derived(found))
    assert chart.best == "lpc"
    assert chart.others == ["belady", "wa"]
    assert [name for _, name in chart.ticks()] == ["1K\n0.1%", "2K\n0.2%"]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.floats(0.1, 10))
def test_names_at_lines_keep_order_distance_and_bounds(wanted: list[float], gap: float) -> None:
    placed = apart(wanted, gap, 0, 100)
    gap = min(gap, 100 / max(len(wanted) - 1, 1))
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i], placed[i]))
    assert all(placed[b] - placed[a] >= gap - 1e-6 for a, b in pairwise(order))
    assert all(-1e-6 <= place <= 100 + 1e-6 for place in placed)


def test_names_that_have_room_stay_where_their_lines_end() -> None:
    assert apart([10, 50, 90], 5, 0, 100) == pytest.approx([10, 50, 90])
    assert apart([50, 50], 10, 0, 100) == pytest.approx([45, 55])
