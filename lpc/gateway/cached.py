"""What the response cache does for one request: an answer of it, or what is to be kept of the engine's."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from lpc.cache.client import DENIED, AsyncResponseCacheClient, CacheError
from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.gateway.errors import GatewayError
from lpc.gateway.headers import Directives
from lpc.gateway.metrics import Metrics

log = logging.getLogger(__name__)

_ASKED_OFF: Final = frozenset((pb.REASON_OFF, pb.REASON_REFUSED, pb.REASON_UNAVAILABLE))
"""Misses after which there is nothing to hand in, unless others wait for it."""


@dataclass(frozen=True, slots=True)
class Found:
    """What looking up came to.

    Attributes:
        question: as the sidecar was asked; None: it was not.
        hit: the answer; None: there is none.
        miss: why; empty where there is a hit, or nothing was looked up.
    """

    question: pb.Request | None
    hit: pb.Hit | None = None
    miss: pb.Miss = field(default_factory=pb.Miss)

    @property
    def asked(self) -> bool:
        """Whether the cache has to do with this request."""
        return self.question is not None and self.miss.reason not in _ASKED_OFF

    @property
    def label(self) -> str:
        """The value of x-lpc-cache."""
        return "miss" if self.hit is None else pb.Source.Name(self.hit.source).removeprefix("SOURCE_").lower()


class Cached:
    """The response caches as the gateway uses them. Lives on one event loop.

    Args:
        client: of the sidecar; None: there is no cache.
        wait_s: how long a request waits for an equal one.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        client: AsyncResponseCacheClient | None,
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
        """Whether there is a cache, and a request's Cache-Control leaves it something to do."""
        return self._client is not None and (directives.lookup or directives.store)

    async def find(self, question: pb.Request | None, directives: Directives) -> Found:
        """Look an answer up, if the request's Cache-Control allows it. Raises nothing.

        A caller that is cancelled before it returns leaves no other one waiting for its answer.
        """
        if self._client is None or question is None or not directives.lookup:
            return Found(question)
        wait_s = 0.0 if directives.only_if_cached else self._wait_s
        began = self._clock()
        # A request that never reaches an engine makes no evidence.
        exact_only = directives.only_if_cached
        answer = await self._client.lookup(question, exact_only=exact_only, max_age_s=directives.max_age_s)
        self._metrics.lookup_seconds.observe(self._clock() - began)
        if answer.miss.reason == pb.REASON_IN_FLIGHT and wait_s:
            answer = await self._client.follow(question, wait_s, max_age_s=directives.max_age_s)
        reason = answer.miss.reason
        denied = answer.miss.refusal == DENIED
        if denied and not self._denied:
            log.error(
                "the sidecar does not let this gateway name tenants, so nothing is cached: add the name of the gateway's token "
                "to LPC_CACHE_GATEWAYS of the sidecar"
            )
        self._denied = denied
        self._metrics.cache_up.set(reason != pb.REASON_UNAVAILABLE and not denied)
        if answer.HasField("hit"):
            return Found(question, hit=answer.hit)
        self._metrics.misses.labels(DENIED if denied else pb.Reason.Name(reason).removeprefix("REASON_").lower()).inc()
        return Found(question, miss=answer.miss)

    def hand_in(self, found: Found, response: pb.Response | None, *, store: bool = True, ended: bool = False) -> None:
        """Keep what the engine answered, in the background; None: there is nothing to keep.

        Args:
            store: the request does not forbid it.
            ended: the answer came to its end, whatever it was: those who wait for it need not try one after the other.
        """
        if self._client is None or found.question is None or found.hit is not None:
            return
        miss = found.miss
        if not (miss.flight or miss.candidate) and (response is None or not store or miss.reason in _ASKED_OFF):
            return  # nobody waits for it, and it is not evidence
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
        """Say whether an answer was right. Raises GatewayError."""
        if self._client is None:
            raise GatewayError(404, "this gateway has no cache (LPC_GATEWAY_CACHE)")
        try:
            return await self._client.feedback(message)
        except CacheError as error:
            raise GatewayError(503, str(error)) from error

    async def close(self) -> None:
        """Let what is in the background come to its end, and hang up."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            with contextlib.suppress(Exception):
                await self._client.close()

    async def _store(self, client: AsyncResponseCacheClient, message: pb.StoreRequest) -> None:
        stored = await client.store(message)
        self._metrics.stores.labels("stored" if stored.stored else stored.refusal or "refused").inc()

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
