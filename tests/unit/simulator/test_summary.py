"""What follows from rows: numbers as people write them, the gain in one sentence."""

from typing import Any

import pytest

from eviction_client.observability.misses import UNUSED
from lpc_apps.simulator.amounts import seconds, tokens
from lpc_apps.simulator.summary import BASELINE, MEANS, derived, pairs, sentence, size_for
from lpc_apps.simulator.verdict import verdict


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
    fixed = {"workload": "w", "think_time_s": None, "seed": 0}
    fixed |= {"inverted": False, "by_fraction": False, "capacity_fraction": capacity / 1_000_000}
    computed = 1_000_000 * (1 - rate)
    fixed |= dict.fromkeys(("closed_loop", *MEANS), 0.0)
    fixed |= {
        "requests": 100,
        "refused": 0,
        "prompt_tokens": 1_000_000,
        "prefill_tokens_s": 20_000,
        "prefill_throughput_tokens_s": 1_000_000 / (computed / 20_000),
    }
    sources = {"shared": 0, "own": round(1_000_000 * rate), "evicted": round(1_000_000 * (0.6 - rate)), "changed": 0}
    fixed |= {"sources": sources | {"new": 400_000, "short": 0}}
    fixed |= {"unused": dict.fromkeys(UNUSED, 0) | {"300": sources["evicted"]}}
    return fixed | {
        "policy": policy,
        "capacity_tokens": capacity,
        "hit_rate": rate,
        "ttft_mean_s": 1 - rate,
        "ttft_p99_s": 2.0,
        "queue": "fcfs",
        **more,
    }


def rows(lru: tuple[float, ...], ours: tuple[float, ...]) -> list[dict[str, Any]]:
    sizes = (100_000, 200_000, 400_000)
    found = [row("lru", size, rate) for size, rate in zip(sizes, lru, strict=True)]
    return derived(found + [row("plugin-sidecar", size, rate) for size, rate in zip(sizes, ours, strict=True)])


def test_figures_derived_from_the_rows_are_right() -> None:
    same = {"requests": 10, "prompt_tokens": 1000, "prefill_throughput_tokens_s": 1000.0}
    found = [row("lru", 100, 0.1, **same), row("lru", 200, 0.3, **same), row("oracle", 100, 0.5, **same)]
    found += [row("plugin-sidecar", 100, 0.2, **same), row("plugin-sidecar", 100, 0.24, seed=1, **same)]
    ours = next(r for r in derived(found) if r["policy"] == "plugin-sidecar")
    assert ours["hit_rate"] == pytest.approx(0.22)
    assert ours["spread"] == pytest.approx(0.02828, abs=1e-4)
    assert ours["gain"] == pytest.approx(1.2)
    assert ours["gap_closed"] == pytest.approx(0.3)
    assert ours["prefill_mean_s"] == pytest.approx(0.1)


def test_requests_larger_than_the_cache_are_reported_because_no_rate_counts_them() -> None:
    small, large = derived([row("lru", 10_000, 0.5, requests=30, refused=70), row("lru", 100_000, 0.2)])
    assert (small["fit"], large["fit"]) == (0.3, 1.0)
    texts = [verdict([found], pairs([found], BASELINE), 0) for found in (small, large)]
    assert "70.0% of the requests are larger than this cache" in texts[0]
    assert "larger than this cache" not in texts[1]


def test_the_gain_is_said_with_hits_prefill_first_token_and_the_smaller_cache() -> None:
    found = pairs(rows((0.1, 0.2, 0.4), (0.2, 0.3, 0.5)))
    # 100,000 tokens less to compute in 100 requests: 5 s, so 50 s in 1,000. LRU's 20% are ours at half the size.
    assert sentence(found[1]) == (
        "With a cache of **200K tokens** (20% of the working set, all distinct text) the plug-in serves **30.0%** of prompt "
        "tokens from the cache instead of LRU's 20.0% (1.5 times as many), saves **50 s of prefill** per 1,000 requests (at "
        "20K prompt tokens per second), sends the first token after **0.70 s** instead of 0.80 s, and reaches LRU's 20.0% with "
        "a cache **50% smaller** (100K)."
    )
    # Even the smallest cache that was run hits more than LRU's 20%: nobody knows how small it could be.
    found = pairs(rows((0.1, 0.2, 0.4), (0.25, 0.3, 0.5)))
    assert "at least **50% smaller**" in sentence(found[1])
    assert "smaller" not in sentence(found[0])


