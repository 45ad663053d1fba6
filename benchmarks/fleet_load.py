"""Clients of benchmark `fleet`: sessions of a log in a closed loop, which send the whole conversation and read a stream."""

import asyncio
import contextlib
import json
import sys
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

import httpx2

from benchmarks import BenchmarkError
from lpc_apps.simulator.sessions import PAUSE_S, STAGGER_S, Sessions, chain
from lpc_apps.simulator.workload import Turn, Workload

NAMES: Final = ("x-session-id", "x-smg-routing-key")
"""Header fields with the name of a session: one that most routers read, and smg's."""
LINE_S: Final = 15.0
"""Seconds between lines of progress."""
MOST_FAILED: Final = 0.02
"""Share of failed requests above which a run has no result."""


@dataclass(frozen=True)
class Load:
    """The load and the speed of engines, in units of the log.

    Attributes:
        sessions: concurrent sessions of all engines.
        requests: answers after which a run ends; those after the first quarter count.
        capacity: tokens of an engine's cache.
        prefill_rate: tokens per second.
        output_token_ms: milliseconds per token of a reply.
        scale: tokens of the log per word.
        time_scale: seconds per second of the log.
        named: clients name their session.
    """

    engines: int
    sessions: int
    requests: int
    capacity: int
    prefill_rate: float
    output_token_ms: float
    scale: int
    time_scale: float
    named: bool = True


class Conversation:
    """The messages of one session as its client sends them.

    A word stands for `scale` tokens. A prompt that continues the one before repeats that and the engine's reply.

    Args:
        shared: blocks with which several sessions begin: the system message.
    """

    def __init__(self, block_tokens: int, scale: int, shared: frozenset[int]) -> None:
        self._scale, self._per_block, self._shared = scale, max(block_tokens // scale, 1), shared
        self.messages: list[dict[str, str]] = []
        self._before: Sequence[int] = ()

    def ask(self, turn: Turn) -> list[dict[str, str]]:
        """Return the messages of a request."""
        contents = turn.contents
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._before, contents, strict=False)))
        if common < len(self._before):
            self._cut(common * self._per_block)
        self._before = contents
        words = turn.input_tokens // self._scale - 1  # the last one is for the reply's role
        used = sum(map(_length, self.messages))
        if not used and (system := len(list(takewhile(self._shared.__contains__, contents)))):
            used = min(system * self._per_block, words - 2)
            if used > 1:
                self._add("system", turn, 0, used)
        used = sum(map(_length, self.messages))
        self._add("user", turn, used, max(words, used + 2))
        return self.messages

    def _add(self, role: str, turn: Turn, start: int, end: int) -> None:
        """Add a message that takes the words from ``start`` to ``end`` of the prompt, one of them for its role."""
        self.messages.append({"role": role, "content": " ".join(self._word(turn, at) for at in range(start + 1, end))})

    def _word(self, turn: Turn, at: int) -> str:
        block, place = divmod(at, self._per_block)
        of = turn.contents[block] if block < len(turn.contents) else f"{turn.conversation}/{turn.turn}"
        return f"{zlib.crc32(f'{of} {place}'.encode()):x}"

    def _cut(self, words: int) -> None:
        """Keep the first words of the messages."""
        kept = []
        for message in self.messages:
            length = min(_length(message), words)
            words -= length
            if length > 1:
                kept.append({**message, "content": " ".join(message["content"].split()[: length - 1])})
        self.messages = kept

    def reply(self, text: str) -> None:
        """Record the reply to the last request."""
        self.messages.append({"role": "assistant", "content": text.strip()})


def _length(message: Mapping[str, str]) -> int:
    return 1 + message["content"].count(" ") + bool(message["content"])


@dataclass
class Counts:
    """What the answers of a run report, of those that count."""

    answers: int = 0
    failed: int = 0
    cached: int = 0
    prompt: int = 0
    since: float = 0.0
    until: float = 0.0
    latencies: list[float] = field(default_factory=list)
    first_words: list[float] = field(default_factory=list)
    engines: Counter[str] = field(default_factory=Counter)
    later: int = 0
    stayed: int = 0


@dataclass(frozen=True)
class Answer:
    """An answer. ``engine``: its name; ``latency_s``, ``first_s``: to its end and to its first word, seconds."""

    text: str
    engine: str
    cached: int
    prompt: int
    latency_s: float
    first_s: float


