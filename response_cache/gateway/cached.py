"""Look-ups and stores of the gateway in the response caches."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from lpc.cache.v1 import response_cache_pb2 as pb
from response_cache.client import DENIED, CacheError, ResponseCacheClient
from response_cache.gateway.errors import GatewayError
from response_cache.gateway.headers import Directives
from response_cache.gateway.metrics import Metrics

log = logging.getLogger(__name__)

_ASKED_OFF: Final = frozenset((pb.REASON_OFF, pb.REASON_REFUSED, pb.REASON_UNAVAILABLE))
"""Misses after which no answer is stored, unless other requests wait for it."""

FREQUENT_WAITS_S: Final = (0.2, 0.4, 0.8, 1.6)
"""Pauses before yesterday's questions are asked for again."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a look-up.

    Attributes:
        question: the request to the sidecar; None: nothing to look up.
        hit: the cached answer; None: a miss.
        miss: reason of a miss; empty after a hit, or without a look-up.
    """

    question: pb.Request | None
    hit: pb.Hit | None = None
    miss: pb.Miss = field(default_factory=pb.Miss)

    @property
    def asked(self) -> bool:
        """Whether the cache applies to this request."""
        return self.question is not None and self.miss.reason not in _ASKED_OFF

    @property
    def label(self) -> str:
        """The value of x-lpc-cache."""
        return "miss" if self.hit is None else pb.Source.Name(self.hit.source).removeprefix("SOURCE_").lower()


class Cached:
    """The gateway's access to the response caches. Belongs to one event loop.

    Args:
        client: of the sidecar; None: no cache.
        wait_s: longest time that a request waits for an identical one.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        client: ResponseCacheClient | None,
        wait_s: float,
        metrics: Metrics,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._client = client
        self._wait_s = wait_s
        self._metrics = metrics
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._denied = False

    def concerns(self, directives: Directives) -> bool:
        """Whether there is a cache and a request's Cache-Control permits a look-up or a store."""
        return self._client is not None and (directives.lookup or directives.store)

    async def find(self, question: pb.Request | None, directives: Directives) -> Found:
        """Look an answer up, if the request's Cache-Control allows it. Never raises.

        If the caller is cancelled, no other request is left waiting for its answer.
        """
        if self._client is None or question is None or not directives.lookup:
            return Found(question)
        wait_s = 0.0 if directives.only_if_cached else self._wait_s
        began = self._clock()
        # Without an engine's answer there is no evidence for the semantic tier, so only_if_cached excludes it.
        answer = await self._client.lookup(question, exact_only=directives.only_if_cached, will_wait=wait_s > 0)
        self._metrics.lookup_seconds.observe(self._clock() - began)
        if answer.miss.reason == pb.REASON_IN_FLIGHT and wait_s:
            answer = await self._client.wait_for_answer(question, wait_s)
        reason = answer.miss.reason
        denied = answer.miss.refusal == DENIED
        if denied and not self._denied:
            log.error(
                "the sidecar does not accept tenants from this gateway, so nothing is cached: add the gateway's token name "
                "to the sidecar's LPC_CACHE_GATEWAYS"
            )
        self._denied = denied
        self._metrics.cache_up.set(reason != pb.REASON_UNAVAILABLE and not denied)
        if answer.HasField("hit"):
            return Found(question, hit=answer.hit)
        self._metrics.misses.labels(DENIED if denied else pb.Reason.Name(reason).removeprefix("REASON_").lower()).inc()
        return Found(question, miss=answer.miss)

    def wants(self, found: Found, *, store: bool) -> bool:
        """Return whether an engine's answer can be stored, another request waits for it, or it is evidence."""
        if self._client is None or found.question is None or found.hit is not None:
            return False
        miss = found.miss
        return bool(miss.flight or miss.candidate) or (store and miss.reason not in _ASKED_OFF)

    def hand_in(self, found: Found, response: pb.Response | None, *, store: bool = True, ended: bool = False) -> None:
        """Store the engine's answer in the background.

        Args:
            found: the look-up of the request.
            response: the answer; None: it cannot be stored.
            store: whether the request permits it.
            ended: whether the answer was complete. If so, waiting requests need not repeat it one after the other.
        """
        if self._client is None or not self.wants(found, store=store and response is not None):
            return
        miss = found.miss
        message = pb.StoreRequest(
            request=found.question,
            response=response,
            flight=miss.flight,
            candidate=miss.candidate,
            aborted=response is None and not ended,
            no_store=not store,
        )
        self._later(self._store(self._client, message))

    async def feedback(self, message: pb.FeedbackRequest) -> pb.FeedbackResponse:
        """Send feedback about an answer. Raises GatewayError."""
        with _refused():
            return await self._required().feedback(message)

    async def frequent(self, message: pb.FrequentRequest) -> pb.FrequentResponse:
        """Return yesterday's frequent questions. Raises GatewayError.

        After a time-out of any command the sidecar asks Redis nothing for a moment, in which this is asked again.
        """
        client = self._required()
        with _refused():
            found = await client.frequent(message)
            for wait_s in FREQUENT_WAITS_S:
                if found.known:
                    break
                await asyncio.sleep(wait_s)
                found = await client.frequent(message)
        if not found.known:
            raise GatewayError(503, "the response caches do not reach their Redis: try again later")
        return found

    def _required(self) -> ResponseCacheClient:
        if self._client is None:
            raise GatewayError(404, "this gateway has no cache (LPC_GATEWAY_CACHE)")
        return self._client

    async def close(self) -> None:
        """Finish the background work and close the connection."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            with contextlib.suppress(Exception):
                await self._client.close()

    async def _store(self, client: ResponseCacheClient, message: pb.StoreRequest) -> None:
        stored = await client.store(message)
        self._metrics.stores.labels("stored" if stored.stored else stored.refusal or "refused").inc()

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """Raise GatewayError (503) if the caches cannot be asked."""
    try:
        yield
    except CacheError as error:
        raise GatewayError(503, str(error)) from error
