"""`make audit` against a server that speaks OSV's protocol: what is known is found, and what cannot be asked is no success."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.eventually import patiently

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
    (line,) = re.findall(r"(?m)^\S*python requirements/audit.py .*$", shown)
    return subprocess.run(line.split(), cwd=ROOT, capture_output=True, text=True, timeout=patiently(110))


@pytest.mark.nightly
def test_no_known_vulnerability_is_a_success_and_every_image_was_asked_about(osv: str) -> None:
    done = audit(osv)
    assert done.returncode == 0, done.stderr
    assert Osv.asked >= {"grpcio", "onnxruntime", "onnxruntime-gpu", "torch"}


@pytest.mark.nightly
def test_a_known_one_is_named_and_fails(osv: str) -> None:
    affected = [{"package": {"name": "tokenizers", "ecosystem": "PyPI"}, "ranges": []}]
    Osv.known = {"tokenizers": {"id": "PYSEC-2026-1", "summary": "bad", "affected": affected}}
    done = audit(osv)
    assert done.returncode == 1
    assert "audit: tokenizers" in done.stdout and "PYSEC-2026-1" in done.stdout


@pytest.mark.nightly
def test_an_audit_without_its_database_fails() -> None:
    done = audit("http://127.0.0.1:9/v1/query")
    assert done.returncode == 1
    assert "nothing was checked" in done.stderr and "Traceback" not in done.stderr


def test_a_package_that_cannot_be_looked_up_is_named_and_is_not_a_success(tmp_path: Path) -> None:
    """The index answers 404 for all packages: pip-audit alone finds no known vulnerability then."""
    (tmp_path / "pip_audit").mkdir()
    answer = {"dependencies": [{"name": "grpcio", "skip_reason": "not found"}, {"name": "redis", "version": "8", "vulns": []}]}
    (tmp_path / "pip_audit/__init__.py").write_text("")
    (tmp_path / "pip_audit/__main__.py").write_text(f"print({json.dumps(json.dumps(answer))})\n")
    command = [sys.executable, "requirements/audit.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, "not checked: grpcio" in done.stderr) == (1, True)
    assert "2 packages, 0 known vulnerabilities, 1 could not be looked up" in done.stdout
