"""`lpc cache warm` against a scripted gateway: counts, invalid lines and failures."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lpc.cache.warming import FAILURES
from lpc_apps.commands.cli import app

OUTCOMES = {"q0": "exact", "q1": None}
"""x-lpc-cache of the answers by question; that of others is "miss"."""


@dataclass
class Gateway:
    """Answers ``count`` requests, and fails after that."""

    url: str = ""
    count: int = 1000
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    double = Gateway()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"][-1]["content"]
            double.asked.append(text)
            double.headers.append(dict(self.headers))
            self.send_response(200 if len(double.asked) <= double.count else 401)
            if (cache := OUTCOMES.get(text, "miss")) is not None:
                self.send_header("x-lpc-cache", cache)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        double.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever).start()
        yield double
        server.shutdown()


def warm(folder: Path, gateway: str, lines: list[Any], *flags: str, model: str = "m") -> Result:
    path = folder / "faq.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["cache", "warm", "--file", str(path), "--gateway", gateway, "--served-model", model, "--rate", "1000", *flags]
    return CliRunner().invoke(app, words, env={"COLUMNS": "200"})


def numbered(count: int) -> list[Any]:
    return [{"question": f"q{i}"} for i in range(count)]


def test_each_question_is_sent_once_and_its_outcome_counted(tmp_path: Path, gateway: Gateway) -> None:
    done = warm(tmp_path, gateway.url, numbered(6), "--scope", "faq", "--token", "sesame")
    assert done.exit_code == 0, done.output
    assert "4 answered by an engine, 1 already cached, 1 not cacheable" in done.output
    assert gateway.asked == [f"q{i}" for i in range(6)]
    assert {(one["authorization"], one["x-lpc-scope"]) for one in gateway.headers} == {("Bearer sesame", "faq")}


def test_consecutive_failures_stop_the_run_and_few_do_not(tmp_path: Path, gateway: Gateway) -> None:
    gateway.count = 3
    few = warm(tmp_path, gateway.url, numbered(6))
    assert few.exit_code == 1 and "3 failed" in few.output and "set LPC_WARM_TOKEN" in few.output
    gateway.asked.clear()
    many = warm(tmp_path, gateway.url, numbered(20))
    assert many.exit_code == 1 and len(gateway.asked) == gateway.count + FAILURES


def test_a_run_that_caches_nothing_fails(tmp_path: Path, gateway: Gateway) -> None:
    done = warm(tmp_path, gateway.url, [{"question": "q1"}])
    assert done.exit_code == 1 and "nothing is cached" in done.output


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "line 2: expected"),
        ({"messages": 1}, "line 2: expected"),
        ({"messages": [{"role": "user", "content": "private"}], "prompt": "private"}, "line 2: not a valid request"),
        ({"question": "private", "messages": []}, None),
        ({"messages": [{"role": "user", "content": "\ud800"}], "x": "private"}, "line 2: not a valid request"),
    ],
)
def test_an_invalid_line_prevents_the_run_and_is_not_quoted(
    tmp_path: Path, gateway: Gateway, line: Any, message: str | None
) -> None:
    done = warm(tmp_path, gateway.url, [{"question": "q0"}, line])
    if message is None:
        assert done.exit_code == 0
    else:
        assert done.exit_code == 1 and message in done.output and not gateway.asked
    assert "private" not in done.output


@pytest.mark.parametrize(
    ("url", "lines", "model", "message"),
    [
        ("http://127.0.0.1:1", numbered(1), "m", "does not answer"),
        ("127.0.0.1:1", numbered(1), "m", "is not an address"),
        ("http://127.0.0.1:1", [], "m", "is empty"),
        ("http://127.0.0.1:1", numbered(1), "", "no model"),
    ],
)
def test_a_run_that_cannot_begin_names_the_reason(tmp_path: Path, url: str, lines: list[Any], model: str, message: str) -> None:
    done = warm(tmp_path, url, lines, model=model)
    assert done.exit_code == 1 and message in done.output
