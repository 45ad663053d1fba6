"""`lpc why`: exit codes, figures, and no text unless asked for; logs of hashes by position."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lpc_apps.why.differences import CAUSES as KINDS
from lpc_cli.cli import app
from lpc_cli.why import CAUSES
from tests.unit.why.traffic import PLANTS, clean, in_system, share, write

SECRET = "zebra-s3cret"


def lpc(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["--debug", *map(str, arguments)])


def figures(*arguments: str | Path) -> dict[str, Any]:
    found = lpc("why", *arguments, "--json")
    assert found.exit_code == 0, found.output
    parsed: dict[str, Any] = json.loads(found.stdout)
    return parsed


@pytest.fixture
def stamped(tmp_path: Path) -> Path:
    """A log with a secret in the part of the system prompt that changes."""
    path = tmp_path / "log.jsonl"
    write(
        path,
        in_system(lambda rng, number: f"{SECRET} 2026-03-01T{number // 60 % 24:02}:{number % 60:02}:00Z")(clean(0, sessions=6)),
    )
    return path


def test_exit_codes_for_continuous_integration(stamped: Path, tmp_path: Path) -> None:
    assert lpc("why", stamped).exit_code == 0
    assert lpc("why", stamped, "--fail-on", "5").exit_code == 3
    assert lpc("why", stamped, "--fail-on", "90").exit_code == 0
    write(tmp_path / "clean.jsonl", clean(0, sessions=6))
    assert lpc("why", tmp_path / "clean.jsonl", "--fail-on", "0").exit_code == 0
    assert lpc("why", stamped, "--fail-on", "200").exit_code == 2
    assert lpc("why", tmp_path / "missing.jsonl").exit_code == 1


def test_text_is_shown_only_if_asked_for(stamped: Path, tmp_path: Path) -> None:
    silent = lpc("why", stamped, "--output", tmp_path / "figures.json")
    assert "time stamp" in silent.output and "9999-99-99T99:99:99Z" in silent.output
    assert "s3cret" not in silent.output + (tmp_path / "figures.json").read_text()
    assert "2026-03-01" not in silent.output
    shown = lpc("why", stamped, "--show-text", "--output", tmp_path / "figures.json")
    assert SECRET in shown.output and SECRET in (tmp_path / "figures.json").read_text()


def test_a_log_is_read_compressed_and_out_of_order(stamped: Path, tmp_path: Path) -> None:
    expected = figures(stamped)
    lines = stamped.read_text().splitlines(keepends=True)
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress("".join([*lines[20:], "damaged\n", *lines[:20]]).encode()))
    found = figures(packed)
    assert found["log"]["skipped"]["not JSON"]["records"] == 1
    assert found["causes"] == expected["causes"]
    (cause,) = found["causes"]
    assert (cause["cause"], cause["place"]) == ("time", "system prompt")
    assert cause["hit_rate_without_it"] == found["hit_rate_without_causes"] > found["hit_rate"] + 0.3


@pytest.mark.parametrize("cause", ["time", "id", "number", "text", "tools", "truncated"])
def test_hashes_with_conversations_show_the_place_and_a_bound(cause: str, tmp_path: Path) -> None:
    records = clean(0, sessions=20, turns=6)
    write(tmp_path / "log.jsonl", PLANTS[cause](records))
    assert lpc("export", tmp_path / "log.jsonl", "--anonymous", "--to", tmp_path / "trace.jsonl").exit_code == 0
    found = figures(tmp_path / "trace.jsonl")
    assert [each["cause"] for each in found["causes"]] == ["truncated" if cause == "truncated" else "start"]
    # What new conversations lose in the head that they share is not seen, and a truncated prompt's new message counts.
    assert found["lost_share"] == pytest.approx(share(cause, records), abs=0.08)


def test_hashes_of_a_clean_log_and_hashes_without_conversations_have_no_causes(tmp_path: Path) -> None:
    write(tmp_path / "log.jsonl", clean(0, sessions=20))
    for form in ("qwen", "mooncake"):
        lpc("export", tmp_path / "log.jsonl", "--anonymous", "--to", tmp_path / "trace.jsonl", "--as", form)
        found = lpc("why", tmp_path / "trace.jsonl")
        assert found.exit_code == 0
        assert "No cause" in found.output
        assert ("no names of conversations" in found.output) == (form == "mooncake")


def test_hashes_show_replies_that_the_next_prompt_cannot_hold(tmp_path: Path) -> None:
    """Of 1,600 tokens of a reply the next prompt has room for 160, and ten are a new text."""
    records = []
    for number in range(20):
        ids = range(1000 * number, 1000 * number + 20)
        for turn, (tokens, reply) in enumerate([(160, 1600), (320, 10)]):
            records.append(
                {
                    "chat_id": 2 * number + turn,
                    "parent_chat_id": 2 * number if turn else -1,
                    "timestamp": 600.0 * number + 60 * turn,
                    "input_length": tokens,
                    "output_length": reply,
                    "type": "text",
                    "turn": turn + 1,
                    "hash_ids": list(ids[: tokens // 16]),
                }
            )
    write(tmp_path / "trace.jsonl", records)
    found = figures(tmp_path / "trace.jsonl")
    assert [(each["cause"], each["place"]) for each in found["causes"]] == [("reply", "assistant's message")]
    assert found["hit_rate"] == pytest.approx(1 / 3)
    assert found["hit_rate_without_causes"] == pytest.approx(2 / 3)
    # A prompt that holds the reply has no cause.
    for record in records[1::2]:
        record["input_length"] = 1770
        record["hash_ids"] = [*record["hash_ids"][:10], *(record["chat_id"] * 1000 + n for n in range(500, 601))]
    write(tmp_path / "whole.jsonl", records)
    assert figures(tmp_path / "whole.jsonl")["causes"] == []


def test_every_cause_has_a_name_and_advice() -> None:
    assert set(KINDS) == set(CAUSES)


@pytest.mark.parametrize("command", [("why",), ("export", "--anonymous", "--to", "trace.jsonl")])
def test_conversations_without_times_are_refused(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path / "log.jsonl", [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}]
    )
    found = lpc(command[0], "log.jsonl", *command[1:])
    assert found.exit_code == 1
    assert "without times" in found.output


@pytest.mark.parametrize("command", [("why",), ("simulate", "--describe")])
@pytest.mark.parametrize(("wrong", "before"), [(0, None), (4, False), (12, True)])
def test_requests_that_were_not_read_are_named_with_the_figures(
    command: tuple[str, ...], wrong: int, before: bool | None, stamped: Path, tmp_path: Path
) -> None:
    lines = stamped.read_text().splitlines(keepends=True)[:40]
    (tmp_path / "some.jsonl").write_text("".join([*lines[:20], *["damaged\n"] * wrong, *lines[20:]]))
    found = lpc(command[0], tmp_path / "some.jsonl", *command[1:])
    assert found.exit_code == 0
    said = " ".join(found.stdout.split())
    at = said.find(f"{wrong} of {40 + wrong} records of the log")
    if before is None:
        assert "were not read" not in said
    else:
        assert at == 0 if before else at > 100
        assert "most for this reason: not JSON. No figure counts them." in said


def test_records_that_are_no_requests_are_not_lost(stamped: Path, tmp_path: Path) -> None:
    lines = stamped.read_text().splitlines(keepends=True)
    failed = [json.dumps(json.loads(line) | {"status": 503}) + "\n" for line in lines[:20]]
    (tmp_path / "some.jsonl").write_text("".join([*failed, *lines]))
    found = lpc("why", tmp_path / "some.jsonl")
    assert "failed call" in found.stderr and "were not read" not in found.output
