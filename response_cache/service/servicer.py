"""The gRPC service `lpc.cache.v1.ResponseCache`: converts messages and calls the caches."""

import logging
import math
import time
from collections.abc import Collection
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.cache.v1 import response_cache_pb2_grpc as rpc
from lpc.errors import InvalidRequest
from predictor_service.errors import Forbidden, Overloaded
from predictor_service.rpc.callers import CALLER, MAX_CALLERS, Caller
from response_cache.keys.canonical import CacheRequest, read_json
from response_cache.service.cache import MAX_NAME, ResponseCache, check_names
from response_cache.service.metrics import CacheMetrics
from response_cache.service.opening import offload
from response_cache.service.outcomes import CacheHit, CacheMiss
from response_cache.service.upkeep import Upkeep
from response_cache.store.answers import Answer
from response_cache.store.days import KEPT_DAYS
from response_cache.store.frequent import QUESTIONS
from response_cache.store.pairs import MOST

log = logging.getLogger(__name__)

MAX_BYTES: Final = 256 * 2**10
"""Size limit of a request that is looked up, in bytes."""
DAYS: Final = 7
"""Days of a report that names no number."""
REPORTS: Final = 10
"""Calls of Report, and of Pairs, per minute and client."""
RENEWALS: Final = 50.0
"""Calls of Renew per second and client."""
MAX_RENEWED: Final = 200
"""Flights in one call of Renew."""
WAITED_S: Final = 0.05
"""A call that waits counts against the client's rate if it ends sooner."""
MAX_MESSAGES: Final = 4096
MAX_NODES: Final = 20_000
"""Limit on the JSON values of a request, counted by their separators."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class ResponseCacheService(rpc.ResponseCacheServicer):
    """The service.

    Args:
        gateways: clients that may name a tenant.
        invalidations: calls of Invalidate per minute and client, also in one burst.
    """

    def __init__(
        self,
        cache: ResponseCache,
        upkeep: Upkeep,
        gateways: Collection[str],
        invalidations: float,
        metrics: CacheMetrics,
    ) -> None:
        self._invalidations = invalidations
        self._metrics = metrics
        self._cache = cache
        self._upkeep = upkeep
        self._gateways = frozenset(gateways)
        self._warned: set[str] = set()

    async def Lookup(self, request: pb.LookupRequest, context: Context) -> pb.LookupResponse:  # noqa: N802
        """Return an answer, or the reason of a miss."""
        caller = CALLER.get()
        # A request that waits in several calls is one look-up.
        waits = request.asks_again and request.wait_ms > 0
        caller.admit(0 if waits else 1)
        self._check_tenant(request.request.tenant)
        wait_s = request.wait_ms / 1000
        remaining = context.time_remaining()
        if remaining is not None:
            wait_s = min(wait_s, 0.9 * remaining)
        began = time.monotonic()
        outcome: CacheHit | CacheMiss
        if too_large(request.request):
            outcome = self._cache.too_large_to_look_up(request.request.scope[:MAX_NAME])
        else:
            parsed = await offload(request.request.ByteSize(), lambda: request_of(request.request))
            outcome = await self._cache.lookup(
                caller.name,
                parsed,
                wait_s=wait_s,
                exact_only=request.exact_only,
                renews=request.renews,
                asks_again=request.asks_again,
            )
        if waits and time.monotonic() - began < WAITED_S:
            caller.owe(1)
        if isinstance(outcome, CacheHit):
            return pb.LookupResponse(hit=_hit(outcome))
        remaining = context.time_remaining()
        if outcome.flight and remaining is not None and remaining <= 0:
            self._cache.release(caller.name, request.request.tenant, outcome.flight)
        miss = pb.Miss(
            reason=pb.Reason.Value(f"REASON_{outcome.reason.upper()}"),
            flight=outcome.flight,
            candidate=outcome.candidate,
            refusal=outcome.refusal or "",
        )
        return pb.LookupResponse(miss=miss)

    async def Renew(self, request: pb.RenewRequest, context: Context) -> pb.RenewResponse:  # noqa: N802
        """Renew flights whose engine has not answered yet."""
        del context
        caller = CALLER.get()
        if wait := caller.take("renewals", RENEWALS, 2 * RENEWALS):
            message = f"client {caller.name} may call Renew {RENEWALS:g} times a second: try again in {wait:.3f} s"
            raise Overloaded(message, wait)
        if len(request.flights) > MAX_RENEWED:
            raise InvalidRequest(f"a call of Renew names more than {MAX_RENEWED} flights: send several calls")
        for tenant in {one.tenant for one in request.flights}:
            self._check_tenant(tenant)
        held = [(one.tenant, one.flight) for one in request.flights]
        return pb.RenewResponse(renewed=await self._cache.renew(caller.name, held))

    async def Store(self, request: pb.StoreRequest, context: Context) -> pb.StoreResponse:  # noqa: N802
        """Store the engine's answer, or return why not."""
        del context
        self._check_tenant(request.request.tenant)
        if too_large(request.request):
            return pb.StoreResponse(refusal=self._cache.too_large_to_store(request.request.scope[:MAX_NAME]).refusal or "")
        parsed = await offload(request.request.ByteSize(), lambda: request_of(request.request))
        stored = await self._cache.store(
            CALLER.get().name,
            parsed,
            answer_of(request.response),
            flight=request.flight,
            candidate=request.candidate,
            aborted=request.aborted,
            no_store=request.no_store,
        )
        return pb.StoreResponse(stored=stored.refusal is None, entry_id=stored.ticket, refusal=stored.refusal or "")

    async def Feedback(self, request: pb.FeedbackRequest, context: Context) -> pb.FeedbackResponse:  # noqa: N802
        """Record a user's feedback on an answer."""
        del context
        self._check_tenant(request.tenant)
        counted, dropped = await self._upkeep.feedback(
            CALLER.get().name,
            request.entry_id,
            wrong=request.wrong,
            drop=request.drop,
            tenant=request.tenant,
            reason=_reason(request.reason),
        )
        return pb.FeedbackResponse(counted=counted, dropped=dropped)

    async def Invalidate(self, request: pb.InvalidateRequest, context: Context) -> pb.InvalidateResponse:  # noqa: N802
        """Make answers unfindable."""
        del context
        what = request.WhichOneof("what")
        if what is None or (what == "everything" and not request.everything):
            raise InvalidRequest("nothing to invalidate: set scope or everything")
        check_names(request.scope)
        client = self._count_invalidation()
        scope = request.scope if what == "scope" else None
        done, erased = await self._upkeep.invalidate(client, scope=scope, erase=request.erase)
        return pb.InvalidateResponse(done=done, erased=erased)

    async def Stats(self, request: pb.StatsRequest, context: Context) -> pb.StatsResponse:  # noqa: N802
        """Return entries and thresholds of the client's scopes."""
        del context
        check_names(request.scope)
        return pb.StatsResponse(scopes=await self._upkeep.stats(CALLER.get().name, request.scope or None))

    async def Report(self, request: pb.ReportRequest, context: Context) -> pb.ReportResponse:  # noqa: N802
        """Return counts by scope and day of the client's scopes."""
        del context
        check_names(request.scope)
        if request.days > KEPT_DAYS:
            raise InvalidRequest(f"counts are kept for {KEPT_DAYS} days: ask for at most that many")
        caller = CALLER.get()
        _count_report(caller, "Report")
        return await self._upkeep.report(caller.name, request.scope or None, request.days or DAYS)

    async def Frequent(self, request: pb.FrequentRequest, context: Context) -> pb.FrequentResponse:  # noqa: N802
        """Return what a tenant asked most often yesterday."""
        del context
        caller = CALLER.get()
        caller.admit(1)
        self._check_tenant(request.tenant)
        check_names(request.scope, request.tenant)
        most = min(request.most, QUESTIONS)
        found = await self._upkeep.yesterday(caller.name, request.scope, request.tenant, most) if most else []
        questions = [pb.FrequentQuestion(lookups=one.lookups, body=one.body) for one in found or ()]
        return pb.FrequentResponse(questions=questions, known=found is not None)

    async def Pairs(self, request: pb.PairsRequest, context: Context) -> pb.PairsResponse:  # noqa: N802
        """Return questions of the client's scope with their candidates."""
        del context
        check_names(request.scope)
        caller = CALLER.get()
        _count_report(caller, "Pairs")
        found = await self._upkeep.pairs(caller.name, request.scope, min(request.most, MOST))
        setting = self._cache.scopes.of(request.scope).pairs
        return pb.PairsResponse(
            pairs=[pb.Pair(**one._asdict()) for one in found or ()], known=found is not None, setting=setting
        )

    def _count_invalidation(self) -> str:
        """Count a call of Invalidate; return the client's name. Raises Overloaded."""
        caller, most = CALLER.get(), self._invalidations
        if wait := caller.take("invalidations", most / 60, max(1.0, most)):
            self._metrics.invalidations_refused.inc()
            raise Overloaded(
                f"client {caller.name} may call Invalidate {most:g} times a minute (LPC_CACHE_INVALIDATIONS): try again in "
                f"{wait:.1f} s",
                wait,
            )
        return caller.name

    def _check_tenant(self, tenant: str) -> None:
        """Raise Forbidden if the client names a tenant and is not a gateway."""
        name = CALLER.get().name
        if not tenant or name in self._gateways:
            return
        message = (
            f"client {name} may not name a tenant: add it to LPC_CACHE_GATEWAYS if it is a gateway, else leave tenant empty"
        )
        if name not in self._warned and len(self._warned) < MAX_CALLERS:
            self._warned.add(name)
            log.warning(message)
        raise Forbidden(message)


