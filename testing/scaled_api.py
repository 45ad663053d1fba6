"""OpenAI's chat API before an engine without a model, in words, as an ASGI application: its requests, clock and server.

A token is a word of the messages' text; each message and the reply begin with a word for the role. A reply has the
`max_tokens` words asked for, which follow from the prompt, so the next prompt that repeats it hits what is cached of it.
"""

import argparse
import asyncio
import dataclasses
import json
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

LONGEST: Final = 2**17
"""Most words of a prompt and its reply."""


def word_id(word: str) -> int:
    """Return the token id of a word."""
    return zlib.crc32(word.encode())


def words_of(messages: Iterable[dict[str, Any]]) -> list[str]:
    """Return the words of a prompt, with a word for each message's role and one for the reply's."""
    found: list[str] = []
    for message in messages:
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = " ".join(part.get("text", "") for part in content)
        found += [f"<{message.get('role')}>", *content.split()]
    return [*found, "<assistant>"]


@dataclasses.dataclass(eq=False)
class Job:
    """A request.

    Attributes:
        ids: of the prompt's words.
        reply: words of the reply asked for.
        request: what the engine makes of it.
        words: each word of the reply, and None for its end.
        given: words of the reply so far.
        due: when the last word was due, seconds.
        cached: prompt tokens that were cached when it first started, as the engine reports them.
    """

    name: str
    ids: list[int]
    reply: int
    request: Any = None
    words: asyncio.Queue[str | None] = dataclasses.field(default_factory=asyncio.Queue)
    given: int = 0
    due: float = 0.0
    cached: int = 0

    def __post_init__(self) -> None:
        self._seed = zlib.crc32(repr(self.ids).encode())

    def word(self, place: int) -> str:
        """Return a word of the reply."""
        return f"r{zlib.crc32(b'%d %d' % (self._seed, place)) % 50_000}"

    def give(self) -> None:
        """Pass on the next word of the reply."""
        self.words.put_nowait(self.word(self.given))
        self.given += 1


class ServingEngine(Protocol):
    """An engine: it gives the words of its jobs at their time while `serve` runs."""

    size: Mapping[str, str]
    """What it answers on its cache's size, by path."""
    version: str

    def admit(self, words: Sequence[str], reply: int, arguments: dict[str, Any] | None = None) -> Job:
        """Add a request. ``arguments``: its session and hints."""

    def drop(self, job: Job) -> None:
        """Abort a request if it has not ended."""

    def reset(self) -> bool:
        """Forget what is cached; return whether that is possible, since nothing runs."""

    async def serve(self) -> None:
        """Serve requests."""


