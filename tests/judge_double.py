"""A scripted model that judges answers, with OpenAI's API over real HTTP."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class JudgeDouble:
    """Served by `judging`.

    Attributes:
        reply: the model's text, or the whole body.
        status: of HTTP.
        refuses: a field for which it answers 400.
        bodies: received bodies, with path and Authorization.
        go: it answers while this is set.
        url: ends with /v1.
    """

    reply: str | bytes
    status: int = 200
    refuses: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def __post_init__(self) -> None:
        self.go.set()


@contextmanager
def judging(judge: JudgeDouble) -> Iterator[JudgeDouble]:
    """Serve a judge on a port of loopback."""

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            judge.bodies.append({"path": self.path, "key": self.headers["authorization"], **body})
            judge.go.wait()
            reply = judge.reply
            content = reply if isinstance(reply, bytes) else json.dumps({"choices": [{"message": {"content": reply}}]}).encode()
            self.send_response(400 if judge.refuses in body else judge.status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    judge.url = f"http://127.0.0.1:{server.server_port}/v1"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield judge
    finally:
        judge.go.set()
        server.shutdown()
        server.server_close()
