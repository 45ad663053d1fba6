"""Benchmark `growth`: figures per request, and a small run with a tiny model."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import growth
from benchmarks.growth_engines import ASKED, BLOCK, FIRST, REPLY, SYSTEM, Conversation
from lpc.errors import UsageError

LOAD = growth.Load(engines=4, rate=10.0, seconds=10.0, warm_s=3.0, capacity=1000, processes=2, shards=4, rule="auto")


def of_a_process(requests: int, latencies_s: list[float], **more: Any) -> dict[str, Any]:
    """Return the figures of a process with two engines."""
    threads = {growth.BACKGROUND: 0.4, growth.SENDER: 0.1, growth.SCHEDULER: 0.3, growth.GRPC: 0.05, "another": 0.01}
    counted = {
        "requests": requests,
        "predictions": requests - 1,
        "failed": 1,
        "blocks_written": 100 * requests,
        "lookups": requests,
    }
    memory = {"empty_mib": 100.0, "idle_mib": 104.0, "rss_mib": 120.0}
    figures = {**counted, **memory, "seconds": 10.0, "latencies_s": latencies_s, "threads_s": threads, "latest_s": 0.01}
    return {**figures, **more}


def test_what_all_processes_used_is_divided_by_their_requests() -> None:
    found = [
        of_a_process(100, [0.010] * 98 + [0.2], cause_unavailable=1),
        of_a_process(100, [0.020] * 99, cause_unavailable=2),
    ]
    used = {"sidecar_s": 0.8, "redis_s": 0.2, "commands": 600, "bytes": 1_600_000}
    row = growth.figures_of(LOAD, found, used, {"blocks": 2000, "redis_bytes": 220_000, "sidecar_mib": 400.0})
    assert (row["requests_s"], row["predictions_s"], row["failed"]) == (20.0, 19.8, 2)
    assert (row["p50_ms"], row["p99_ms"]) == (20.0, 20.0)
    assert (row["redis_commands"], row["redis_bytes"], row["blocks_written"]) == (4.0, 8000, 100.0)
    assert (row["sidecar_ms"], row["redis_ms"], row["background_ms"], row["others_ms"]) == (4.0, 1.0, 4.0, 0.1)
    assert row["processors"] == pytest.approx((0.8 + 0.2 + 2 * 0.86) / 10.0, abs=0.005)
    assert (row["redis_bytes_per_block"], row["engine_mib"], row["engine_idle_mib"]) == (110.0, 10.0, 2.0)
    assert row["causes"] == {"unavailable": 3}


def test_a_conversations_next_prompt_repeats_prompt_and_reply() -> None:
    import random
    from array import array

    conversation = Conversation("a", random.Random(0), array("I", range(70, 70 + 20_000)))
    conversation.ask()
    first, blocks = conversation.tokens[:], conversation.blocks[:]
    assert len(first) == SYSTEM + FIRST + 3 and len(blocks) == len(first) // BLOCK
    conversation.reply()
    conversation.ask()
    assert conversation.tokens[: len(first)] == first and conversation.blocks[: len(blocks)] == blocks
    assert conversation.cached == len(first) + REPLY + 1
    assert len(conversation.tokens) == conversation.cached + ASKED + 3
    assert max(Counter(conversation.blocks).values()) == 1


@pytest.mark.parametrize("wrong", [{"engines": []}, {"engines": [0]}, {"rates": [0.0]}, {"seconds": 0.0}, {"processes": 0}])
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        growth.run(tmp_path, "default", **wrong)


@pytest.mark.nightly
@pytest.mark.parametrize("cluster", [False, True])
def test_no_prediction_of_a_small_load_fails_and_redis_gets_few_commands(tiny_models: Path, *, cluster: bool) -> None:
    figures = growth.run(tiny_models, "tiny", engines=[1, 4], rates=[5.0], seconds=6.0, processes=2, cluster=cluster)
    for row in figures["rows"]:
        assert row["failed"] == row["exceptions"] == row["store_failures"] == row["blocks_dropped"] == 0
        assert row["predictions_s"] > 1 and row["redis_blocks"] > 0
        assert 0 < row["redis_commands"] < 8 and row["redis_bytes"] > 1000
        assert min(row["sidecar_ms"], row["redis_ms"], row["background_ms"]) > 0
