"""A double of LMCache's coordinator: it answers `POST /lpc/retain` and records the requests."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Coordinator:
    """Answers POST with the given statuses and then repeats the last one. ``port``: 0: any."""

    def __init__(self, *statuses: int, port: int = 0) -> None:
        self.asked: list[tuple[str, str | None, dict[str, Any]]] = []
        left = list(statuses)
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked.append((self.path, self.headers["Authorization"], body))
                self.send_response(left.pop(0) if len(left) > 1 else left[0])
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, user: str = "") -> str:
        return f"http://{user}127.0.0.1:{self.server.server_port}"
