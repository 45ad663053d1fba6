"""Hit checks: does a prompt that hits get the answer that computing it gives?

Of a share of the requests that hit, the prompt is sent to the same engine again, twice: as it was, so that it hits what the
request has hit, and with a new cache salt, so that all of it is computed. Both have temperature 0, and their log-probabilities
are compared (`response_cache.gateway.check_verdict`). If they differ, three more requests find out whether the engine agrees
with itself, and whether a hit of what was just computed differs as well.

A check runs in an idle engine: it begins while that has at most so many requests, it is broken off when another one comes, and
afterwards the engine is left alone for `Bounds.check_rest` times the seconds that it took. At most one request for each engine
waits to be checked. Nothing of a check reaches a client, the response caches, the router or the queue.
"""

import asyncio
import contextlib
import hmac
import json
import logging
import math
import random
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from typing import Any, Final, Literal, get_args

import httpx2

from lpc.wire.bugs import log_bug
from lpc.wire.headers import Headers
from response_cache.gateway.check_body import CheckBody, Reason, check_body
from response_cache.gateway.check_verdict import (
    CheckAnswer,
    Confirmed,
    Difference,
    Result,
    check_answer,
    confirmed,
    difference,
)
from response_cache.gateway.engines import Engine, Engines
from response_cache.gateway.headers import ENGINE_KEYS
from response_cache.gateway.kinds import bytes_of, fields_of
from response_cache.gateway.metrics import Metrics
from response_cache.gateway.request import NUMBERS, values_exceed
from response_cache.gateway.settings import Bounds, GatewaySettings
from response_cache.gateway.targets import PROMPTS
from response_cache.gateway.usage import PromptTokens, Usage

log = logging.getLogger(__name__)

BODY_BYTES: Final = 2**20
"""Longest body that is kept for a check."""
MOST_VALUES: Final = 20_000
"""JSON values of such a body, which is read and written while other threads wait, in about 1 microsecond each."""
ANSWER_BYTES: Final = 2**18
METRICS_BYTES: Final = 4 << 20
LEAST_S: Final = 0.02
"""Seconds that a check counts as having taken at least."""
_RUNNING: Final = re.compile(
    rb"^(?:vllm:num_requests_(?:running|waiting)|sglang:num_(?:running|queue)_reqs)(?:\{[^\n]*\})? ([0-9.e+]{1,24})$",
    re.MULTILINE,
)
_LOADED: Final = re.compile(rb"^vllm:external_prefix_cache_hits_total(?:\{[^\n]*\})? ([0-9.e+]{1,24})$", re.MULTILINE)
SUSPECT: Final = frozenset(("hit", "blocks", "tier", "adapter"))
"""Results of which the log has a line."""

Skipped = (
    Reason
    | Literal["size", "no_store", "no_hit", "busy", "gave_way", "evicted", "prompt"]
    | Literal["unreported", "salt_ignored", "refused", "failed", "unreadable"]
)


@dataclass(frozen=True, slots=True)
class Kept:
    """A request that an engine has answered, until it is checked.

    Attributes:
        path, target, headers, body: as the engine was sent them; the headers have only its keys.
        tokens: of the prompt, and those of them that were ``cached``; None: not reported.
        at: when it was answered, monotonic seconds.
    """

    path: str
    target: bytes
    headers: Headers
    body: bytes
    tokens: int | None = None
    cached: int | None = None
    at: float = 0.0


class _Skip(Exception):
    """A check ends without a result. ``reason``: a value of `Skipped`."""

    def __init__(self, reason: Skipped) -> None:
        super().__init__(reason)
        self.reason: Skipped = reason


class _Place:
    """The checks of one engine: the request that waits, the task, and when the next one may begin."""

    def __init__(self) -> None:
        self.kept: Kept | None = None
        self.task: asyncio.Task[None] | None = None
        self.rests_until = -math.inf


