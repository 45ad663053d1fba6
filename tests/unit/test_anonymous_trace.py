"""`lpc export LOG --anonymous`: the trace gives the same hits as its log, and has nothing of its text."""

import json
import tarfile
from collections.abc import Callable, Hashable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lpc_apps.logs.log import open_log
from lpc_apps.logs.traces import Trace
from lpc_cli.cli import app
from tests.unit.why.traffic import PLANTS, clean, write

SECRET = "zebra-s3cret"


def lpc(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["--debug", *map(str, arguments)])


def chats(path: Path) -> None:
    """Write chats with reasoning that later prompts lack, counted tokens, a secret word, and requests of one time."""
    records = PLANTS["reasoning"](clean(0, sessions=8, turns=4))
    for number, record in enumerate(records):
        record |= {"usage": {"prompt_tokens": 700 + 37 * number, "completion_tokens": 80}, "category": SECRET}
        record |= {"session_id": f"{SECRET} {record['session_id']}", "time": float(int(record["time"] / 50) * 50)}
        record["messages"] = [{"role": "system", "content": SECRET}, *record["messages"]]
    write(path, records)


def uncounted(path: Path) -> None:
    write(path, PLANTS["media"](clean(1, sessions=8, turns=4)))


def mooncake(path: Path) -> None:
    lines = []
    for number in range(40):
        ids = [0, *range(10 * (number % 8) + 1, 10 * (number % 8) + 2 + number // 8)]
        lines.append(
            {"timestamp": 500 * (number // 3), "input_length": 512 * len(ids) - 9, "output_length": 5, "hash_ids": ids}
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def agents(path: Path) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for start, name in enumerate(("one", "two", "three")):
            calls = [
                {
                    "t": start + 9.5 * n,
                    "in": 64 * (n + 3) + n,
                    "out": 70,
                    "hash_ids": [*range(n + 4)],
                    "stop": SECRET,
                    "api_time": 2.25,
                }
                for n in range(6)
            ]
            data = json.dumps({"id": f"{SECRET} {name}", "block_size": 64, "requests": calls}).encode()
            member = tarfile.TarInfo(f"{name}.json")
            member.size = len(data)
            archive.addfile(member, BytesIO(data))


LOGS: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "chat": ("log.jsonl", chats, "qwen"),
    "uncounted chat": ("log.jsonl", uncounted, "qwen"),
    "mooncake": ("log.jsonl", mooncake, "mooncake"),
    "agents": ("log.tar.gz", agents, "qwen"),
}


def traced(path: Path) -> Trace:
    with open_log(path) as log:
        return log.trace()


def renamed(trace: Trace) -> list[tuple[Hashable, ...]]:
    """Return the requests with numbers in place of names and ids, in order of appearance."""
    numbers: dict[Hashable, int] = {}

    def number(*name: Hashable) -> int:
        return numbers.setdefault(name, len(numbers))

    def blocks(found: Sequence[int]) -> tuple[int, ...]:
        return tuple(number("block", block) for block in found)

    rows: list[tuple[Hashable, ...]] = []
    for each in trace.requests:
        full = each.input_tokens // trace.block_tokens
        named = (number("conversation", each.conversation), number("category", each.category), number("end", each.reply_end))
        prompt = each.blocks[:full]
        # As the simulator reads it: of a reply only the blocks behind the prompt's.
        reply = None if each.with_reply is None else blocks(each.with_reply[len(prompt) :])
        rows.append((each.input_tokens, each.output_tokens, each.turn, *named, blocks(prompt), reply, each.served_s))
    return rows


@pytest.mark.parametrize("name", LOGS)
def test_a_trace_has_the_requests_of_its_log_and_nothing_of_its_text(name: str, tmp_path: Path) -> None:
    file, make, form = LOGS[name]
    make(tmp_path / file)
    for number in (1, 2):
        found = lpc("export", tmp_path / file, "--anonymous", "--to", tmp_path / f"{number}.jsonl")
        assert found.exit_code == 0, found.output
    log, trace = traced(tmp_path / file), traced(tmp_path / "1.jsonl")
    assert (trace.block_tokens, trace.skipped.counts) == (log.block_tokens, {})
    assert renamed(trace) == renamed(log)
    assert [each.arrival for each in trace.requests] == pytest.approx([each.arrival for each in log.requests], abs=1e-3)
    texts = [(tmp_path / f"{number}.jsonl").read_text() for number in (1, 2)]
    assert SECRET not in "".join(texts) and "s3cret" not in found.output
    ids = [{block for line in text.splitlines() for block in json.loads(line)["hash_ids"]} for text in texts]
    assert len(ids[0]) == len(ids[1]) and not ids[0] & ids[1]
    assert {"qwen": "chat_id", "mooncake": "timestamp"}[form] in json.loads(texts[0].splitlines()[0])


@pytest.mark.parametrize("name", LOGS)
def test_a_trace_gives_the_same_hits(name: str, tmp_path: Path) -> None:
    file, make, _ = LOGS[name]
    make(tmp_path / file)
    assert lpc("export", tmp_path / file, "--anonymous", "--to", tmp_path / "trace.jsonl").exit_code == 0
    rates = []
    for path in (file, "trace.jsonl"):
        options = ("--policies", "lru,mq,plugin,belady", "--capacity", "20%,60%", "--count-from", "0", "--jobs", "1", "--json")
        found = lpc("simulate", tmp_path / path, *options)
        assert found.exit_code == 0, found.output
        rows: list[dict[str, Any]] = json.loads(found.stdout)["rows"]
        rates.append([(row["policy"], row["capacity_tokens"], row["hit_rate"]) for row in rows])
    # Times are rounded to a millisecond, and ties of next uses decide for the bound.
    first, second = ([row for row in one if row[0] != "belady"] for one in rates)
    assert first == second
    assert [row[:2] for row in rates[0]] == [row[:2] for row in rates[1]]
    assert [row[2] for row in rates[0]] == pytest.approx([row[2] for row in rates[1]], abs=0.01)
    assert max(rate for _, _, rate in rates[0]) > 0.2


def test_other_tools_formats_can_be_asked_for(tmp_path: Path) -> None:
    uncounted(tmp_path / "log.jsonl")
    assert lpc("export", tmp_path / "log.jsonl", "--anonymous", "--to", tmp_path / "t.jsonl", "--as", "mooncake").exit_code == 0
    first = json.loads((tmp_path / "t.jsonl").read_text().splitlines()[0])
    assert set(first) == {"timestamp", "input_length", "output_length", "hash_ids", "block_size"}
    with open_log(tmp_path / "t.jsonl") as log:
        assert log.format == "mooncake"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("LOG",), "--anonymous"),
        (("LOG", "--anonymous"), "--to"),
        (("--anonymous",), "name it"),
        (("--as", "qwen"), "name it"),
    ],
)
def test_a_log_is_exported_only_if_asked_to_without_text(options: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    uncounted(tmp_path / "log.jsonl")
    found = lpc("export", *(str(tmp_path / "log.jsonl") if option == "LOG" else option for option in options))
    assert found.exit_code == 2
    assert reason in found.output
