"""The tables of `python -m benchmarks rules-...`: their arithmetic, what their runs count, and what a second run repeats."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rules import runs, trace, worst
from benchmarks.rules.figures import CLASSIC, against_best, best_of, by_seed, paired, singles, table
from benchmarks.rules.runs import rows_of
from lpc_apps.simulator.run import Run, WorkloadSpec, build, run_one


def row(label: str, rate: float, *, workload: str = "w", size: float = 0.1, seed: int = 0) -> dict[str, Any]:
    return {"workload": workload, "label": label, "share": size, "seed": seed, "hit_rate": rate / 100}


def test_a_paired_difference_has_the_standard_error_of_the_differences() -> None:
    found = paired({1: 12.0, 2: 23.0, 3: 31.0}, {3: 30.0, 1: 10.0, 2: 20.0})
    assert found.mean == pytest.approx(2.0)
    assert found.error == pytest.approx(1 / 3**0.5)
    assert str(found) == "+2.00 ± 0.58"


def test_a_difference_of_one_seed_has_no_error() -> None:
    assert str(paired({1: 10.0}, {1: 10.3})) == "-0.30"


def test_seeds_that_differ_are_no_pairs() -> None:
    with pytest.raises(ValueError, match="differ"):
        paired({1: 1.0, 2: 2.0}, {1: 1.0})


def test_the_best_policy_is_chosen_by_its_mean_not_by_seed() -> None:
    rows = [row("a", 10, seed=1), row("a", 30, seed=2), row("b", 25, seed=1), row("b", 14, seed=2)]
    rows += [row("ours", 20, seed=1), row("ours", 30, seed=2)]
    best, difference = against_best(rows, "ours", ["b", "a"], 0.1)
    assert best == "a"
    assert difference.mean == pytest.approx(5.0)
    assert difference.error == pytest.approx(5.0)


def test_the_best_classic_rule_differs_by_size() -> None:
    rates = {0.1: {"arc": 9.0, "mq": 8.0}, 0.2: {"arc": 9.0, "mq": 9.5}}
    rows = [row(label, rates[size].get(label, 5), size=size) for size in rates for label in CLASSIC]
    rows += [row("plugin", 9.25, size=size) for size in rates] + [row("plugin-sidecar", 20, size=size) for size in rates]
    assert [best_of(rows, CLASSIC, size) for size in rates] == ["arc", "mq"]
    found = trace.summary(rows)
    assert [(one["size"], one["best"]) for one in found] == [(0.1, "arc"), (0.2, "mq")]
    assert [one["plugin"] for one in found] == pytest.approx([0.25, -0.25])
    assert found[1]["hit_rate"] == pytest.approx(9.5)


def test_each_single_run_is_compared_with_lru_of_its_own_seed_and_size() -> None:
    rows = [row("lru", 10, seed=1), row("lru", 20, seed=2), row("lru", 30, seed=1, size=0.2)]
    rows += [row("plugin", 11, seed=1), row("plugin", 19.5, seed=2), row("plugin", 30, seed=1, size=0.2)]
    assert [single.gain for single in singles(rows)] == pytest.approx([1.0, -0.5, 0.0])


def runs_of_worst() -> list[dict[str, Any]]:
    rows = [
        row(label, 50, workload=name, seed=seed) for name in ("day", "few-shot") for seed in (1, 2) for label in ("lru", "lfu")
    ]
    gains = {"plugin": (3.0, -0.4), "plugin-sidecar": (2.0, 1.0), "plugin-sidecar, inverted": (0.0, -0.2)}
    for label, (first, second) in gains.items():
        rows += [row(label, 50 + first, workload="day", seed=1), row(label, 50 + second, workload="day", seed=2)]
        rows += [row(label, 50 + first, workload="few-shot", seed=1), row(label, 49, workload="few-shot", seed=2)]
    return rows


def test_the_worst_runs_are_single_runs_and_not_means() -> None:
    found = worst.summary(runs_of_worst())
    assert found["runs"] == 12
    assert found["below"] == 4
    assert [(one["workload"], one["seed"]) for one in found["worst"][:4]] == [("few-shot", 2)] * 3 + [("day", 2)]
    assert found["worst"][3]["gain"] == pytest.approx(-0.4)
    assert found["mean_gain"]["plugin"] == pytest.approx((3.0 - 0.4 + 3.0 - 1.0) / 4)
    assert found["mean_gain_of_all"] == pytest.approx((2.6 + 2.0 + 3.0 + 1.0 - 0.2 - 1.0) / 12)


def test_few_shot_is_compared_with_lfu() -> None:
    rows = [one for one in runs_of_worst() if (one["workload"], one["label"]) != ("few-shot", "lfu")]
    rows += [row("lfu", rate, workload="few-shot", seed=seed) for seed, rate in ((1, 52), (2, 50))]
    assert worst.summary(rows)["lfu"]["plugin"] == pytest.approx((53 + 49) / 2 - 51)


def test_a_table_is_markdown() -> None:
    assert table(["a", "b"], [["long", "1"]]).splitlines() == ["| a    |   b |", "| ---- | --: |", "| long |   1 |"]


def test_worst_counts_after_500_requests() -> None:
    run = next(run for run in worst.runs_of(["few-shot"], [100]) if run.policy == "lru")
    workload, _ = build(run.workload)
    assert run_one(run)["requests"] == len(workload.arrivals) - 500


def test_worst_inverts_the_sidecar_only_and_has_lfu_on_few_shot_only() -> None:
    found = worst.runs_of(["day", "few-shot"], [1, 2])
    assert len(found) == 2 * 7 * (4 + 5)
    assert {run.policy for run in found if run.settings.invert} == {"plugin-sidecar"}
    assert {run.workload.workload for run in found if run.policy == "lfu"} == {"few-shot"}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of Mooncake's kind: 30 requests of two blocks over an hour."""
    lines = [
        {"timestamp": 120_000 * number, "input_length": 1024, "output_length": 1, "hash_ids": [number % 3, 10 + number % 3]}
        for number in range(30)
    ]
    file = tmp_path / "log.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_a_trace_counts_from_the_first_request(log: Path) -> None:
    run = trace.runs_of(log, "mooncake", [0.5])[0]
    assert run_one(run)["requests"] == 30
    assert run_one(Run(WorkloadSpec(trace=log), "lru", 0.5))["requests"] < 30


