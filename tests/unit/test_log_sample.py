"""A sample of a log has whole conversations, about as many as asked for, and gives about the hit rate of all."""

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lpc_apps.logs.formats import open_trace
from lpc_apps.logs.traces import Trace
from lpc_apps.logs.traces.sample import Sample, every_for
from lpc_apps.simulator.run import SimulationRun, WorkloadSpec, build, run_one
from lpc_cli.cli import app
from tests.unit.test_chat_logs import user, written

CHATS, TURNS = 400, 4


def mooncake(chat: int, turn: int) -> dict[str, Any]:
    blocks = [0, *(1000 * chat + block for block in range(1, turn + 3))]
    return {"timestamp": 1000 * (300 * turn + chat), "input_length": 512 * len(blocks), "output_length": 1, "hash_ids": blocks}


def qwen(chat: int, turn: int) -> dict[str, Any]:
    line = {**mooncake(chat, turn), "timestamp": 300 * turn + chat, "type": "text", "turn": turn + 1}
    line["input_length"] //= 32
    return {**line, "chat_id": 10 * chat + turn, "parent_chat_id": 10 * chat + turn - 1 if turn else -1}


def messages(chat: int, turn: int) -> list[dict[str, Any]]:
    said = [user(f"{chat} {at} " * 30) for at in range(turn + 1)]
    return [{"role": "system", "content": "Be brief. " * 9}, *said]


def chats(chat: int, turn: int) -> dict[str, Any]:
    return {"time": 300 * turn + chat, "messages": messages(chat, turn)}


FORMS: dict[str, tuple[str, Callable[[int, int], Any]]] = {
    "mooncake": ("mooncake", mooncake),
    "qwen": ("qwen", qwen),
    "chat": ("chat", chats),
}


def log(path: Path, record: Callable[[int, int], Any]) -> Path:
    lines = sorted((300 * turn + chat, chat, turn) for chat in range(CHATS) for turn in range(TURNS))
    return written(path, *(record(chat, turn) for _, chat, turn in lines))


def prompts(trace: Trace) -> dict[str, list[int]]:
    """Return the lengths of prompts by conversation."""
    found: dict[str, list[int]] = {}
    for request in trace.requests:
        found.setdefault(request.conversation, []).append(request.input_tokens)
    return found


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("every", [2, 10])
def test_a_sample_has_whole_conversations_and_the_rest_is_counted(name: str, every: int, tmp_path: Path) -> None:
    format, record = FORMS[name]  # noqa: A001
    path = log(tmp_path / "log", record)
    trace = open_trace(path, format, sample=Sample(every))
    found = prompts(trace)
    assert {len(lengths) for lengths in found.values()} == {TURNS}
    assert len(found) == pytest.approx(CHATS / every, rel=0.6)
    assert trace.skipped.counts == {f"not in the sample of 1 in {every}": TURNS * (CHATS - len(found))}


def test_a_prompt_that_many_share_does_not_decide_and_a_document_of_few_does(tmp_path: Path) -> None:
    def lines(document: int, question: int) -> dict[str, Any]:
        blocks = [0, 1, *range(1000 * document, 1000 * document + 5), 10**6 + 100 * document + question]
        return {"timestamp": question, "input_length": 512 * len(blocks), "output_length": 1, "hash_ids": blocks}

    path = written(tmp_path / "log", *(lines(document, question) for question in range(5) for document in range(1, 301)))
    trace = open_trace(path, "mooncake", sample=Sample(3))
    whole = open_trace(path, "mooncake")
    kept = Counter(request.blocks[2] for request in trace.requests)
    assert len(kept) == pytest.approx(100, rel=0.3)
    # Until the system prompt is known to be shared, the first few belong to its family.
    assert sum(count == 5 for count in kept.values()) > 0.8 * len(kept)
    assert len(whole.requests) == 1500


def test_the_seed_draws_another_sample(tmp_path: Path) -> None:
    path = log(tmp_path / "log", chats)
    first, again, other = (
        [request.input_tokens for request in open_trace(path, "chat", sample=Sample(4, seed)).requests] for seed in (0, 0, 1)
    )
    assert first == again != other


@pytest.mark.parametrize("name", FORMS)
def test_the_samples_of_all_keys_together_have_about_the_hit_rate_of_the_log(name: str, tmp_path: Path) -> None:
    format, record = FORMS[name]  # noqa: A001
    spec = WorkloadSpec(trace=log(tmp_path / "log", record), format=format)
    _, working_set = build(spec)
    capacity = working_set // 2
    expected = run_one(SimulationRun(spec, "lru", capacity))
    samples = [
        run_one(SimulationRun(WorkloadSpec(spec.trace, format, sample=2, seed=seed), "lru", capacity)) for seed in range(4)
    ]
    assert {row["capacity_tokens"] for row in samples} == {capacity}
    assert sum(row["hit_rate"] for row in samples) / 4 == pytest.approx(expected["hit_rate"], abs=0.1)
    assert sum(row["prefill_load"] for row in samples) / 4 == pytest.approx(expected["prefill_load"], rel=0.25)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_log_beyond_the_limit_is_sampled_to_below_it(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(pack(b'{"a": "canaryzebra canaryzebra"}\n' * 100))
    assert [every_for(path, most) for most in (1000, 100)] == [1, 1]
    if pack is bytes:
        assert [every_for(path, most) for most in (99, 50, 34, 1)] == [2, 2, 3, 100]
    else:
        assert every_for(path, 1) == 100


def test_the_command_names_the_sample_and_scales_the_cache(tmp_path: Path) -> None:
    path = log(tmp_path / "log", mooncake)
    words = ["simulate", str(path), "--policies", "lru", "--capacity", "500K", "--jobs", "1", "--json"]
    whole, sampled = (CliRunner().invoke(app, [*words, *rest]) for rest in ([], ["--sample", "4"]))
    assert sampled.exit_code == 0, sampled.output
    assert "1 in 4 conversations is simulated, with 1/4 of each cache size" in sampled.stderr
    assert "conversations is simulated" not in whole.stderr
    (row,), (all_,) = (json.loads(found.stdout)["rows"] for found in (sampled, whole))
    assert (row["sample"], row["capacity_tokens"], all_["sample"]) == (4, 500_000, 1)
    assert row["hit_rate"] == pytest.approx(all_["hit_rate"], abs=0.1)


@pytest.mark.parametrize("rest", [["--closed"], ["--in-turn"], ["--format", "conversations"]])
def test_a_sample_is_refused_where_the_load_or_the_draw_decides(rest: list[str], tmp_path: Path) -> None:
    path = log(tmp_path / "log", chats)
    found = CliRunner().invoke(app, ["simulate", str(path), "--sample", "2", *rest])
    assert found.exit_code == 2
    assert "--sample is for logs of qwen, aiperf, mooncake" in " ".join(found.output.split())
