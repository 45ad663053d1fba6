"""Exit codes of `lpc` (0: done, 1: it failed, 2: it was called wrongly), and tracebacks only with --debug."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lpc_cli.cli import app
from tests.command import lpc
from tests.integration.test_cli import served

__all__ = ["served"]  # a fixture
CHAT = json.dumps([{"role": "user", "content": "hello"}])


def rows(stdout: bytes) -> list[str]:
    """Return the line numbers of the answers that were printed."""
    return [line.split()[0] for line in stdout.decode().splitlines()[1:]]


@pytest.mark.parametrize(
    "wrong",
    [
        "42",
        "{",
        "[" * 100_000,
        "1" * 5_000,
        '[{"role": "user", "content": "\\ud800"}]',
        '[{"role": "user", "content": [{"text": 3}]}]',
    ],
    ids=lambda text: text[:20],
)
def test_a_line_that_fails_is_named_and_the_others_are_answered(served: tuple[object, str], wrong: str) -> None:
    result = lpc("predict", "--address", served[1], stdin=f"{CHAT}\n{wrong}\n\n{CHAT}".encode())
    assert rows(result.stdout) == ["1", "4"], result.stderr
    (said,) = result.stderr.decode().splitlines()
    assert said.startswith("lpc: line 2: ")
    assert result.returncode == 1


@pytest.mark.parametrize(
    "command",
    [
        ["predict", "--address", "127.0.0.1:1"],
        ["predict", "/nowhere/chat.json"],
        ["models", "rollback", "--models", "/nowhere"],
        ["export", "--head", "/nowhere/head"],
        ["train", "--embeddings", "/nowhere"],
        ["evaluate", "--embeddings", "/nowhere"],
        ["simulate", "--trace", "/nowhere", "--format", "qwen"],
        ["simulate", "/nowhere"],
        ["simulate", "/dev/null"],
        ["simulate", __file__],
        ["simulate", "--workload", "loop", "--model", "/nowhere/config.json"],
        ["why", "/dev/null"],
        ["export", "/dev/null", "--anonymous", "--to", "/dev/null"],
        ["predict", "/dev/null"],
        ["embed", "--dataset", "chat", "--source", "/dev/null"],
        ["embed", "--dataset", "conversations", "--source", "/nowhere.jsonl"],
        ["cache", "warm", "/nowhere"],
        ["cache", "warm", "/dev/null"],
        ["cache", "warm", "/dev/null", "--token-file", "/nowhere"],
        ["cache", "warm", "/dev/null", "--ca", "/nowhere"],
        ["cache", "invalidate", "--scope", "faq", "--address", "127.0.0.1:1"],
        ["cache", "calibrate", "--pairs", "/nowhere"],
        ["doctor", "--address", "127.0.0.1:1"],
    ],
    ids=lambda command: "-".join(command[:2]),
)
def test_a_command_that_fails_ends_with_1_and_without_a_traceback(command: list[str]) -> None:
    done = CliRunner().invoke(app, command, input="hello")
    assert (done.exit_code, type(done.exception)) == (1, SystemExit), done.output
    assert "Traceback" not in done.output and "internal error" not in done.output


@pytest.mark.parametrize(
    "command",
    [
        ["predict", "--nonsense"],
        ["predict", "--timeout", "0"],
        ["gateway", "--port", "-1"],
        ["export", "--model", "a/b"],
        ["simulate", "--policies", "nonsense"],
        ["simulate", "--output-token-ms", "-1"],
        ["cache", "invalidate"],
        ["cache", "calibrate"],
        ["cache", "report", "--day", "2026-13-01"],
        ["cache", "report", "--day", "0001-01-05", "--days", "31"],
        ["cache", "feedback", "xyz"],
        ["train", "--from", "/nowhere", "--embeddings", "/nowhere"],
        ["embed", "--dataset", "nonsense"],
        ["lmcache", "front", "--host", "127.0.0.1"],
        ["lmcache", "front", "--host", "127.0.0.1", "--upstream", "nonsense"],
        ["nonsense"],
    ],
    ids=lambda command: "-".join(command[:2]),
)
def test_a_wrong_call_ends_with_2_and_without_a_traceback(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    done = CliRunner().invoke(
        app, command, env={"LPC_LMCACHE_TOKEN_FILE": str(tmp_path / "token")} if "--upstream" in command else {}
    )
    assert (done.exit_code, type(done.exception)) == (2, SystemExit), done.output
    assert "Traceback" not in done.output and "internal error" not in done.output


def test_an_unexpected_error_is_one_line_that_names_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug is made by a module of ours that lacks what the command needs."""
    monkeypatch.setattr("lpc.wire.access.access_of", None)
    short = lpc("predict", stdin=b"hello")
    assert short.returncode == 1
    (line,) = short.stderr.decode().splitlines()
    assert line.startswith("lpc: internal error: TypeError at ") and "predict.py:" in line
    full = lpc("--debug", "predict", stdin=b"hello")
    assert b"Traceback" in full.stderr
