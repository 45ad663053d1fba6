"""A scripted engine with OpenAI's API over real HTTP, for tests of faults: it can die, stall and refuse."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import uvicorn
from starlette.types import Receive, Scope, Send

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


@dataclass
class Received:
    """A received request. ``gone``: the client closed the connection before the end of the answer."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    gone: bool = False

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


KINDS = ("/version", "/model_info", "/get_model_info", "/server_info")
"""Paths by which an engine says what it is."""


@dataclass
class EngineDouble:
    """An ASGI application, served by `served`.

    Attributes:
        words: of its answers; None: the request's last message, so that the answers to different questions differ.
        finish: the finish_reason.
        die_after: number of chunks after which it closes the connection.
        go: it answers while this is set.
        hold_after: number of chunks of a stream, including [DONE], after which it waits for `further`.
        seconds: duration of an answer.
        refuse: answer every completion with an error.
        says: its answers to KINDS, which are not among the requests received.
        usage: what its answers report.
        counted: first tokens by its `/metrics`, in vLLM's form; None: it has none.
        looks: how often these were read.
    """

    words: list[str] | None = None
    finish: str = "stop"
    die_after: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    hold_after: int | None = None
    further: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    seconds: float = 0.0
    refuse: bool = False
    says: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=lambda: dict(USAGE))
    counted: int | None = None
    looks: int = 0

    def __post_init__(self) -> None:
        self.go.set()

    @property
    def completions(self) -> list[Received]:
        return [request for request in self.received if "completions" in request.target]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message.get("more_body"):
                break
        target = scope["path"] + ("?" + scope["query_string"].decode() if scope["query_string"] else "")
        headers = [(name.decode(), value.decode("latin-1")) for name, value in scope["headers"]]
        request = Received(scope["method"], target, headers, body)
        answering = asyncio.ensure_future(self._answer(request, scope["path"], send))
        hung_up = asyncio.ensure_future(receive())
        await asyncio.wait((answering, hung_up), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            request.gone = True
            answering.cancel()
        hung_up.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await answering

    async def _answer(self, request: Received, path: str, send: Send) -> None:
        if path in KINDS:
            answer = self.says.get(path)
            await whole(send, 404 if answer is None else 200, json.dumps(answer).encode())
            return
        if path == "/metrics" and self.counted is not None:
            self.looks += 1
            await whole(send, 200, b'vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} %d.0\n' % self.counted)
            return
        # No await before the wait for `go`: a test that sees the request and then clears `go` does not hold this request.
        self.received.append(request)
        if path == "/health":
            await whole(send, 200, b"")
        elif path == "/v1/models":
            cookies = [(b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")]
            await whole(send, 200, b'{"object":"list","data":[{"id":"m"}]}', cookies)
        elif path == "/echo":
            await whole(
                send, 200, request.body, [(b"x-length", str(len(request.body)).encode()), (b"keep-alive", b"timeout=9")]
            )
        elif path in ("/v1/chat/completions", "/v1/completions") and request.body.startswith(b"{"):
            await self.go.wait()
            await asyncio.sleep(self.seconds)
            if self.refuse:
                await whole(send, 400, b'{"error": "no"}')
                return
            await self._complete(request.json, path.startswith("/v1/chat"), send)
        else:
            await whole(send, 418, b'{"error": "a teapot \xe2\x98\x95"}', [(b"x-own", b"yes")])

    async def _complete(self, asked: dict[str, Any], chat: bool, send: Send) -> None:
        words = self.words or ["You said: ", asked["messages"][-1]["content"] if chat else asked["prompt"]]
        number, usage = len(self.received), self.usage
        kind = "chatcmpl" if chat else "cmpl"
        common = {"id": f"{kind}-{number}", "created": 1_700_000_000 + number, "model": asked["model"], **self.extra}
        if not asked.get("stream"):
            text = "".join(words)
            said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            choices = [{"index": 0, **said, "logprobs": None, "finish_reason": self.finish}]
            form = "chat.completion" if chat else "text_completion"
            body = json.dumps({**common, "object": form, "choices": choices, "usage": usage}).encode()
            if self.die_after is None:
                await whole(send, 200, body, [(b"content-type", b"application/json")])
            else:
                await start(send, 200, [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/json")])
                await send({"type": "http.response.body", "body": body[: self.die_after], "more_body": True})
            return
        await start(send, 200, [(b"content-type", b"text/event-stream; charset=utf-8")])
        deltas = [{"role": "assistant", "content": ""}, *({"content": word} for word in words), {}] if chat else [*words, ""]
        form = "chat.completion.chunk" if chat else "text_completion"
        for i, delta in enumerate(deltas):
            if i == self.die_after:
                return
            if i == self.hold_after:
                await self.further.wait()
            end = self.finish if i == len(deltas) - 1 else None
            choice = {"index": 0, **({"delta": delta} if chat else {"text": delta}), "finish_reason": end}
            await event(send, {**common, "object": form, "choices": [choice]})
        if (asked.get("stream_options") or {}).get("include_usage"):
            await event(send, {**common, "object": form, "choices": [], "usage": usage})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": True})
        if self.hold_after is not None and self.hold_after >= len(deltas):
            await self.further.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def start(send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def event(send: Send, chunk: dict[str, Any]) -> None:
    await send({"type": "http.response.body", "body": b"data: " + json.dumps(chunk).encode() + b"\n\n", "more_body": True})


async def whole(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    await start(send, status, [(b"content-length", str(len(body)).encode()), *(headers or [])])
    await send({"type": "http.response.body", "body": body})


AnyEngine = TypeVar("AnyEngine", bound=EngineDouble)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@contextlib.asynccontextmanager
async def serve_double(engine: AnyEngine, port: int = 0) -> AsyncIterator[AnyEngine]:
    """Serve an engine on a port of loopback. Close its connections at the end."""
    with socket.create_server(("127.0.0.1", port), backlog=2048) as listener:
        config = uvicorn.Config(engine, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=0)
        server = _Server(config)
        engine.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            yield engine
        finally:
            server.should_exit = True
            await serving