class Api:
    """OpenAI's chat API of an engine, as an ASGI application. ``longest``: most words of a prompt and its reply."""

    def __init__(self, engine: ServingEngine, name: str, longest: int) -> None:
        self._engine, self._name, self._longest = engine, name, min(longest, LONGEST)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        path = scope["path"]
        if path == "/v1/chat/completions":
            try:
                fields = json.loads(await _body(receive))
                words, reply = words_of(fields["messages"]), int(fields.get("max_tokens") or 16)
                if len(words) + reply > self._longest:
                    raise ValueError("the prompt is longer than the cache")
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                await _send(send, {"error": {"message": str(error), "code": 400}}, 400)
                return
            await self._chat(fields, words, reply, receive, send)
        elif path in ("/v1/chat/completions/render", "/tokenize"):
            ids = [word_id(word) for word in words_of(json.loads(await _body(receive))["messages"])]
            await _send(send, {"token_ids": ids, "tokens": ids, "count": len(ids), "max_model_len": LONGEST})
        elif path in self._engine.size:
            await _send(send, self._engine.size[path].encode())
        elif path == "/reset_prefix_cache":
            await _send(send, {"success": self._engine.reset()})
        elif path == "/version" and self._engine.version:
            await _send(send, {"version": self._engine.version})
        elif path == "/v1/models":
            model = {"id": "m", "object": "model", "owned_by": "vllm", "max_model_len": LONGEST}
            await _send(send, {"object": "list", "data": [model]})
        elif path == "/health":
            await _send(send, b"")
        else:
            await _send(send, {"error": {"message": "not found", "code": 404}}, 404)

    async def _chat(self, fields: dict[str, Any], words: list[str], reply: int, receive: Any, send: Any) -> None:
        job = self._engine.admit(words, reply, fields.get("vllm_xargs"))
        gone = asyncio.ensure_future(_gone(receive))
        gone.add_done_callback(lambda _: job.words.put_nowait(None))
        try:
            if fields.get("stream"):
                await _start(send, b"text/event-stream")
                async for part in self._stream(job, fields):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body"})
            else:
                text = [word async for word in _words(job)]
                message = {"role": "assistant", "content": " ".join(text)}
                choice = {"index": 0, "message": message, "finish_reason": "length"}
                await _send(send, {**self._head(job), "choices": [choice], "usage": _usage(job)})
        finally:
            gone.cancel()
            self._engine.drop(job)

    async def _stream(self, job: Job, fields: dict[str, Any]) -> AsyncIterator[bytes]:
        head = {**self._head(job), "object": "chat.completion.chunk"}
        async for word in _words(job):
            delta = {"role": "assistant", "content": f"{word} "}
            yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        yield _event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        if (fields.get("stream_options") or {}).get("include_usage"):
            yield _event({**head, "choices": [], "usage": _usage(job)})
        yield b"data: [DONE]\n\n"

    def _head(self, job: Job) -> dict[str, Any]:
        named = {"id": f"chatcmpl-{job.name}", "object": "chat.completion", "created": 0, "model": "m"}
        return {**named, "system_fingerprint": self._name}


async def _body(receive: Any) -> bytes:
    """Return the body of a request; empty if the client has left."""
    body: bytes = b""
    while (message := await receive())["type"] == "http.request":
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body
    return b""


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _words(job: Job) -> AsyncIterator[str]:
    while (word := await job.words.get()) is not None:
        yield word


def _usage(job: Job) -> dict[str, Any]:
    prompt, reply = len(job.ids), job.given
    counts = {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply}
    return {**counts, "prompt_tokens_details": {"cached_tokens": job.cached}}


def _event(fields: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


async def _start(send: Any, kind: bytes, status: int = 200, length: int | None = None) -> None:
    headers = [(b"content-type", kind)]
    if length is not None:
        headers.append((b"content-length", b"%d" % length))
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _send(send: Any, content: dict[str, Any] | bytes, status: int = 200) -> None:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    await _start(send, b"text/plain" if isinstance(content, bytes) else b"application/json", status, len(body))
    await send({"type": "http.response.body", "body": body})


async def serve(engine: ServingEngine, port: int, longest: int) -> None:
    """Serve until the process is ended."""
    import uvicorn

    app = Api(engine, f"engine-{port}", longest)
    config = uvicorn.Config(app, port=port, log_level="warning", access_log=False, lifespan="off", backlog=4096)
    tasks = (asyncio.create_task(engine.serve()), asyncio.create_task(uvicorn.Server(config).serve()))
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


def options(program: str, about: str, schedules: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser of the options that all engines have."""
    parser = argparse.ArgumentParser(prog=program, description=about)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True, help="Blocks of 16 words that the cache holds.")
    parser.add_argument("--prefill-rate", type=float, default=10_000.0, help="Words of prompts per second.")
    parser.add_argument("--output-token-ms", type=float, default=40.0, help="Milliseconds per word of a reply.")
    parser.add_argument("--schedule", choices=schedules, default=schedules[0])
    parser.add_argument("--step-tokens", type=int, default=256, help="Most words of a step.")
    parser.add_argument("--time-scale", type=float, default=1.0, help="Seconds per second of the scheduler's clock.")
    parser.add_argument("--events-port", type=int, help="Port on which KV events are published.")
    return parser