def test_a_stored_row_is_not_simulated_again(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [Run(WorkloadSpec(trace=log, count_from=0.0), policy, 0.5) for policy in ("lru", "mq")]
    stored = tmp_path / "rows" / "stored.jsonl"
    first = rows_of(wanted[:1], stored, jobs=1)
    with stored.open("a") as file:
        file.write('{"key": "cut')  # as if the command had been killed while it wrote
    seen: list[str] = []

    def counted(run: Run) -> dict[str, Any]:
        seen.append(run.policy)
        return run_one(run)

    monkeypatch.setattr(runs, "run_one", counted)
    both = rows_of(wanted, stored, jobs=1)
    assert seen == ["mq"]
    assert both[0] == first[0]
    assert rows_of(wanted, stored, jobs=1) == both
    assert seen == ["mq"]


def test_a_row_of_other_code_is_simulated_again(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [Run(WorkloadSpec(trace=log, count_from=0.0), "lru", 0.5)]
    stored = tmp_path / "stored.jsonl"
    rows_of(wanted, stored, jobs=1)
    monkeypatch.setattr(runs, "code_digest", lambda: "other")
    rows_of(wanted, stored, jobs=1)
    assert len(stored.read_text().splitlines()) == 2


def test_a_row_of_a_changed_log_is_simulated_again(log: Path, tmp_path: Path) -> None:
    wanted = [Run(WorkloadSpec(trace=log, count_from=0.0), "lru", 0.5)]
    stored = tmp_path / "stored.jsonl"
    before = rows_of(wanted, stored, jobs=1)
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:20]))
    after = rows_of(wanted, stored, jobs=1)
    assert (before[0]["requests"], after[0]["requests"]) == (30, 20)


def test_rows_of_a_policy_are_found_by_seed() -> None:
    rows = [row("lru", 10, seed=1), row("lru", 20, seed=2), row("mq", 99, seed=1), row("lru", 30, seed=1, size=0.2)]
    assert by_seed(rows, "lru", 0.1) == pytest.approx({1: 10.0, 2: 20.0})