def _count_report(caller: Caller, method: str) -> None:
    """Count a call of a method that reads much. Raises Overloaded."""
    if wait := caller.take(f"reports:{method}", REPORTS / 60, REPORTS):
        raise Overloaded(f"client {caller.name} may call {method} {REPORTS} times a minute: try again in {wait:.1f} s", wait)


def too_large(request: pb.Request) -> bool:
    """Return whether a request is too large to look up. Nothing is parsed."""
    if request.ByteSize() > MAX_BYTES or len(request.messages) > MAX_MESSAGES:
        return True
    parts = (request.parameters_json, request.tools_json, *(message.other_json for message in request.messages))
    return sum(part.count(mark) for part in parts for mark in (b",", b"[", b"{")) > MAX_NODES


def request_of(request: pb.Request) -> CacheRequest:
    """Convert a request. Raises InvalidRequest."""
    messages = []
    for message in request.messages:
        other = read_json(message.other_json, "a message's other_json", dict)
        messages.append({"content": message.content, **other, "role": message.role})
    return CacheRequest(
        model=request.model,
        parameters=read_json(request.parameters_json, "parameters_json", dict),
        messages=messages,
        tools=read_json(request.tools_json, "tools_json", list) if request.tools_json else None,
        prompt=request.prompt if request.HasField("prompt") else None,
        scope=request.scope,
        tenant=request.tenant,
        size=request.ByteSize(),
    )