def test_the_cache_saved_is_found_on_the_policys_own_line() -> None:
    found = {(r["policy"], r["capacity_tokens"]): r for r in rows((0.1, 0.2, 0.45), (0.05, 0.3, 0.4))}
    ours = [found["plugin-sidecar", size] for size in (100_000, 200_000, 400_000)]
    # Between 100K and 200K in the logarithm of the size, as the chart draws it.
    assert ours[0]["capacity_saved"] == pytest.approx(1 - 2 ** ((0.1 - 0.05) / 0.25))
    assert ours[1]["capacity_saved"] == pytest.approx(1 - 100 * 2 ** ((0.2 - 0.05) / 0.25) / 200)
    assert ours[2]["capacity_saved"] is None  # no size that was run hits 45%
    assert not any(r["capacity_saved_at_least"] for r in ours)


def test_ratios_to_almost_nothing_are_left_out() -> None:
    found = [row("lru", 100, 0.3), row("plugin-sidecar", 100, 0.1), row("oracle", 100, 0.3 + 5e-7)]
    assert next(r for r in derived(found) if r["policy"] == "plugin-sidecar")["gap_closed"] is None
    found = [row("lru", 100, 1e-6), row("plugin-sidecar", 100, 0.1), row("oracle", 100, 0.2)]
    ours = next(r for r in derived(found) if r["policy"] == "plugin-sidecar")
    assert ours["gain"] is None and 0 < ours["gap_closed"] < 1


