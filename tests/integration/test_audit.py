"""`make audit` against a server that speaks OSV's protocol: what is known is found, and what cannot be asked is no success."""

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Osv(BaseHTTPRequestHandler):
    known: dict[str, dict[str, object]] = {}  # noqa: RUF012
    asked: set[str] = set()  # noqa: RUF012

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = query["package"]["name"]
        self.asked.add(name)
        body = json.dumps({"vulns": [self.known[name]]} if name in self.known else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def osv() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Osv) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        Osv.known, Osv.asked = {}, set()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()
        thread.join()


def audit(url: str) -> subprocess.CompletedProcess[str]:
    # Make's own line, without its prerequisite, which would install packages.
    shown = subprocess.run(
        ["make", "-n", "--old-file=.venv/.installed", "audit", f"AUDIT=-s osv --osv-url {url}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (line,) = re.findall(r"(?m)^\S*pip-audit .*$", shown)
    return subprocess.run(line.split(), cwd=ROOT, capture_output=True, text=True, timeout=110)


def test_no_known_vulnerability_is_a_success_and_every_image_was_asked_about(osv: str) -> None:
    done = audit(osv)
    assert done.returncode == 0, done.stderr
    assert Osv.asked >= {"grpcio", "onnxruntime", "onnxruntime-gpu", "opentelemetry-sdk", "torch"}


def test_a_known_one_is_named_and_fails(osv: str) -> None:
    affected = [{"package": {"name": "tokenizers", "ecosystem": "PyPI"}, "ranges": []}]
    Osv.known = {"tokenizers": {"id": "PYSEC-2026-1", "summary": "bad", "affected": affected}}
    done = audit(osv)
    assert done.returncode == 1
    assert "tokenizers" in done.stdout and "PYSEC-2026-1" in done.stdout


def test_nobody_to_ask_is_a_failure() -> None:
    assert audit("http://127.0.0.1:9/v1/query").returncode != 0
