"""What a report says: numbers as people write them, the gain in one sentence, the page."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lpc_apps.commands.cli import app
from lpc_apps.simulator.amounts import seconds, tokens
from lpc_apps.simulator.describe import describe
from lpc_apps.simulator.policies import REGISTRY
from lpc_apps.simulator.report import write_html
from lpc_apps.simulator.summary import QUEUE, derived, pairs, sentence
from lpc_apps.simulator.workload import Cost
from tests.integration.test_learned_policies import trace
from tests.integration.test_simulate import qwen_file


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


def row(policy: str, capacity: int, rate: float, **more: Any) -> dict[str, Any]:
    fixed = {"workload": "w", "think_time_s": None, "seed": 0, "engines": 1, "sticky": True}
    fixed |= {"inverted": False, "by_fraction": False, "capacity_fraction": capacity / 1_000_000}
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


def test_what_follows_from_the_rows_is_right() -> None:
    same = {"requests": 10, "prompt_tokens": 1000, "prefill_throughput_tokens_s": 1000.0}
    found = [row("lru", 100, 0.1, **same), row("lru", 200, 0.3, **same), row("oracle", 100, 0.5, **same)]
    found += [row("value", 100, 0.2, **same), row("value", 100, 0.24, seed=1, **same)]
    ours = next(r for r in derived(found) if r["policy"] == "value")
    assert ours["hit_rate"] == pytest.approx(0.22)
    assert ours["spread"] == pytest.approx(0.02828, abs=1e-4)
    assert ours["gain"] == pytest.approx(1.2)
    assert ours["gap_closed"] == pytest.approx(0.3)
    assert ours["prefill_mean_s"] == pytest.approx(0.1)


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


def test_the_cache_saved_is_found_on_the_policys_own_line() -> None:
    found = {(r["policy"], r["capacity_tokens"]): r for r in rows((0.1, 0.2, 0.45), (0.05, 0.3, 0.4))}
    ours = [found["value", size] for size in (100_000, 200_000, 400_000)]
    # Between 100K and 200K in the logarithm of the size, as the chart draws it.
    assert ours[0]["capacity_saved"] == pytest.approx(1 - 2 ** ((0.1 - 0.05) / 0.25))
    assert ours[1]["capacity_saved"] == pytest.approx(1 - 100 * 2 ** ((0.2 - 0.05) / 0.25) / 200)
    assert ours[2]["capacity_saved"] is None  # no size that was run hits 45%
    assert not any(r["capacity_saved_at_least"] for r in ours)


@pytest.fixture
def page(tmp_path: Path) -> str:
    """A page with every policy there is, at three sizes."""
    found = [row(name, size, 0.1 + 0.01 * n) for n, name in enumerate(REGISTRY) for size in (100_000, 200_000, 400_000)]
    write_html(derived(found), describe(trace(300)), Cost(), tmp_path / "gain.html", 1)
    return (tmp_path / "gain.html").read_text("utf-8")


def test_the_page_needs_no_network_and_no_script(page: str) -> None:
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert "<script" not in page
    assert page.count("<svg") == 2


def test_the_page_has_a_sentence_for_each_size_and_a_row_for_each_policy(page: str) -> None:
    [gain] = re.findall(r'<p class="gain">(.*?)</p>', page)
    assert gain.startswith("With a cache of <strong>200K tokens</strong>")
    assert page.count("<li>With a cache of") == 2
    rows = dict(re.findall(r"<tr[^>]*><th>([^<]+)</th><td>([^<]+)</td>", page))
    assert {name: rows[name] for name in REGISTRY} == {name: f"{10 + n:.1f}%" for n, name in enumerate(REGISTRY)}


@pytest.mark.parametrize(
    "found",
    [
        [row(name, 1000, rate, think_time_s=time) for time in (25.0, 100.0) for name, rate in (("lru", 0.1), ("value", 0.2))],
        [row("lru", 1000, 0.0), row("value", 1000, 0.0)],
        [row("oracle", 1000, 0.2)],
    ],
    ids=["by think time", "nothing hits", "no pair"],
)
def test_a_page_of_few_rows_has_one_gain(found: list[dict[str, Any]], tmp_path: Path) -> None:
    write_html(derived(found), describe(trace(50)), Cost(), tmp_path / "p.html")
    assert (tmp_path / "p.html").read_text("utf-8").count('class="gain"') == 1


def test_lpc_simulate_writes_the_page_for_the_size_that_is_yours(tmp_path: Path) -> None:
    log = qwen_file(tmp_path / "log.jsonl")
    asked = ["simulate", "--trace", str(log), "--format", "qwen", "--policies", "lru,value"]
    asked += ["--capacity", "2%", "--cache", "5%"]
    done = CliRunner().invoke(app, [*asked, "--html", str(tmp_path / "p.html"), "--picture", str(tmp_path / "p.png")])
    assert done.exit_code == 0, done.output
    assert "(5% of this traffic's working set)" in " ".join(done.output.split())
    page = (tmp_path / "p.html").read_text("utf-8")
    assert "<h1>log.jsonl" in page
    assert "(5% of this traffic&#39;s working set)" in re.findall(r'<p class="gain">(.*?)</p>', page)[0]