def test_a_level_curve_saves_no_cache_and_wastes_none() -> None:
    assert [ours["capacity_saved"] for _, ours in pairs(rows((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))] == [0.0, 0.0, 0.0]


def test_a_sentence_about_an_overloaded_engine_has_no_times() -> None:
    ((lru, ours), *_) = pairs(rows((0.1, 0.2, 0.4), (0.2, 0.3, 0.5)))
    said = sentence((lru | {"prefill_load": 1.6}, ours | {"prefill_load": 1.5, "ttft_mean_s": 0.1}))
    assert "first token" not in said and said.endswith("The load exceeds one engine, so times are left out.")
    assert "first token" in sentence((lru, ours | {"ttft_mean_s": 0.1}))


def said(lru: tuple[float, ...], ours: tuple[float, ...], at: int = 1, **more: Any) -> str:
    found = [row | more for row in rows(lru, ours)]
    return verdict(found, pairs(found), at).replace("**", "")


def test_the_paragraph_begins_with_what_is_possible_and_what_is_lost() -> None:
    text = said((0.1, 0.2, 0.4), (0.2, 0.3, 0.5))
    assert text.startswith(
        "An infinite cache would serve 60.0%: 40.0% of prompt tokens are new text, which no cache has. LRU loses 40.0% by "
        "eviction, most of it unused for 1 to 5 min. With a cache of 200K tokens"
    )
    assert "LRU reaches the plug-in's 30.0% with about 283K tokens." in text
    assert "It gains a point or more up to the largest size that was run, 400K tokens." in text


def test_one_size_says_nothing_of_others() -> None:
    for ours, pays in (((0.3,) * 3, True), ((0.2,) * 3, False)):
        (_, pair, _) = pairs(found := rows((0.2, 0.2, 0.2), ours))
        text = verdict(found, [pair], 0)
        assert "that was run" not in text and text.endswith(".")
        assert ("It does not pay at this size" in text) is not pays


@pytest.mark.parametrize(
    ("lru", "ours", "at", "text"),
    [
        ((0.1, 0.2, 0.5), (0.2, 0.3, 0.505), 1, "It would not pay with a cache of 400K tokens or more: there it gains less"),
        ((0.1, 0.2, 0.5), (0.1, 0.3, 0.4), 1, "It would not pay with a cache of 400K tokens or more, or 100K or less: there"),
        (
            (0.1, 0.2, 0.4),
            (0.2, 0.205, 0.4),
            1,
            "at this size: another order gains less than one point on this traffic.",
        ),
        ((0.1, 0.2, 0.4), (0.2, 0.205, 0.4), 1, "It would with a cache of 100K tokens."),
        ((0.1, 0.2, 0.595), (0.2, 0.3, 0.6), 2, "not pay at this size: LRU is within 0.5 points of an infinite cache."),
        ((0.1, 0.2, 0.595), (0.2, 0.3, 0.6), 2, "It would with caches of 100K to 200K tokens."),
        ((0.1, 0.2, 0.4), (0.1, 0.1, 0.1), 0, "It does at no size that was run."),
    ],
)
def test_the_paragraph_says_when_the_plug_in_would_not_pay(
    lru: tuple[float, ...], ours: tuple[float, ...], at: int, text: str
) -> None:
    assert text in said(lru, ours, at)


def test_text_that_returns_late_needs_a_larger_cache() -> None:
    text = said((0.1, 0.2, 0.4), (0.1, 0.2, 0.4), unused=dict.fromkeys(UNUSED, 0.0) | {"+Inf": 0.3})
    assert "most evicted text returns after more than 20 minutes, so a larger cache helps and another order does not" in text


def test_an_idle_engine_and_drawn_times_are_named() -> None:
    busy, idle = (said((0.1, 0.2, 0.4), (0.2, 0.3, 0.5), prefill_load=load) for load in (0.6, 0.2))
    assert "busy 20% of the time, so hits save waiting, not engines" in idle and "busy" not in busy
    drawn = said((0.1, 0.2, 0.4), (0.2, 0.3, 0.5), think_time_s=100.0)
    assert "does not predict your gain" in drawn and "does not predict" not in busy


def test_without_the_plug_in_the_paragraph_says_what_is_possible() -> None:
    found = derived([row("lru", 100_000, 0.1)])
    text = verdict(found, pairs(found, BASELINE), 0)
    assert text.startswith("An infinite cache would serve 60.0%") and text.endswith("1 to 5 min.")


def test_a_cache_that_is_too_small_or_large_enough_is_named() -> None:
    empty = row("lru", 100, 0.0, sources=dict.fromkeys(("shared", "own", "evicted", "changed", "new", "short"), 0))
    full = row("lru", 100_000, 0.6)
    texts = [verdict(found, pairs(found, BASELINE), 0) for found in (derived([empty]), derived([full]))]
    assert texts[0] == "No request that counts fits into a cache of 100 tokens."
    assert texts[1].endswith("LRU loses nothing by eviction.")


def test_without_a_sidecar_the_plug_in_alone_is_compared() -> None:
    found = derived([row("lru", 100_000, 0.1), row("plugin", 100_000, 0.2), row("plugin-sidecar", 200_000, 0.3)])
    assert pairs(found) == []
    found = derived([row("lru", 100_000, 0.1), row("plugin", 100_000, 0.2)])
    assert [ours["policy"] for _, ours in pairs(found)] == ["plugin"]


def test_the_size_for_a_hit_rate_is_known_only_within_the_sizes_that_were_run() -> None:
    found = rows((0.1, 0.2, 0.4), (0.2, 0.3, 0.5))
    assert [size_for(found, "lru", rate) for rate in (0.05, 0.41)] == [None, None]
    assert size_for(found, "lru", 0.2) == pytest.approx(200_000)
    assert size_for(found, "arc", 0.2) is None


def test_sizes_in_tokens_and_in_shares_are_one_curve() -> None:
    def at(policy: str, size: int, rate: float, by_fraction: bool) -> dict[str, Any]:
        return row(policy, size, rate, by_fraction=by_fraction)

    found = derived(
        [
            *(at("lru", size, rate, share) for size, rate, share in ((100_000, 0.1, True), (150_000, 0.2, False))),
            *(at("plugin", size, rate, share) for size, rate, share in ((100_000, 0.2, True), (150_000, 0.3, False))),
        ]
    )
    (ours,) = (r for r in found if (r["policy"], r["capacity_tokens"]) == ("plugin", 150_000))
    assert ours["capacity_saved"] == pytest.approx(1 - 100_000 / 150_000) and not ours["capacity_saved_at_least"]


def test_a_size_that_nobody_gave_is_named_in_tokens_and_gib_of_a_model() -> None:
    found = rows((0.1, 0.2, 0.4), (0.2, 0.205, 0.4))
    given, assumed = (verdict(found, pairs(found), 1, assumed=one) for one in (False, True))
    assert assumed.endswith(given) and "`--cache`" in assumed and "`GPU KV cache size`" in assumed
    size = pairs(found)[1][0]["capacity_tokens"]
    assert assumed.startswith("**No cache size was given**") and f"({size / 2**13:.1f} GiB" in assumed
