"""The gateway's queue: requests wait here instead of in the engine, and are handed on warm first (`lpc_apps.routing.held`).

Nothing is held for an engine whose cache's size is not known, since the order depends on what it has cached. An answer that is
not streamed shows no first token. vLLM counts them, so its count is read while such requests are in prefill; no request waits
for it. For other engines the end is estimated, and such requests are held only if the engine's speed is known. An engine that
shows no first token in `SLOW` times the time that its prefill should take gets the next request: its own queue decides then.
"""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import httpx2

from lpc_apps.routing.held import Held
from lpc_apps.routing.router import Router, Sending
from response_cache.gateway.engines import Engine
from response_cache.gateway.errors import GatewayError
from response_cache.gateway.kinds import bytes_of, fields_of
from response_cache.gateway.metrics import Metrics

LOOK_S: Final = 1.0
"""Seconds between looks at whether the engine of a held request is still up."""
COUNT_TIMEOUT_S: Final = 1.0
MEASURED_S: Final = 60.0
"""Seconds after which an engine is asked again how large its cache is."""
METRICS_BYTES: Final = 4 << 20
MOST_TOKENS: Final = 10**10
_CACHE: Final = re.compile(rb"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_NUMBER: Final = re.compile(rb'(?:^|,)(block_size|num_gpu_blocks|kv_cache_size_tokens)="(\d{1,12})"')
"""Of a model with several kinds of layers a token takes blocks of each, so vLLM states its tokens from 0.32 on."""
_FIRST: Final = re.compile(rb"^vllm:time_to_first_token_seconds_count(?:\{[^\n]*\})? ([0-9.e+]{1,24})$", re.MULTILINE)
"""SGLang counts an answer without a stream at its fiftieth token, so its count is not read."""


class EngineDown(Exception):
    """The engine went down while it was to get a held request."""


class Queue:
    """Requests that are held, by engine. Lives on one event loop.

    Args:
        tokens: size of each engine's cache; None: the engines are asked.
        longest_s: seconds after which a held request is refused.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        router: Router,
        metrics: Metrics,
        tokens: int | None = None,
        longest_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engines, self._router, self._tokens, self._longest_s, self._clock = engines, router, tokens, longest_s, clock
        self._held: list[Held | None] = [None] * len(engines)
        self._asked_at = [-MEASURED_S] * len(engines)
        self._turns: dict[Sending, asyncio.Future[None]] = {}
        self._timers: list[asyncio.TimerHandle | None] = [None] * len(engines)
        self._seconds = metrics.held_seconds
        for number, engine in enumerate(engines):
            metrics.held.labels(engine.name).set_function(partial(self._length, number))
            if tokens is not None:
                self._size(number, tokens, 1)

    def takes(self, number: int, *, streamed: bool) -> bool:
        """Return whether a request for an engine goes through the queue."""
        engine = self._router.engines[number]
        return self.knows(number) and (streamed or engine.is_measured or engine.counted)

    def knows(self, number: int) -> bool:
        """Return whether the size of an engine's cache is known."""
        return self._held[number] is not None

    def passes(self, sending: Sending) -> None:
        """Record a request that an engine gets at once."""
        held = self._held[sending.engine]
        assert held is not None
        held.hand(sending, self._clock())

    async def turn(self, sending: Sending, share: str = "", priority: int = 0) -> None:
        """Wait until the engine is to get a request.

        Args:
            share: who shares the engine's prefill with others.
            priority: among the requests of this share, the lowest number first.

        Raises:
            EngineDown: the engine went down.
            GatewayError: it was held for too long (503).
        """
        number = sending.engine
        held = self._held[number]
        assert held is not None
        if held.has_room(now := self._clock()):
            held.hand(sending, now)
            self._seconds.observe(0.0)
            return
        held.add(sending, share, priority)
        turn = self._turns[sending] = asyncio.get_running_loop().create_future()
        began = self._clock()
        try:
            self.pump(number)
            while not turn.done():
                await asyncio.wait((turn,), timeout=LOOK_S)
                if turn.done():
                    break
                if not self._engines[number].ready:
                    raise EngineDown
                if self._clock() - began > self._longest_s:
                    waited = f"the request waited {self._longest_s:g} s for an engine"
                    raise GatewayError(503, f"{waited} (LPC_GATEWAY_QUEUE_TIMEOUT_S): try again later")
        finally:
            del self._turns[sending]
            if sending in held:
                held.drop(sending)
                self.pump(number)
            self._seconds.observe(self._clock() - began)

    def pump(self, number: int) -> None:
        """Hand on what an engine is to have now."""
        held = self._held[number]
        if held is None or not (len(held) or self._timers[number]):
            return
        now = self._clock()
        while (sending := held.hand_on(now)) is not None:
            turn = self._turns.get(sending)
            if turn is not None and not turn.done():
                turn.set_result(None)
        timer = self._timers[number]
        if timer is not None:
            timer.cancel()
        at = held.next_at(now) if len(held) else None
        loop = asyncio.get_running_loop()
        self._timers[number] = None if at is None else loop.call_later(max(at - now, 0.0) + 0.001, self.pump, number)

    def began(self, sending: Sending) -> None:
        """Record the first bytes of an answer."""
        held = self._held[sending.engine]
        if held is not None:
            held.first_tokens.first(sending)

    def answered(self, sending: Sending, cached: int | None) -> None:
        """Record the end of a request, and the cached tokens that its answer reports; None: there are none."""
        held = self._held[sending.engine]
        if held is not None:
            held.answered(sending, cached)

    def lost(self, number: int) -> None:
        """Record that an engine has ended: its cache is empty."""
        held = self._held[number]
        if held is not None:
            held.cache.clear()
        self._asked_at[number] = -MEASURED_S

    async def count(self, http: httpx2.AsyncClient, headers: dict[str, str]) -> None:
        """Read the counts of first tokens of the engines that compute prompts whose answers are not streamed."""
        now = self._clock()
        asked = [
            number
            for number, held in enumerate(self._held)
            if held is not None and self._engines[number].up and held.first_tokens.asks(now)
        ]
        await asyncio.gather(*(self._count(number, http, headers) for number in asked))

    async def _count(self, number: int, http: httpx2.AsyncClient, headers: dict[str, str]) -> None:
        held = self._held[number]
        assert held is not None
        try:
            async with asyncio.timeout(COUNT_TIMEOUT_S):
                count = await first_tokens_of(http, self._engines[number].url, headers)
        except (httpx2.HTTPError, TimeoutError):
            held.first_tokens.unknown(self._clock())
            return
        if count is None:
            held.first_tokens.unknown(self._clock(), MEASURED_S)
        elif held.first_tokens.read(count, self._clock()):
            self.pump(number)

    async def measure(self, http: httpx2.AsyncClient, headers: dict[str, str]) -> None:
        """Ask the engines that are up how large their caches are, each once in `MEASURED_S`."""
        if self._tokens is not None:
            return
        now = self._clock()
        for number, engine in enumerate(self._engines):
            if engine.up and now - self._asked_at[number] >= MEASURED_S:
                self._asked_at[number] = now
                try:
                    found = await tokens_of(http, engine.url, headers)
                except httpx2.HTTPError:
                    continue
                if found is not None:
                    self._size(number, *found)

    def _size(self, number: int, tokens: int, ranks: int) -> None:
        held = self._held[number]
        if held is None:
            self._held[number] = Held(self._router.engines[number], tokens, ranks)
        else:
            held.resize(tokens, ranks)

    def _length(self, number: int) -> int:
        held = self._held[number]
        return 0 if held is None else len(held)


async def first_tokens_of(http: httpx2.AsyncClient, url: str, headers: dict[str, str]) -> int | None:
    """Return how many first tokens all ranks of an engine have counted; None: it does not say. Raises httpx2.HTTPError."""
    counts = _FIRST.findall(await bytes_of(http, f"{url}/metrics", headers, METRICS_BYTES))
    try:
        return int(sum(map(float, counts))) if counts else None
    except (ValueError, OverflowError):
        return None


async def tokens_of(http: httpx2.AsyncClient, url: str, headers: dict[str, str]) -> tuple[int, int] | None:
    """Return the tokens of an engine's cache, of all its data-parallel ranks together, and the number of these ranks.

    None: it does not say. Raises httpx2.HTTPError.
    """
    tokens = ranks = 0
    for labels in _CACHE.findall(await bytes_of(http, f"{url}/metrics", headers, METRICS_BYTES)):
        sizes = {name: int(number) for name, number in _NUMBER.findall(labels)}
        ranks += 1
        tokens += sizes.get(b"kv_cache_size_tokens") or sizes.get(b"block_size", 0) * sizes.get(b"num_gpu_blocks", 0)
    if not tokens:
        fields: Any = await fields_of(http, f"{url}/server_info", headers)
        found = fields.get("max_total_num_tokens")
        tokens = found if isinstance(found, int) and not isinstance(found, bool) else 0
    return (tokens, max(ranks, 1)) if 0 < tokens <= MOST_TOKENS else None