def answer_of(response: pb.Response) -> Answer:
    """Convert an engine's answer. Raises InvalidRequest."""
    if not 0.0 <= response.engine_s < math.inf:  # NaN would be younger than every invalidation
        raise InvalidRequest("engine_s must be 0 or more: send the seconds that the engine took for its answer")
    return Answer(
        chunks=tuple(response.chunks),
        body=response.body,
        prompt_tokens=response.prompt_tokens,
        completion_tokens=response.completion_tokens,
        finish_reason=response.finish_reason,
        engine_s=response.engine_s,
    )


def _reason(reason: "pb.Complaint.ValueType") -> str:
    """Return the name of a complaint's reason; empty if it is unspecified, or only a newer client knows it."""
    known = reason and reason in pb.Complaint.values()
    return pb.Complaint.Name(reason).removeprefix("COMPLAINT_").lower() if known else ""


def _response(answer: Answer) -> pb.Response:
    return pb.Response(**answer._asdict())


def _hit(hit: CacheHit) -> pb.Hit:
    return pb.Hit(
        entry_id=hit.ticket,
        source=pb.Source.Value(f"SOURCE_{hit.source.upper()}"),
        similarity=hit.similarity,
        error_bound=hit.error_bound,
        age_s=hit.age_s,
        remaining_s=hit.remaining_s,
        response=_response(hit.answer),
        matched_question=hit.question,
        question_digest=hit.question_digest,
    )
