"""An HTTP server with OpenAI's chat API on vLLM's real scheduler and block pool, without a model and in scaled time.

A token is a word of the messages' text; each message and the reply begin with a word for the role. A reply has the
`max_tokens` words asked for, which follow from the prompt, so the next prompt that repeats it hits its blocks.

Prompts are computed at `--prefill-rate` words per second, one step after the other. A request decodes a word each
`--output-token-ms`. As in the simulator, prompts and replies do not slow each other down: the outputs of a step's decodes
reach the scheduler when they are due, as those of steps in flight do with pipeline parallelism.

Run it in vLLM's environment: `.venv-engine/bin/python -m testing.scaled_engine --port 8000 --blocks 4096 ...`.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import heapq
import itertools
import json
import math
import zlib
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final

from testing.vllm_settings import settle

LONGEST: Final = 2**17
"""Most words of a prompt and its reply."""
SLACK: Final = 0.125
"""Words that are due within this share of a word's time are decoded together, which saves steps."""
MOST_SEQS: Final = 256
EPOCH_S: Final = 1e9


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
        seed: from which its reply follows.
        words: each word of the reply, and None for its end.
        due: when the last word was due, seconds.
        cached: prompt tokens that were cached when it first started, as vLLM reports them.
    """

    name: str
    seed: int
    request: Any = None
    words: asyncio.Queue[str | None] = dataclasses.field(default_factory=asyncio.Queue)
    due: float = 0.0
    cached: int = 0

    def word(self, place: int) -> str:
        """Return a word of the reply."""
        return f"r{zlib.crc32(b'%d %d' % (self.seed, place)) % 50_000}"


class ScaledEngine:
    """A scheduler, and the time that its steps take.

    Args:
        engine: a `testing.bare_scheduler.Engine`.
        prefill_rate: words per second.
        output_token_s: seconds per word of a reply.
        time_scale: seconds per second of the scheduler's own clock.
    """

    def __init__(self, engine: Any, prefill_rate: float, output_token_s: float, time_scale: float = 1.0) -> None:
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.request import RequestStatus

        self._output, self._aborted = ModelRunnerOutput, RequestStatus.FINISHED_ABORTED
        self.engine, self.scheduler = engine, engine.scheduler
        self._rate, self._word_s, self._scale = prefill_rate, output_token_s, time_scale
        self.jobs: dict[str, Job] = {}
        self._names = map(str, itertools.count())
        self._wake = asyncio.Event()
        self._due: list[tuple[float, str]] = []
        """Heap of the words in flight: when each is due, and its request."""

    def admit(self, words: Sequence[str], reply: int, arguments: dict[str, Any] | None = None) -> Job:
        """Add a request. ``arguments``: its session and hints."""
        ids = [word_id(word) for word in words]
        job = Job(next(self._names), zlib.crc32(repr(ids).encode()))
        self.jobs[job.name] = job
        job.request = self.engine.add(job.name, ids, reply, arguments)
        self._wake.set()
        return job

    def drop(self, job: Job) -> None:
        """Abort a request if it has not ended."""
        if self.jobs.pop(job.name, None) is not None:
            self.scheduler.finish_requests(job.name, self._aborted)
            self._wake.set()

    async def serve(self) -> None:
        """Schedule as long as there are requests, and wait for some.

        Each event has the time at which it should be, also if this process gets a processor later. So engines are not slower
        on a busy machine; only their answers are late.
        """
        now = asyncio.get_running_loop().time
        at = now()
        while True:
            self._wake.clear()
            self.engine.now = EPOCH_S + at / self._scale
            prefill = self._begin(self.scheduler.schedule(), at)
            ends = at + sum(prefill.values()) / self._rate if prefill else math.inf
            while True:
                following = min(ends, self._due[0][0] if self._due else math.inf)
                if prefill:
                    await asyncio.sleep(max(following - now(), 0.0))
                elif await self._woken(following - now()):
                    at = max(at, min(now(), following))
                    break
                at = following
                self._decode(at)
                if at >= ends:
                    self._update(prefill, at)
                if at >= ends or not prefill:
                    break

    async def _woken(self, within_s: float) -> bool:
        """Wait for a request or for this time; return whether there is one."""
        if within_s <= 0:
            await asyncio.sleep(0)
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), None if within_s == math.inf else within_s)
        return self._wake.is_set()

    def _begin(self, planned: Any, now: float) -> dict[str, int]:
        """Return the tokens of a step that are prefill, by request; put the words that it decodes in flight."""
        self._planned = planned
        prefill = {}
        for name, tokens in planned.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            if tokens == 1 and request.num_output_tokens and request.num_computed_tokens == request.num_tokens:
                job = self.jobs[name]
                job.due = max(job.due + self._word_s, now)
                heapq.heappush(self._due, (job.due, name))
            else:
                prefill[name] = tokens
        return prefill

    def _decode(self, now: float) -> None:
        """Pass on the words that are due."""
        if not self._due or self._due[0][0] > now:
            return
        words: dict[str, int] = {}
        while self._due and self._due[0][0] <= now + SLACK * self._word_s:
            words[heapq.heappop(self._due)[1]] = 1
        self._update(words, now)

    def _update(self, tokens: dict[str, int], now: float) -> None:
        """Give the scheduler the outputs of these requests, and clients their words."""
        sampled: list[list[int]] = []
        before: dict[str, int] = {}
        for name in tokens:
            request = self.scheduler.requests.get(name)
            complete = request is not None and request.num_computed_tokens >= request.num_tokens
            job = self.jobs.get(name)
            if request is None or job is None or not complete:
                sampled.append([])
                continue
            before[name] = request.num_output_tokens
            if not before[name]:
                job.due = now
            sampled.append([word_id(job.word(before[name]))])
        self.engine.now = EPOCH_S + now / self._scale
        outputs = self.scheduler.update_from_output(
            dataclasses.replace(self._planned, num_scheduled_tokens=tokens),
            self._output(req_ids=list(tokens), req_id_to_index={n: i for i, n in enumerate(tokens)}, sampled_token_ids=sampled),
        )
        for output in itertools.chain.from_iterable(each.outputs for each in outputs.values()):
            if output.prefill_stats is not None:
                self.jobs[output.request_id].cached = output.prefill_stats.num_cached_tokens
        for name, place in before.items():
            job = self.jobs[name]
            if job.request.num_output_tokens > place:
                job.words.put_nowait(job.word(place))
            if job.request.is_finished():
                del self.jobs[name]
                job.words.put_nowait(None)


class Api:
    """OpenAI's chat API of an engine, as an ASGI application."""

    def __init__(self, engine: ScaledEngine, name: str, blocks: int) -> None:
        self._engine, self._name, self._blocks = engine, name, blocks

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        path = scope["path"]
        if path == "/v1/chat/completions":
            try:
                fields = json.loads(await _body(receive))
                words, reply = words_of(fields["messages"]), int(fields.get("max_tokens") or 16)
                if len(words) + reply > min(self._blocks * 16, LONGEST):
                    raise ValueError("the prompt is longer than the cache")
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                await _send(send, {"error": {"message": str(error), "code": 400}}, 400)
                return
            await self._chat(fields, words, reply, receive, send)
        elif path in ("/v1/chat/completions/render", "/tokenize"):
            ids = [word_id(word) for word in words_of(json.loads(await _body(receive))["messages"])]
            await _send(send, {"token_ids": ids, "tokens": ids, "count": len(ids), "max_model_len": LONGEST})
        elif path == "/metrics":
            text = f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{self._blocks}"}} 1.0\n'
            await _send(send, text.encode())
        elif path == "/reset_prefix_cache":
            await _send(send, {"success": self._engine.scheduler.reset_prefix_cache()})
        elif path == "/version":
            await _send(send, {"version": "0.32.0"})
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
    prompt, reply = job.request.num_prompt_tokens, job.request.num_output_tokens
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


