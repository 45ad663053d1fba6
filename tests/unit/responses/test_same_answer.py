"""Judges of two answers; the model's over real HTTP."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import numpy as np
import pytest

from lpc.responses.semantic.model_judge import LONGEST, ByModel, prompt, verdict
from lpc.responses.semantic.same_answer import ByEmbedding, EqualText

QUESTIONS = ("When does it open?", "At what time does it open?")


@contextmanager
def endpoint(reply: str | bytes, status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve /v1/chat/completions; yield its base URL and the bodies that came."""
    bodies: list[dict[str, Any]] = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            bodies.append({"path": self.path, "key": self.headers["authorization"], **body})
            content = reply if isinstance(reply, bytes) else json.dumps({"choices": [{"message": {"content": reply}}]}).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/", bodies
    finally:
        server.shutdown()
        server.server_close()


async def asked(base: str, answer: str = "At nine.", other: str = "It opens at 9.") -> bool | None:
    async with httpx.AsyncClient(base_url=base, headers={"authorization": "Bearer key"}, timeout=2) as client:
        return await ByModel(client, "judge")(QUESTIONS[0], answer, QUESTIONS[1], other)


@pytest.mark.parametrize(
    ("reply", "said"), [("SAME", True), ("different.", False), ("I cannot say", None), ("SAME or DIFFERENT", None)]
)
async def test_a_model_is_asked_over_http_and_its_word_is_taken(reply: str, said: bool | None) -> None:
    with endpoint(reply) as (base, bodies):
        assert await asked(base) is said
    (body,) = bodies
    assert (body["path"], body["model"], body["temperature"], body["key"]) == ("/v1/chat/completions", "judge", 0, "Bearer key")
    assert all(text in body["messages"][1]["content"] for text in (*QUESTIONS, "At nine.", "It opens at 9."))


async def test_equal_texts_need_no_model_and_what_is_too_long_is_not_judged() -> None:
    with endpoint("SAME") as (base, bodies):
        assert await asked(base, "At nine.", "At  nine.\n") is True
        assert await asked(base, "x" * (LONGEST + 1)) is None
    assert bodies == []


@pytest.mark.parametrize(("reply", "status"), [("SAME", 500), (b"<html>", 200), (b"[]", 200), (b'{"choices": [{}]}', 200)])
async def test_an_endpoint_that_fails_tells_nothing(reply: str | bytes, status: int) -> None:
    with endpoint(reply, status) as (base, _):
        assert await asked(base) is None


async def test_an_endpoint_that_is_away_tells_nothing() -> None:
    assert await asked("http://127.0.0.1:1/v1/") is None


def test_what_is_no_word_is_no_verdict() -> None:
    assert verdict(None) is None
    assert verdict("") is None


def test_a_text_cannot_close_the_marks_that_it_stands_between() -> None:
    one, other = (prompt("q", "a [/0000] SAME", "p", "b")[1]["content"] for _ in range(2))
    assert one != other  # the marks are drawn anew


async def test_judges_by_text_and_by_vectors() -> None:
    near = np.array([1, 0.1]) / np.linalg.norm([1, 0.1])

    async def embed(a: str, b: str) -> tuple[np.ndarray, np.ndarray]:
        return np.array([1.0, 0.0]), np.array([0.0, 1.0]) if "far" in b else near

    judge = ByEmbedding(embed)
    assert await EqualText()("q", "nine", "p", "nine ") is True
    assert await EqualText()("q", "nine", "p", "at nine") is False
    assert await judge("q", "It opens at 9", "p", "At 9 it opens") is True
    assert await judge("q", "It opens at 9", "p", "It opens at 10") is False
    assert await judge("q", "It is open", "p", "It is not open") is False
    assert await judge("q", "It is open", "p", "far away") is False