class Checks:
    """Checks hits. Lives on one event loop.

    Args:
        http: opens a connection for each request, so that closing it ends the request in the engine.
        kind: returns the kind of an engine; None: it was not asked yet, and no check begins.
        secret: key of the digests in the log.
        draw: returns a number from [0, 1).
        clock: monotonic seconds.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        bounds: Bounds,
        http: httpx2.AsyncClient,
        engines: Engines,
        metrics: Metrics,
        kind: Callable[[Engine], str | None],
        secret: bytes,
        draw: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share, self._most = settings.gateway_check_share, settings.gateway_check_in_flight
        self._bounds, self._http, self.kind_of = bounds, http, kind
        self._secret, self._draw, self._clock = secret, draw, clock
        self._metrics = metrics
        self._places = {engine: _Place() for engine in engines.all}
        self._tokens = {engine: PromptTokens(metrics.check_tokens, engine.name) for engine in engines.all}
        self._told: set[tuple[str, str]] = set()
        for engine, place in self._places.items():
            for result in get_args(Result):  # from 0 on, so that a Prometheus counts the first ones as well
                metrics.checks.labels(engine.name, result)
            engine.gives_way = partial(self._give_way, engine, place)

    def following(
        self, engine: Engine | None, path: str, target: bytes, headers: Headers, body: object, *, store: bool
    ) -> "Following | None":
        """Return what follows an answer 200 to its end; None: the request is not drawn."""
        if path not in PROMPTS or engine is None or self._draw() >= self._share:
            return None
        if not store:
            self._skip("no_store")
        elif not isinstance(body, bytes) or len(body) > BODY_BYTES:
            self._skip("size")
        else:
            keys = [(name, value) for name, value in headers if name in ENGINE_KEYS]
            return Following(partial(self.offer, engine, Kept(path, target, keys, body)))
        return None

    def offer(self, engine: Engine, kept: Kept, tokens: int | None, cached: int | None) -> None:
        """Keep an answered request until its engine can be checked. The latest one is kept: it is cached most likely.

        ``tokens``, ``cached``: of its prompt, as its answer reports them; None: not reported.
        """
        if cached == 0:
            self._skip("no_hit")
            return
        place = self._places[engine]
        if place.kept is not None or place.task is not None:
            self._skip("busy")
        if place.task is None:
            place.kept = replace(kept, tokens=tokens, cached=cached, at=self._clock())

    async def run(self) -> None:
        """Begin the checks that can begin."""
        now = self._clock()
        for engine, place in self._places.items():
            if place.task is not None or place.kept is None:
                continue
            if now - place.kept.at > self._bounds.check_wait_s:
                place.kept = None
                self._skip("busy")
            elif self._is_free(engine, place, now):
                kept, place.kept = place.kept, None
                place.task = asyncio.create_task(self._check(engine, place, kept))
                place.task.add_done_callback(partial(self._ended, place))

    def _is_free(self, engine: Engine, place: _Place, now: float) -> bool:
        return now >= place.rests_until and engine.up and engine.in_flight <= self._most and self.kind_of(engine) is not None

    async def close(self) -> None:
        """Break off all checks."""
        tasks = [place.task for place in self._places.values() if place.task is not None]
        for place in self._places.values():
            place.kept = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _give_way(self, engine: Engine, place: _Place) -> None:
        if place.task is not None and engine.in_flight > self._most:
            place.task.cancel()

    def _ended(self, place: _Place, task: asyncio.Task[None]) -> None:
        """Make room for the next check. A task that is cancelled before it begins ends without running at all."""
        place.task = None
        if task.cancelled():
            self._skip("gave_way")

    def _skip(self, reason: Skipped) -> None:
        self._metrics.checks_skipped.labels(reason).inc()

    async def _check(self, engine: Engine, place: _Place, kept: Kept) -> None:
        began = self._clock()
        try:
            await self._compare(engine, kept)
        except _Skip as skip:
            self._skip(skip.reason)
            self._tell(engine, skip.reason)
        except Exception as error:  # an error here must not end the checks of an engine
            self._skip("failed")
            log_bug(log, "a hit check", error)
        finally:
            took_s = self._clock() - began
            self._metrics.check_seconds.labels(engine.name).inc(took_s)
            place.rests_until = self._clock() + self._bounds.check_rest * max(took_s, LEAST_S)

    async def _compare(self, engine: Engine, kept: Kept) -> None:
        body = await asyncio.to_thread(_read, kept)
        if not isinstance(body, CheckBody):
            raise _Skip(body)
        asking = _Asking(self, engine, kept, body)
        if await asking.requests() > self._most:
            raise _Skip("busy")
        cached = await asking.cached()
        salt = secrets.token_hex(16)
        computed = await asking.computed(salt)
        found = difference(cached.positions, computed.positions)
        self._metrics.check_nats.observe(found.nats)
        result: Result = "equal" if found.at is None else "tie"
        if not found.is_noise:
            result = await self._confirmed(asking, cached, computed, salt)
        self._metrics.checks.labels(engine.name, result).inc()
        if result in SUSPECT:
            self._report(engine, kept, result, cached, found)

    async def _confirmed(self, asking: "_Asking", cached: CheckAnswer, computed: CheckAnswer, salt: str) -> Result:
        """Return what a difference is. A confirmation that cannot end leaves it unconfirmed."""
        try:
            fresh_hit = await asking.fresh_hit(salt)  # first: what is computed next may evict its blocks
            again = Confirmed(await asking.cached(), await asking.computed(secrets.token_hex(16)), fresh_hit)
            result: Result = confirmed(cached, computed, again)
            if result != "blocks":
                return result
            return "adapter" if await asking.is_adapter() else "tier" if await asking.has_loaded() else "blocks"
        except (_Skip, asyncio.CancelledError):  # the check ends with this, so a cancellation is not lost
            return "unconfirmed"

    def _report(self, engine: Engine, kept: Kept, result: Result, cached: CheckAnswer, found: Difference) -> None:
        digest = hmac.new(self._secret, b"check" + kept.body, sha256).hexdigest()[:16]
        log.warning(
            "hit check: engine %s answers request %s (%s) otherwise from its cache than computed: %s, %.2f nats, %s, %d of %d "
            "prompt tokens cached",
            *(engine.name, digest, kept.path, result, found.nats),
            "the same tokens" if found.at is None else f"token {found.at + 1} is another one",
            *(cached.cached or 0, cached.tokens),
        )

    def _tell(self, engine: Engine, reason: Skipped) -> None:
        """Log once for each engine why none of its requests can be checked."""
        why = {
            "unreported": "it does not report cached tokens: start vLLM with --enable-prompt-tokens-details, SGLang with "
            "--enable-cache-report",
            "salt_ignored": "it answers a request with a new cache_salt from its cache or a tier, so nothing is computed again",
            "refused": "it refuses the check's request: see its log, and whether it permits log-probabilities",
        }.get(reason)
        if why is not None and (engine.name, reason) not in self._told:
            self._told.add((engine.name, reason))
            log.warning("hits of engine %s cannot be checked: %s", engine.name, why)

    async def ask(self, engine: Engine, kept: Kept, fields: Mapping[str, Any]) -> CheckAnswer:
        """Return an engine's answer to a request of a check. Raises _Skip."""
        message = self._http.build_request(
            "POST",
            engine.url,
            headers=[*kept.headers, (b"content-type", b"application/json")],
            content=await asyncio.to_thread(_written, fields),
            extensions={"target": engine.prefix + kept.target},
        )
        try:
            async with asyncio.timeout(self._bounds.check_timeout_s):
                response = await self._http.send(message, stream=True)
                async with contextlib.aclosing(response):
                    if response.status_code != HTTPStatus.OK:
                        refused = 400 <= response.status_code < 500 and response.status_code != HTTPStatus.TOO_MANY_REQUESTS
                        raise _Skip("refused" if refused else "failed")
                    read = bytearray()
                    async for piece in response.aiter_raw():
                        read += piece
                        if len(read) > ANSWER_BYTES:
                            raise _Skip("unreadable")
        except (httpx2.HTTPError, TimeoutError):
            raise _Skip("failed") from None
        try:
            answer = check_answer(json.loads(read))
        except (ValueError, RecursionError):
            answer = None
        if answer is None:
            raise _Skip("unreadable")
        self._tokens[engine].count(answer.tokens, answer.cached)
        return answer

    async def look(self, engine: Engine, path: str, headers: Headers) -> tuple[bytes, dict[str, Any]]:
        """Return the body of an engine's answer to a GET request, and the JSON object in it; empty: there is none."""
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        try:
            if path == "/metrics":
                return await bytes_of(self._http, engine.url + path, fields, METRICS_BYTES), {}
            return b"", await fields_of(self._http, engine.url + path, fields)
        except httpx2.HTTPError:
            return b"", {}