def made(blocks: int, schedule: str, step_tokens: int, events_port: int | None = None) -> Any:
    """Return a scheduler with this many usable blocks.

    Args:
        schedule: stock: vLLM's own; learned: ours, warm first and with keep, evicting as vLLM does.
        step_tokens: most tokens of a step.
        events_port: port on which it publishes its KV events; None: it publishes none.
    """
    from vllm.config.kv_events import KVEventsConfig

    from testing.bare_scheduler import Engine, vllm_config

    config = vllm_config()
    config.model_config.max_model_len = LONGEST
    config.scheduler_config.max_num_batched_tokens = step_tokens
    learned = schedule == "learned"
    settings: dict[str, Any] = {"rule": "lru", "schedule": "warm-first", "keep_waiting": True} if learned else {}
    before = config.kv_events_config  # the configuration is that of all engines of the process
    if events_port is not None:
        # vLLM binds only an endpoint with an asterisk, and connects to any other.
        config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, endpoint=f"tcp://*:{events_port}")
    try:
        return Engine(blocks + 1, learned=learned, max_seqs=MOST_SEQS, **settings)  # vLLM reserves one
    finally:
        config.kv_events_config = before


async def serve(options: argparse.Namespace) -> None:
    """Serve until the process is ended."""
    import uvicorn

    engine = ScaledEngine(
        made(options.blocks, options.schedule, options.step_tokens, options.events_port),
        options.prefill_rate,
        options.output_token_ms / 1000,
        options.time_scale,
    )
    app = Api(engine, f"engine-{options.port}", options.blocks)
    config = uvicorn.Config(app, port=options.port, log_level="warning", access_log=False, lifespan="off", backlog=4096)
    scheduling = asyncio.create_task(engine.serve())
    serving = asyncio.create_task(uvicorn.Server(config).serve())
    done, _ = await asyncio.wait((scheduling, serving), return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


def main() -> None:
    """Read the options, and serve."""
    settle()
    parser = argparse.ArgumentParser(prog="python -m testing.scaled_engine", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True, help="Blocks of 16 words that the cache holds.")
    parser.add_argument("--prefill-rate", type=float, default=10_000.0, help="Words of prompts per second.")
    parser.add_argument("--output-token-ms", type=float, default=40.0, help="Milliseconds per word of a reply.")
    parser.add_argument("--schedule", choices=("stock", "learned"), default="stock")
    parser.add_argument("--step-tokens", type=int, default=256, help="Most words of a step.")
    parser.add_argument("--time-scale", type=float, default=1.0, help="Seconds per second of the scheduler's clock.")
    parser.add_argument("--events-port", type=int, help="Port on which KV events are published.")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
