"""Benchmark `standard`: AIPerf's parameters and figures, loads that fit, and the comparison with classic rules."""

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import snapshot_download
from typer.testing import CliRunner

from benchmarks import BenchmarkError, aiperf, standard, standard_client
from benchmarks.__main__ import app
from benchmarks.rules.figures import CLASSIC
from lpc_apps.logs.formats import open_trace

INSTALLED = pytest.mark.skipif(bool(aiperf.why_missing()), reason="AIPerf is not installed: make aiperf")
PARAMETERS: dict[str, Any] = {
    "new_tokens_per_turn": {"mu": 7.5, "sigma": 1.2, "mean": 3500.0, "median": 1800.0, "min": None, "max": None, "bias": 1.0},
    "generation_length": {"mu": 5.7, "sigma": 1.0, "mean": 500.0, "median": 300.0, "min": None, "max": None},
    "inter_turn_delay": {
        "agentic_fraction": 0.7,
        "agentic_delay": {"mu": 7.5, "sigma": 0.8, "mean": 2500.0, "median": 1800.0, "min": None, "max": None},
        "human_delay": {"mu": 10.1, "sigma": 0.97, "mean": 40000.0, "median": 25000.0, "min": None, "max": None},
        "max": None,
    },
    "reset": {"base_probability": 0.02, "context_scaling": 2.0},
    "turns": None,
    "max_prompt_tokens": 200000,
    "block_size": 512,
    "cache": {
        "layer1_tokens": 32000,
        "layer1_5_tokens": 20000,
        "layer2": {"mu": 8.5, "sigma": 1.2, "mean": 10000.0, "median": 5000.0, "min": None, "max": None},
        "layer1_5_groups": {"num_groups": 50, "zipf_alpha": 1.2},
    },
    "restart_turn_range": [5, 15],
}
"""Of a manifest of `aiperf synthesize` 0.13.0."""
PROFILED: dict[str, Any] = {
    "aiperf_version": "0.13.0",
    "request_throughput": {"unit": "requests/sec", "avg": 11.081985173635807},
    "request_latency": {"unit": "ms", "avg": 598.75, "p50": 529.38, "p99": 1535.31},
    "request_count": {"unit": "requests", "avg": 665.0},
    "time_to_first_token": {"unit": "ms", "avg": 109.85, "p50": 67.72, "p99": 569.69},
    "benchmark_duration": {"unit": "sec", "avg": 59.92},
    "total_isl": {"unit": "tokens", "avg": 1231900.0},
    "input_token_throughput": {"unit": "tokens/sec", "avg": 20529.169},
    "completed_request_count": {"unit": "requests", "avg": 665.0},
    "error_summary": [],
}
"""Of `profile_export_aiperf.json`, AIPerf 0.13.0."""


def test_lengths_and_delays_are_divided_and_ratios_are_not() -> None:
    found = aiperf.divided(PARAMETERS, 10, 5.0)
    assert found["max_prompt_tokens"] == 20_000 and found["cache"]["layer1_tokens"] == 3_200 and found["block_size"] == 51
    assert found["new_tokens_per_turn"] == {"mean": 350.0, "median": 180.0, "min": None, "max": None, "bias": 1.0}
    assert found["inter_turn_delay"]["human_delay"]["mean"] == 8_000.0
    assert found["inter_turn_delay"]["agentic_fraction"] == 0.7
    assert found["reset"] == PARAMETERS["reset"] and found["restart_turn_range"] == [5, 15] and found["turns"] is None
    assert found["cache"]["layer1_5_groups"] == PARAMETERS["cache"]["layer1_5_groups"]


def test_replies_that_aiperf_would_lengthen_all_have_their_mean() -> None:
    assert aiperf.divided(PARAMETERS, 10, 1.0)["generation_length"]["max"] is None
    short = aiperf.divided(PARAMETERS, 50, 1.0)["generation_length"]
    assert short["mean"] == short["median"] == short["max"] == 10.0


@INSTALLED
def test_equal_seeds_generate_equal_sessions_that_are_read(tmp_path: Path) -> None:
    first, again = (aiperf.synthesized(tmp_path / name, sessions=4, seed=7) for name in ("a", "b"))
    assert first.read_bytes() == again.read_bytes()
    assert first.read_bytes() != aiperf.synthesized(tmp_path / "a", sessions=4, seed=8).read_bytes()
    assert len({request.conversation for request in open_trace(first, "aiperf").requests}) == 4


@INSTALLED
def test_a_load_has_prompts_that_fit_and_short_replies(tmp_path: Path) -> None:
    divisor, _ = standard_client.fitted(4096, float("inf"), 2.0)
    load = standard_client.load_of(tmp_path, divisor, 2, 1.0)
    requests = open_trace(load.file, "aiperf").requests
    assert max(request.input_tokens for request in requests) <= standard_client.FILLED * 4096
    assert max(request.output_tokens for request in requests) <= 500 / divisor
    assert load.contexts == round(2 * sum(request.input_tokens for request in requests) / len(requests))


