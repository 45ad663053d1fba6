"""`lpc warm` against an HTTP server: bounds, order, and errors in one line. With vLLM itself: tests/engine/test_warm.py."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from eviction_client.prefixes import FORMAT
from lpc_cli.cli import app
from lpc_cli.pages import Address
from lpc_cli.warm import IN_VAIN, Engine, WarmError, read, run
from testing.processes import free_port


class Server(ThreadingHTTPServer):
    """An OpenAI-compatible server that computes nothing. ``status``: of completions."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.status = 200
        self.models: Any = {"data": [{"id": "m"}]}
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/v1/models" else 404, self.server.models)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(body)
        self.server.keys.append(self.headers["authorization"])
        usage = {"prompt_tokens": len(body["prompt"]), "prompt_tokens_details": {"cached_tokens": 2}}
        self._answer(self.server.status, {"usage": usage})

    def _answer(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        if status == 302:
            self.send_header("location", self.server.url + "/v1/elsewhere")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def write(path: Path, *prefixes: list[int], model: str = "m", **head: Any) -> Path:
    lines = [{"format": FORMAT, "at": 1.0, "model": model, "block_tokens": 16, **head}]
    lines += [{"reuses": 1.0, "tokens": tokens} for tokens in prefixes]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def warm(*words: str) -> Result:
    return CliRunner().invoke(app, ["warm", *words])


def test_prefixes_are_sent_as_token_ids_in_order_within_the_bounds(server: Server, tmp_path: Path) -> None:
    listed = read(write(tmp_path / "a", [1] * 10, [2] * 50, [3] * 10, [4] * 10))
    slept: list[float] = []
    engine = Engine(Address.parse(server.url), None)
    done = run(engine, listed, rate=4.0, most=3, most_tokens=60, sleep=slept.append)
    assert [one["prompt"] for one in server.asked] == [[1] * 10, [2] * 50]
    assert done == {"sent": 2, "tokens": 60, "cached_tokens": 4, "failed": 0} and slept == [0.25] * 2
    assert all(one["max_tokens"] == 1 and one["model"] == "m" for one in server.asked)
    server.asked.clear()
    run(engine, listed, most=3, most_tokens=20, sleep=slept.append)
    assert [one["prompt"][0] for one in server.asked] == [1, 3]


def test_the_key_is_sent_and_follows_no_redirect(server: Server, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    file = write(tmp_path / "a", [1] * 10)
    done = warm(str(file), "--engine", server.url, "--key-file", str(tmp_path / "key"), "--rate", "1000")
    assert done.exit_code == 0 and "sent 1" in done.output and server.keys == ["Bearer secret"]
    server.status = 302
    engine = Engine(Address.parse(server.url), "secret")
    with pytest.raises(WarmError, match="HTTP 302"):
        run(engine, read(file), sleep=lambda _: None)
    assert len(server.asked) == 2


def test_a_run_ends_after_failures_in_succession(server: Server, tmp_path: Path) -> None:
    server.status = 500
    file = write(tmp_path / "a", *([number] * 10 for number in range(20)))
    done = warm(str(file), "--engine", server.url, "--rate", "1000")
    assert done.exit_code == 1 and "HTTP 500" in done.output and len(server.asked) == IN_VAIN


def test_a_run_of_which_every_request_failed_is_a_failure_with_its_reason(server: Server, tmp_path: Path) -> None:
    server.status = 400
    file = write(tmp_path / "a", [1] * 10, [2] * 10)
    done = warm(str(file), "--engine", server.url, "--rate", "1000")
    assert done.exit_code == 1 and "HTTP 400" in done.output and len(server.asked) == 2


def test_a_base_url_with_v1_is_the_same_engine(server: Server, tmp_path: Path) -> None:
    file = write(tmp_path / "a", [1] * 10)
    for url in (server.url + "/v1", server.url + "/v1/", server.url + "/"):
        assert warm(str(file), "--engine", url, "--rate", "1000").exit_code == 0
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        "[]",
        '{"format": "other"}',
        json.dumps({"format": FORMAT, "model": "m"}) + '\n{"tokens": []}',
        json.dumps({"format": FORMAT, "model": "m"}) + '\n{"tokens": [1, -1]}',
        json.dumps({"format": FORMAT, "model": "m"}) + '\n{"tokens": ["secret"]}',
        json.dumps({"format": FORMAT, "model": "m"}) + '\n{"tokens": [true]}',
        json.dumps({"format": FORMAT, "model": 1}),
        "[" * 100_000,
        "é",
    ],
    ids=range(11),
)
def test_a_file_that_is_no_list_is_one_clear_error(server: Server, tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text)
    done = warm(str(tmp_path / "a"), "--engine", server.url)
    assert done.exit_code == 1 and "is not a list of prefixes" in done.output and "secret" not in done.output
    assert server.asked == []


def test_a_file_without_an_end_is_one_clear_error(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lpc_cli.warm.MOST_BYTES", 1 << 20)
    done = warm("/dev/zero", "--engine", server.url)
    assert done.exit_code == 1 and "more than 1 MiB" in done.output and server.asked == []


def test_what_is_wrong_at_the_engine_is_one_clear_error(server: Server, tmp_path: Path) -> None:
    file = str(write(tmp_path / "a", [1] * 10, model="other"))
    gone = warm(str(tmp_path / "none"), "--engine", server.url)
    assert gone.exit_code == 1 and "cannot read" in gone.output
    other = warm(file, "--engine", server.url)
    assert other.exit_code == 1 and "serves m, and not other" in other.output and "--model" in other.output
    assert warm(file, "--engine", server.url, "--model", "m", "--rate", "1000").exit_code == 0
    silent = warm(file, "--engine", f"http://127.0.0.1:{free_port()}")
    assert silent.exit_code == 1 and "does not answer" in silent.output
    assert warm(file, "--engine", "ftp://host").exit_code == 2
    for models in ([], {"data": 1}, {"data": [{}]}):
        server.models = models
        with pytest.raises(WarmError, match="OpenAI-compatible"):
            Engine(Address.parse(server.url), None).models()