async def ask(http: httpx2.AsyncClient, url: str, fields: dict[str, Any], session: str | None) -> Answer:
    """Send a request and read its stream. Raises httpx2.HTTPError, and ValueError if the answer is not whole."""
    headers = {"content-type": "application/json", **(dict.fromkeys(NAMES, session) if session else {})}
    words: list[str] = []
    engine_name, usage = "", dict[str, Any]()
    began = time.perf_counter()
    first: float | None = None
    content = json.dumps({"model": "m", "stream": True, "stream_options": {"include_usage": True}, **fields})
    async with http.stream("POST", f"{url}/v1/chat/completions", content=content, headers=headers) as response:
        if response.status_code != 200:
            raise ValueError(f"{response.status_code}: {(await response.aread())[:200]!r}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            engine_name = event.get("system_fingerprint") or engine_name
            usage = event.get("usage") or usage
            for choice in event.get("choices", ()):
                first = time.perf_counter() if first is None else first
                words.append(choice["delta"].get("content") or "")
    ended = time.perf_counter()
    if not usage or first is None:
        raise ValueError("the answer ended early")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Answer("".join(words), engine_name, cached, usage["prompt_tokens"], ended - began, first - began)


class Run:
    """One run of a load against a router.

    Args:
        urls: of the router's processes, between which the turns of a session alternate.
    """

    def __init__(self, workload: Workload, load: Load, urls: Sequence[str], name: str) -> None:
        self._load, self._urls, self._name = load, urls, name
        self._workload = workload
        self._sessions = Sessions(workload)
        firsts = Counter(block for turn in workload.arrivals for block in set(turn.contents))
        self._shared = frozenset(block for block, sessions in firsts.items() if sessions > 1)
        self._number = 0
        self.counts = Counts()
        self._ended = asyncio.Event()
        self._last = ""

    async def run(self) -> Counts:
        """Serve until enough requests are answered. Raises BenchmarkError if too many fail."""
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self.counts.since = began = shown = time.perf_counter()
        async with httpx2.AsyncClient(timeout=None, limits=limits, trust_env=False) as http:
            clients = [asyncio.create_task(self._client(http, place)) for place in range(self._load.sessions)]
            try:
                while not self._ended.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._ended.wait(), LINE_S)
                    if broken := [task for task in clients if task.done() and not task.cancelled() and task.exception()]:
                        raise BenchmarkError(f"{self._name}: {broken[0].exception()!r}")
                    if time.perf_counter() - shown >= LINE_S:
                        shown = time.perf_counter()
                        done, counts = self.counts.answers, self.counts
                        hits = f"{counts.cached / counts.prompt:.1%} hits" if counts.prompt else "warm-up"
                        note = f"{self._name}: {done:,} of {self._load.requests:,} answers, {hits}, {shown - began:.0f} s"
                        print(
                            note + (f", {self.counts.failed} failed: {self._last}" if self.counts.failed else ""),
                            file=sys.stderr,
                        )
            finally:
                for client in clients:
                    client.cancel()
                await asyncio.gather(*clients, return_exceptions=True)
        if self.counts.failed > MOST_FAILED * self._load.requests:
            raise BenchmarkError(f"{self._name}: {self.counts.failed} requests failed, the last with {self._last}")
        return self.counts

    async def _client(self, http: httpx2.AsyncClient, place: int) -> None:
        await self._pause(place * STAGGER_S)
        while True:
            await self._session(http)
            await self._pause(PAUSE_S)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self._load.time_scale)

    async def _session(self, http: httpx2.AsyncClient) -> None:
        load = self._load
        self._number += 1
        number = self._number
        session = f"s{number}" if load.named else None
        conversation = Conversation(self._workload.block_tokens, load.scale, self._shared)
        before = ""
        for place, turn in enumerate(chain(self._sessions.start(0.0))):
            if place:
                await self._pause(turn.gap)
            reply = max(round(turn.output_tokens / load.scale), 1)
            fields = {"messages": conversation.ask(turn), "max_tokens": reply}
            try:
                answer = await ask(http, self._urls[(number + place) % len(self._urls)], fields, session)
            except (httpx2.HTTPError, ValueError) as error:
                self.counts.failed += 1
                self._last = repr(error)[:200]
                if self.counts.failed > MOST_FAILED * load.requests:
                    self._ended.set()
                return
            conversation.reply(answer.text)
            self._count(answer, before)
            before = answer.engine

    def _count(self, answer: Answer, before: str) -> None:
        counts = self.counts
        counts.answers += 1
        now = time.perf_counter()
        if counts.answers <= self._load.requests // 4:
            counts.since = now
            return
        if counts.answers > self._load.requests:
            return
        counts.until = now
        counts.cached += answer.cached
        counts.prompt += answer.prompt
        counts.latencies.append(answer.latency_s)
        counts.first_words.append(answer.first_s)
        counts.engines[answer.engine] += 1
        if before:
            counts.later += 1
            counts.stayed += answer.engine == before
        if counts.answers == self._load.requests:
            self._ended.set()