def test_without_aiperf_the_command_says_what_to_make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(aiperf, "PROGRAM", tmp_path / "aiperf")
    with pytest.raises(BenchmarkError, match="run make aiperf first"):
        aiperf.synthesized(tmp_path, sessions=1, seed=0)


def test_a_part_that_does_not_exist_is_refused() -> None:
    done = CliRunner().invoke(app, ["standard", "--parts", "simulated,gpu"])
    assert done.exit_code and "'gpu' is not one of simulated, engine, client" in str(done.exception)


def test_a_tokenizer_is_found_in_the_cache_without_a_network(tmp_path: Path) -> None:
    tokenizer = tmp_path / "model"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("{}")
    for _ in range(2):
        hub = aiperf.hub_with(tmp_path / "hub", tokenizer)
    found = Path(snapshot_download(aiperf.TOKENIZER, cache_dir=hub, local_files_only=True))
    assert (found / "tokenizer.json").read_text() == "{}"


@pytest.mark.parametrize("context", [4_096, 16_384, 131_072, 262_144])
@pytest.mark.parametrize("room", [float("inf"), 3e6, 3e5, 2e4])
def test_a_load_fits_the_models_context_and_the_memory(context: int, room: float) -> None:
    divisor, at_once = standard_client.fitted(context, room, 2.0)
    assert standard_client.LONGEST / divisor <= standard_client.FILLED * context
    assert standard_client.LEAST_AT_ONCE <= at_once <= standard_client.AT_ONCE
    assert at_once * standard_client.MEAN / divisor / 2.0 <= room


def test_figures_are_read_in_seconds() -> None:
    found = standard_client.figures_of(PROFILED)
    assert found["requests"] == 665 and found["prompt_tokens"] == 1_231_900
    assert found["latency_p99_s"] == pytest.approx(1.53531) and found["first_token_mean_s"] == pytest.approx(0.10985)


def test_failed_and_missing_requests_are_errors() -> None:
    with pytest.raises(BenchmarkError, match="3 of 665 requests failed"):
        standard_client.figures_of({**PROFILED, "error_request_count": {"avg": 3.0}})
    with pytest.raises(BenchmarkError, match="no request was answered"):
        standard_client.figures_of({"benchmark_duration": {"avg": 60.0}})


def test_the_table_compares_each_side_with_stock_of_its_size() -> None:
    one = {**standard_client.figures_of(PROFILED), "cached_share": 0.5, "prompt_tokens_processor_s": 30_000.0}
    rows = [
        {**one, "times": times, "side": side, "prompt_tokens_s": rate}
        for times, side, rate in ((2, "stock", 1000), (2, "plug-in", 1500), (4, "stock", 500), (4, "plug-in", 1500))
    ]
    lines = standard_client.report(rows).splitlines()
    assert "1,500 (1.50)" in lines[3] and "1,500 (3.00)" in lines[5] and "500 (1.00)" in lines[4]


def agents(file: Path, sessions: int, turns: int) -> Path:
    """Write sessions in AIPerf's form: a block that all share, and later 512 new tokens a turn."""
    rows = []
    for session in range(sessions):
        for turn in range(turns):
            fresh = 1000 * (session + 1) + 8 * turn
            row = {"session_id": f"s{session}", "input_length": 4096 if not turn else 512, "output_length": 20}
            ids = [0, *range(fresh, fresh + 7)] if not turn else [fresh + 100]
            rows.append({**row, "hash_ids": ids, **({"delay": 1000.0} if turn else {"timestamp": 0.0})})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_each_policy_runs_under_both_queues_and_the_worst_run_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = [standard.Log("agents", agents(tmp_path / "a.jsonl", 30, 8), "aiperf", seed) for seed in (1, 2)]
    rows = standard.simulated(logs, live=[2.0], at_once=6, jobs=1, stored=tmp_path / "stored.jsonl", requests=150)
    labels = {(row["label"], row["queue"]) for row in rows}
    assert labels == {(label, queue.label) for label in (*CLASSIC, *standard.OURS) for queue in standard.QUEUES.values()}
    found = standard.compared(rows, "plugin")
    mine = standard.those(rows, "plugin", standard.WARM_FIRST.label)
    stock = standard.those(rows, "lru", standard.FIRST_COME.label)
    assert found["throughput"] == [
        one["throughput_tokens_s"] / other["throughput_tokens_s"] for one, other in zip(mine, stock, strict=True)
    ]
    best, points = found[standard.FIRST_COME.label]
    assert sum(points) == pytest.approx(
        sum(
            100 * (one["hit_rate"] - other["hit_rate"])
            for one, other in zip(mine, standard.those(rows, best, "fcfs"), strict=True)
        )
    )
    shown = capsys.readouterr().out
    assert "agents, contexts 2 times the cache" in shown and f"({min(found['throughput']):.2f})" in shown
