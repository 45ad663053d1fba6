"""The tables of `python -m benchmarks rules-...`: their arithmetic, what their runs count, and what a second run repeats."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rules import agents, chat, runs, trace, worst
from benchmarks.rules.figures import CLASSIC, against_best, best_of, by_seed, paired, singles, table
from benchmarks.rules.runs import rows_of
from lpc_apps.simulator.conversations import load_sample
from lpc_apps.simulator.run import SimulationRun, WorkloadSpec, build, run_one


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
    rows = [row(label, 50, workload=name, seed=seed) for name in ("day", "few-shot") for seed in (1, 2) for label in CLASSIC]
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


def test_the_page_has_means_of_hit_rates_and_a_picture() -> None:
    rows = [*runs_of_worst(), *(row(label, 44, workload="day", seed=3) for label in (*CLASSIC, *worst.PLUGIN))]
    text = "\n".join(worst.page(rows))
    assert "| day 10% " in text
    assert text.splitlines()[-2].split("|")[2].strip() == "48.00"  # LRU on day: 50, 50, 44
    assert "Seeds 1,2,3" in text
    assert worst.PICTURE in text


def test_few_shot_is_compared_with_lfu() -> None:
    rows = [one for one in runs_of_worst() if (one["workload"], one["label"]) != ("few-shot", "lfu")]
    rows += [row("lfu", rate, workload="few-shot", seed=seed) for seed, rate in ((1, 52), (2, 50))]
    assert worst.summary(rows)["lfu"]["plugin"] == pytest.approx((53 + 49) / 2 - 51)


def test_applications_are_compared_with_the_papers_policy() -> None:
    rates = dict.fromkeys(worst.PLUGIN, 62.0) | {"lpc": 60, "lru": 50, "plugin-sidecar, lpc": 59.8, "plugin-sidecar, value": 61}
    rows = [row(name, rate, workload="applications", seed=1) for name, rate in rates.items()]
    text = "\n".join(worst.report([*runs_of_worst(), *rows]))
    assert "| plugin-sidecar, lpc " in text and "-0.20 (-0.20)" in text
    assert "applications against the paper's policy" not in "\n".join(worst.report(runs_of_worst()))


def test_worst_forces_rules_only_where_it_compares_them_with_the_papers_policy() -> None:
    found = worst.runs_of(["day", "applications"], [1], [0.05])
    assert [(run.workload.workload, run.policy, run.settings.rule) for run in found if run.settings.rule != "auto"] == [
        ("applications", "plugin-sidecar", "lpc"),
        ("applications", "plugin-sidecar", "value"),
    ]
    assert [run.workload.workload for run in found if run.policy == "lpc"] == ["applications"]


def test_a_table_is_markdown() -> None:
    assert table(["a", "b"], [["long", "1"]]).splitlines() == ["| a    |   b |", "| ---- | --: |", "| long |   1 |"]


def test_worst_counts_after_500_requests() -> None:
    run = next(run for run in worst.runs_of(["few-shot"], [100], [0.01]) if run.policy == "lru")
    workload, _ = build(run.workload)
    assert run_one(run)["requests"] == len(workload.arrivals) - 500


def test_worst_inverts_the_sidecar_only() -> None:
    found = worst.runs_of(["day", "few-shot"], [1, 2], [0.01, 0.2])
    assert len(found) == 2 * 2 * 2 * (len(CLASSIC) + 3)
    assert {run.policy for run in found if run.settings.invert} == {"plugin-sidecar"}


def test_the_worst_run_of_a_classic_rule_does_not_count_as_the_plugins() -> None:
    rows = [one for one in runs_of_worst() if (one["workload"], one["label"], one["seed"]) != ("day", "mq", 2)]
    found = worst.summary([*rows, row("mq", 30, workload="day", seed=2)])
    assert found["worst"][0]["gain"] == pytest.approx(-1.0)
    assert found["runs"] == 12
    assert found["classic"]["mq"]["mean_gain"] == pytest.approx(-5.0)
    assert (found["classic"]["mq"]["worst"]["workload"], found["classic"]["mq"]["worst"]["gain"]) == (
        "day",
        pytest.approx(-20.0),
    )


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


def test_a_trace_counts_from_the_first_request_and_after_half(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "stored.jsonl"
    rows = rows_of(trace.runs_of(log, "mooncake", [2.0]), file, jobs=1)
    lru = rows[0]
    assert (lru["label"], lru["requests"]) == ("lru", 15)
    first, *_ = trace.from_the_first(rows)
    ideal = run_one(SimulationRun(WorkloadSpec(trace=log, count_from=0.0), "lru", 2.0))
    assert ideal["requests"] == 30
    assert first["hit_rate"] == pytest.approx(ideal["hit_rate"])
    assert first["hit_rate"] != pytest.approx(lru["hit_rate"])


def test_a_stored_row_is_not_simulated_again(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [SimulationRun(WorkloadSpec(trace=log, count_from=0.0), policy, 0.5) for policy in ("lru", "mq")]
    stored = tmp_path / "rows" / "stored.jsonl"
    first = rows_of(wanted[:1], stored, jobs=1)
    with stored.open("a") as file:
        file.write('{"key": "cut')  # as if the command had been killed while it wrote
    seen: list[str] = []

    def counted(run: SimulationRun) -> dict[str, Any]:
        seen.append(run.policy)
        return run_one(run)

    monkeypatch.setattr(runs, "run_one", counted)
    both = rows_of(wanted, stored, jobs=1)
    assert seen == ["mq"]
    assert both[0] == first[0]
    assert rows_of(wanted, stored, jobs=1) == both
    assert seen == ["mq"]


def test_a_row_of_other_code_is_simulated_again(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [SimulationRun(WorkloadSpec(trace=log, count_from=0.0), "lru", 0.5)]
    stored = tmp_path / "stored.jsonl"
    rows_of(wanted, stored, jobs=1)
    monkeypatch.setattr(runs, "code_digest", lambda: "other")
    rows_of(wanted, stored, jobs=1)
    assert len(stored.read_text().splitlines()) == 2


def test_a_row_of_a_changed_log_is_simulated_again(log: Path, tmp_path: Path) -> None:
    wanted = [SimulationRun(WorkloadSpec(trace=log, count_from=0.0), "lru", 0.5)]
    stored = tmp_path / "stored.jsonl"
    before = rows_of(wanted, stored, jobs=1)
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:20]))
    after = rows_of(wanted, stored, jobs=1)
    assert (before[0]["requests"], after[0]["requests"]) == (30, 20)


def test_rows_of_a_policy_are_found_by_seed() -> None:
    rows = [row("lru", 10, seed=1), row("lru", 20, seed=2), row("mq", 99, seed=1), row("lru", 30, seed=1, size=0.2)]
    assert by_seed(rows, "lru", 0.1) == pytest.approx({1: 10.0, 2: 20.0})


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """Conversations without times: every third one goes on."""
    lines = []
    for number in range(60):
        turn = [{"role": "user", "content": f"{number} " + "why " * 40}, {"role": "assistant", "content": "so " * 30}]
        lines.append(json.dumps({"messages": turn * (2 if number % 3 == 0 else 1)}))
    file = tmp_path / "chats.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_chat_draws_as_in_the_paper_and_counts_twenty_minutes(chats: Path, tmp_path: Path) -> None:
    plain = chat.counted(chats, None, Path("models"), tmp_path / "stored")
    assert chat.counted(chats, None, Path("models"), tmp_path / "stored") == plain
    first, *_ = chat.runs_of(plain, None, [5])
    workload, _ = build(first.workload)
    assert (workload.seed, workload.think_time, workload.until - workload.count_from) == (5, 100.0, 1200.0)
    active = [turn.gap + 0.01 * turn.output_tokens for turn in workload.turns()]
    assert sum(active) / workload.until == pytest.approx(200, rel=0.1)


def test_a_changed_file_of_conversations_is_counted_again(chats: Path, tmp_path: Path) -> None:
    before = chat.counted(chats, None, Path("models"), tmp_path)
    chats.write_text(chats.read_text() * 2)
    assert chat.counted(chats, None, Path("models"), tmp_path) != before


def test_chat_draws_only_held_out_conversations_if_asked(chats: Path, tmp_path: Path) -> None:
    every, half = (chat.counted(chats, None, Path("models"), tmp_path, held_out=held_out) for held_out in (False, True))
    assert len(load_sample(every).found) == 60
    assert 15 < len(load_sample(half).found) < 45


def of_chat(end: str = "") -> list[dict[str, Any]]:
    rates = {"lru": 10, "turn-ttl": 12, "mq": 13, "lpc": 11, "lpc, head": 14, "plugin": 12.5, "plugin-sidecar": 15}
    rows = [
        row(label, rate + seed, seed=seed) for label, rate in rates.items() for seed in (0, 1) if end or "head" not in label
    ]
    return rows + [row("plugin-sidecar, head", 13 + 2 * seed, seed=seed) for seed in (0, 1) if end]


def test_chat_compares_the_plugin_with_lru_and_turn_ttl_and_the_sidecar_with_all_others() -> None:
    alone, sidecar = chat.summary(of_chat()).values()
    assert (alone[0]["best"], alone[0]["mean"], alone[0]["standard_error"]) == (
        "turn-ttl",
        pytest.approx(0.5),
        pytest.approx(0.0),
    )
    assert (sidecar[0]["best"], sidecar[0]["mean"]) == ("mq", pytest.approx(2.0))


def test_chat_compares_the_sidecar_with_a_head_with_lpc_with_the_same_head() -> None:
    _, sidecar = chat.summary(of_chat("head")).values()
    assert (sidecar[0]["best"], sidecar[0]["mean"]) == ("lpc, head", pytest.approx(-0.5))
    assert sidecar[0]["standard_error"] == pytest.approx(0.5)


def test_chat_has_a_second_run_of_policies_that_a_head_helps() -> None:
    found = chat.runs_of(Path("plain"), Path("scored"), [0])
    scored = {run.policy for run in found if run.workload.conversations == Path("scored")}
    assert scored == {"lpc", "plugin-sidecar"}
    assert len(found) == 7 * (6 + 2)


def test_agents_run_with_each_queue_on_the_logs_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "coding_sessions.tar.gz").touch()
    found = agents.runs_of(tmp_path, [0])
    assert len(found) == 3 * 3 * 3
    assert {run.queueing.keep for run in found} == {False, True}
    rates = {queueing.label: 0.5 + 0.1 * place for place, queueing in enumerate(agents.QUEUES.values())}
    rows = [
        {"setting": agents.SETTINGS[2], "label": policy, "seed": 0, "queue": queue, "hit_rate": rate, "wait_longest_s": 4.0}
        | {"throughput_tokens_s": 1000.0, "latency_mean_s": 2.0, "latency_p99_s": 3.0}
        for queue, rate in rates.items()
        for policy in agents.POLICIES
    ]
    assert "coding_sessions, 2M, 48 sessions" in (text := "\n".join(agents.report(rows)))
    assert text.splitlines()[-1].endswith("| 50.00% 1.0k 2 s 3 s 4 s | 60.00% 1.0k 2 s 3 s 4 s | 70.00% 1.0k 2 s 3 s 4 s |")