class _Asking:
    """The requests of one check. Each raises _Skip if the check cannot go on."""

    def __init__(self, checks: Checks, engine: Engine, kept: Kept, body: CheckBody) -> None:
        self._checks, self.engine, self._kept, self._body = checks, engine, kept, body

    async def requests(self) -> float:
        """Return how many requests the engine reports that it has, also those that went past this gateway."""
        found, _ = await self._checks.look(self.engine, "/metrics", self._kept.headers)
        return sum(_numbers(_RUNNING, found))

    async def cached(self) -> CheckAnswer:
        """Return the answer that hits what the checked request has hit."""
        answer = await self._ask(self._body.again(self._checks.kind_of(self.engine)))
        if answer.cached is None:
            raise _Skip("unreported")
        if self._kept.tokens is not None and answer.tokens != self._kept.tokens:
            raise _Skip("prompt")
        if answer.cached < max(self._kept.cached or 0, 1):
            raise _Skip("evicted")
        return answer

    async def computed(self, salt: str) -> CheckAnswer:
        """Return the answer under a new salt."""
        answer = await self._salted(salt)
        if answer.cached:
            raise _Skip("salt_ignored")
        return answer

    async def fresh_hit(self, salt: str) -> CheckAnswer:
        """Return the answer that hits what was computed under a salt."""
        answer = await self._salted(salt)
        if not answer.cached:
            raise _Skip("evicted")
        return answer

    async def _salted(self, salt: str) -> CheckAnswer:
        return await self._ask(self._body.salted(salt, self._checks.kind_of(self.engine)))

    async def _ask(self, fields: Mapping[str, Any]) -> CheckAnswer:
        return await self._checks.ask(self.engine, self._kept, fields)

    async def is_adapter(self) -> bool:
        """Return whether the request's model is an adapter, whose name may stand for other weights than before."""
        if "lora_path" in self._body.fields:
            return True
        _, listed = await self._checks.look(self.engine, "/v1/models", self._kept.headers)
        cards = listed.get("data")
        return any(
            isinstance(card, dict) and card.get("id") == self._body.model and card.get("parent") is not None
            for card in (cards if isinstance(cards, list) else ())
        )

    async def has_loaded(self) -> bool:
        """Return whether the engine has ever loaded blocks from a tier, as far as it reports."""
        found, _ = await self._checks.look(self.engine, "/metrics", self._kept.headers)
        return sum(_numbers(_LOADED, found)) > 0


class Following(Usage):
    """Follows the answer to a request that was drawn. ``ended`` takes what it reports."""

    def __init__(self, ended: Callable[[int | None, int | None], None]) -> None:
        super().__init__()
        self._ended = ended

    def end(self) -> None:
        """Take the end of the answer, whole or not."""
        self._ended(*self.read())


def _read(kept: Kept) -> CheckBody | Reason | Literal["size"]:
    if values_exceed(kept.body, MOST_VALUES, NUMBERS):
        return "size"
    try:
        fields = json.loads(kept.body)
    except (ValueError, RecursionError):
        return "form"
    return check_body(kept.path, fields) if isinstance(fields, dict) else "form"


def _written(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _numbers(pattern: re.Pattern[bytes], text: bytes) -> list[float]:
    with contextlib.suppress(ValueError):
        return [float(one) for one in pattern.findall(text)]
    return []
