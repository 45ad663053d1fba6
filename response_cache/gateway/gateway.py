"""The path of a request through the gateway: client, cache, engine, and storing the engine's answer.

Completions (`/v1/chat/completions`, `/v1/completions`) may be answered from the cache. The other paths of
:mod:`response_cache.gateway.targets` are proxied; any other request is refused. An engine's answer is forwarded byte by byte,
except hop-by-hop header fields. Paths below /lpc/ are the gateway's own.
"""

import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Final

import httpx2
from starlette.types import Receive, Scope, Send

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.wire.headers import Headers, end_to_end
from lpc.wire.raw_path import BadTarget, check_framing
from response_cache.gateway.answered import Answered, RoutedConversation
from response_cache.gateway.cached import Cached, Found
from response_cache.gateway.checks import Checks, Following
from response_cache.gateway.choice import Route
from response_cache.gateway.clients import SESSION_HEADERS, Client, Clients, scope_of
from response_cache.gateway.errors import CLOSE, GatewayError
from response_cache.gateway.exchange import JSON, ClientGone, Exchange, Load
from response_cache.gateway.headers import (
    QUESTION,
    Directives,
    directives_of,
    first,
    for_engine,
    question_value,
    without_credentials,
)
from response_cache.gateway.metrics import Metrics
from response_cache.gateway.recording import Recording, ahead, replay
from response_cache.gateway.repairing import Group
from response_cache.gateway.request import SESSION_HEADER, Reader, Reading, digest
from response_cache.gateway.settings import GatewaySettings
from response_cache.gateway.targets import CHAT, COMPLETIONS, FREQUENT, OWN, RESPONSES, Paths, is_form, path_of
from response_cache.gateway.upstream import BELIEF, ENGINE, Upstream
from response_cache.gateway.usage import TAIL
from response_cache.gateway.verdict import joined, read, verdict_of

BODILESS: Final = ("GET", "HEAD", "OPTIONS")
BUFFERED_BYTES: Final = 2**20
"""A body up to this size is received before it is forwarded, so that another engine can get it if the first is unreachable."""
LOOKUP_BYTES: Final = 256 * 2**10
"""A larger body is not looked up, because the sidecar would parse it while engines wait for predictions."""
STREAM: Final = (b"content-type", b"text/event-stream; charset=utf-8")
HEALTH: Final = "/lpc/health"
FEEDBACK: Final = "/lpc/v1/feedback"
"""Receives feedback on answers from the cache."""
FEEDBACK_BYTES: Final = 4096
MOST_FREQUENT: Final = 200
FEEDBACK_FORM: Final = '{"entry": "the x-lpc-entry of the answer", "wrong": true, "reason": "outdated", "drop": true}'


class Gateway:
    """An ASGI application. Lives on one event loop.

    Args:
        max_answer_bytes: longer answers are not recorded.
        checks: checks hits; None: none are checked.
        clock: seconds since the Unix epoch, for `created` in answers from the cache.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        clients: Clients,
        cached: Cached,
        upstream: Upstream,
        metrics: Metrics,
        reader: Reader,
        load: Load,
        max_answer_bytes: int,
        checks: Checks | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._paths = Paths(settings.gateway_paths)
        self._reader = reader
        self._load = load
        self._max_answer_bytes = max_answer_bytes
        self._checks = checks
        self._clients = clients
        self._cached = cached
        self._upstream = upstream
        self._metrics = metrics
        self._clock = clock
        self._answered = Answered()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send, self._settings.max_request_bytes, self._load)
        endpoint, status = "other", ""
        try:
            path = _path(exchange)
            if path.startswith(OWN):
                endpoint = ""
                await self._own(exchange, path)
            else:
                if path in (CHAT, COMPLETIONS):
                    endpoint = path
                with self._load.admitted(exchange):
                    await self._answer(exchange, path)
        except GatewayError as error:
            with contextlib.suppress(ClientGone):
                await self._refuse(exchange, error)
        except ClientGone:
            status = "gone"
        except httpx2.HTTPError as error:
            # The answer has begun: the client's is cut off like the engine's.
            broken = GatewayError(502, f"the engine's connection broke ({type(error).__name__}): try again")
            await self._refuse(exchange, broken)
            status = "cut"
        if endpoint:
            self._metrics.requests.labels(endpoint, status or str(exchange.status)).inc()

    async def _own(self, exchange: Exchange, path: str) -> None:
        """Answer on one of the gateway's own paths."""
        methods = {HEALTH: ("GET", "HEAD"), FEEDBACK: ("POST",), FREQUENT: ("GET",)}.get(path)
        if methods is None:
            raise GatewayError(404, f"unknown path: the gateway's own paths are {HEALTH}, {FEEDBACK} and {FREQUENT}")
        if exchange.method not in methods:
            allowed = ", ".join(methods)
            raise GatewayError(405, f"use {allowed} for this path", (b"allow", allowed.encode()))
        if path == HEALTH:
            await exchange.answer(200, b'{"status": "ok"}', [JSON])
            return
        exchange.max_bytes = FEEDBACK_BYTES
        with self._load.admitted(exchange):
            client = self._identify(exchange)
            if path == FREQUENT:
                await exchange.answer(200, await self._frequent(exchange, client), [JSON])
                return
            done = await self._cached.feedback(_feedback(await exchange.body(), client.tenant))
            body = json.dumps({"counted": done.counted, "dropped": done.dropped}).encode()
            await exchange.answer(200 if done.counted or done.dropped else 404, body, [JSON])

    async def _frequent(self, exchange: Exchange, client: Client) -> bytes:
        """Return yesterday's frequent questions of a client, one JSON object. Raises GatewayError."""
        await exchange.body()
        if not client.cached:
            raise GatewayError(403, "answers of callers without identity are not cached: send a token or an identity header")
        request = pb.FrequentRequest(scope=_scope(exchange, client), tenant=client.tenant, most=MOST_FREQUENT)
        found = await self._cached.frequent(request)
        return json.dumps(
            {"questions": [{"lookups": one.lookups, "body": json.loads(one.body)} for one in found.questions]}
        ).encode()

    def _identify(self, exchange: Exchange) -> Client:
        """Return the client of a request. Raises GatewayError (401)."""
        client = self._clients.identify(exchange.headers)
        if client is None:
            raise GatewayError(
                401, "no valid token: send `Authorization: Bearer TOKEN` with a token of the gateway's token file"
            )
        return client

    async def _answer(self, exchange: Exchange, path: str) -> None:
        client = self._identify(exchange)
        self._paths.check(exchange.method, path)
        self._reader.tenants.check_headers(client.tenant, exchange.headers)
        if self._clients.have_tokens:  # else a key in the query may be the engine's
            exchange.query = without_credentials(exchange.query)
        if exchange.method in BODILESS:
            if exchange.body_bytes:
                raise GatewayError(400, f"{exchange.method} requests must not have a body")
            await exchange.body()
            async with exchange.watched():
                await self._forward(exchange, client, b"", Route(digest("other", client.tenant)))
            return
        if is_form(path, exchange.headers):
            content = await exchange.body() if exchange.body_bytes <= BUFFERED_BYTES else exchange.chunks()
            async with exchange.watched():
                await self._forward(exchange, client, content, Route(digest("other", client.tenant)))
            return
        body = await exchange.decoded_body()
        if not body:
            async with exchange.watched():
                await self._forward(exchange, client, body, Route(digest("other", client.tenant)))
            return
        scope = _scope(exchange, client)
        directives = directives_of(exchange.headers)
        cached = client.cached and len(body) <= LOOKUP_BYTES and self._cached.concerns(directives)
        async with exchange.watched():
            reading = await self._reader.read(
                path, exchange.headers, body, exchange.query.decode("ascii"), client.tenant, scope if cached else None, scope
            )
            reading = replace(reading, route=reading.route._replace(share=client.share))
            if path == RESPONSES:
                await self._respond(exchange, client, reading)
            elif path not in (CHAT, COMPLETIONS):
                await self._forward(exchange, client, reading.body, reading.route, reading.session, group=reading.repaired)
            else:
                await self._complete(exchange, client, scope, directives, reading)

    async def _complete(self, exchange: Exchange, client: Client, scope: str, directives: Directives, reading: Reading) -> None:
        """Answer a completion, from the cache or by an engine."""
        found = await self._cached.find(reading.question, directives)
        if found.hit is not None:
            body = replay(found.hit.response, streamed=reading.streamed, now=self._clock())
            if body is not None:
                await self._answer_from_cache(exchange, client, scope, found, found.hit, body, streamed=reading.streamed)
                return
            found = Found(found.question)  # the entry is invalid: store the engine's answer in its place
        if directives.only_if_cached:
            self._cached.hand_in(found, None)
            raise GatewayError(504, "no answer is cached for this request (Cache-Control: only-if-cached)")
        if found.asked:
            self._metrics.answers.labels(client.name, scope, found.label).inc()
        if not self._cached.wants(found, store=directives.store):
            label = found.label if found.asked else "none"
            await self._forward(exchange, client, reading.body, reading.route, reading.session, label, group=reading.repaired)
        else:
            await self._answer_by_engine(exchange, client, reading, found, directives)

    async def _answer_from_cache(
        self, exchange: Exchange, client: Client, scope: str, found: Found, hit: pb.Hit, body: bytes, *, streamed: bool
    ) -> None:
        headers = [
            STREAM if streamed else JSON,
            (b"x-lpc-cache", found.label.encode()),
            (b"age", str(max(0, int(hit.age_s))).encode()),
            (b"x-lpc-entry", hit.entry_id.hex().encode()),
        ]
        if hit.source == pb.SOURCE_SEMANTIC:
            headers.append((b"x-lpc-similarity", f"{hit.similarity:.4f}".encode()))
        if hit.source != pb.SOURCE_EXACT:
            headers.append((b"x-lpc-error-bound", f"{hit.error_bound:.4f}".encode()))
            if first(exchange.headers, QUESTION) is not None:
                headers.append((QUESTION, question_value(hit)))
        self._metrics.answers.labels(client.name, scope, found.label).inc()
        self._metrics.first_byte_seconds.labels(found.label).observe(time.perf_counter() - exchange.began)
        await exchange.answer(200, body, headers)

    async def _answer_by_engine(
        self, exchange: Exchange, client: Client, reading: Reading, found: Found, directives: Directives
    ) -> None:
        """Forward a request, and hand its answer in to the caches."""
        # A recording must be uncompressed.
        headers = [field for field in self._for_engine(exchange, client, reading.session) if field[0] != b"accept-encoding"]
        recording: Recording | None = None
        began = time.perf_counter()
        settled = False

        def settle(*, ended: bool) -> None:
            """Hand the recording in, once, as soon as it is complete or discarded: other requests may wait for it."""
            nonlocal settled
            if settled:
                return
            settled = True
            response = None if recording is None else recording.response()
            if response is not None:
                response.engine_s = time.perf_counter() - began
            self._cached.hand_in(found, response, store=directives.store, ended=ended)

        try:
            async with contextlib.AsyncExitStack() as stack:
                answer = await stack.enter_async_context(
                    self._upstream.answer(exchange.method, exchange.target, headers, reading.body, reading.route)
                )
                chunks = answer.aiter_raw()
                if answer.status_code == 200:
                    recording = Recording(reading.streamed, self._max_answer_bytes)
                    reading_ahead = ahead(chunks, recording, partial(settle, ended=True))
                    chunks = await stack.enter_async_context(contextlib.aclosing(reading_ahead))
                else:
                    settle(ended=True)
                following = self._following(exchange, answer, headers, reading.body)
                label = found.label if found.asked else "none"
                await self._relay(exchange, answer, chunks, label, group=reading.repaired, following=following)
        finally:
            # Also if the client or the engine has disconnected. Clients disconnect as soon as they have read [DONE], which is
            # before the end of the stream; the recording is complete by then.
            settle(ended=exchange.complete)

    async def _respond(self, exchange: Exchange, client: Client, reading: Reading) -> None:
        """Forward a request of the responses API, to the engine that has the answer which it continues."""
        known = self._answered.find(client.tenant, reading.continues)
        conversation = known or RoutedConversation(reading.route.key, reading.session)
        noted = partial(self._answered.add, client.tenant, conversation)
        route = reading.route if known is None else reading.route.continuing(conversation.affinity)
        await self._forward(exchange, client, reading.body, route, conversation.session, noted=noted, group=reading.repaired)

    async def _forward(
        self,
        exchange: Exchange,
        client: Client,
        content: bytes | AsyncIterator[bytes],
        route: Route,
        session: str | None = None,
        label: str = "none",
        noted: Callable[[bytes], None] | None = None,
        group: Group | None = None,
    ) -> None:
        """Forward a request whose answer is not recorded.

        ``session`` and ``group`` are those of `Reading`; ``noted``: see :meth:`_relay`.
        """
        headers = self._for_engine(exchange, client, session)
        async with self._upstream.answer(exchange.method, exchange.target, headers, content or None, route) as answer:
            following = self._following(exchange, answer, headers, content)
            await self._relay(exchange, answer, answer.aiter_raw(), label, noted, group, following)

    def _following(
        self, exchange: Exchange, answer: httpx2.Response, headers: Headers, body: bytes | AsyncIterator[bytes]
    ) -> Following | None:
        """Return what follows an answer because the request's hit may be checked; None: it is not."""
        if self._checks is None or answer.status_code != HTTPStatus.OK:
            return None
        store = directives_of(exchange.headers).store
        path = exchange.raw_path.decode("ascii")
        return self._checks.following(answer.extensions.get(ENGINE), path, exchange.target, headers, body, store=store)

    async def _relay(
        self,
        exchange: Exchange,
        answer: httpx2.Response,
        chunks: AsyncIterator[bytes],
        label: str,
        noted: Callable[[bytes], None] | None = None,
        group: Group | None = None,
        following: Following | None = None,
    ) -> None:
        """Send an engine's answer to the client as it arrives.

        Args:
            label: the result of a look-up; ``none``: not looked up.
            noted: called with the beginning of the answer.
            group: what became of a request that a repair rule matches.
            following: takes the answer's bytes as well; None: its hit is not checked.
        """
        repairing = self._reader.repairing
        measured = None if repairing is None or answer.status_code != HTTPStatus.OK else repairing.measured(group)
        readers = [reader for reader in (measured, following) if reader is not None]
        extra = [] if label == "none" else [(b"x-lpc-cache", label.encode())]
        belief = answer.extensions.get(BELIEF) if self._settings.gateway_prefix_header else None
        if belief is not None:
            pieces, whole = list[bytes](), False
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                pieces, whole = await read(chunks, self._max_answer_bytes)
                chunks = joined(pieces, chunks)
            extra.append(verdict_of(belief, b"".join(pieces)[-TAIL:] if whole else None).field())
        await exchange.start(answer.status_code, [*end_to_end(answer.headers.raw), *extra])
        self._metrics.first_byte_seconds.labels(label).observe(time.perf_counter() - exchange.began)
        try:
            async for data in chunks:
                if noted is not None:
                    noted(data)
                    noted = None
                for reader in readers:
                    reader.part(data)
                await exchange.write(data)
        finally:
            for reader in readers:  # also if the client has gone, as many do after the last event
                reader.end()
        await exchange.end()

    def _for_engine(self, exchange: Exchange, client: Client, session: str | None) -> Headers:
        """Return the header fields for an engine. ``session`` is the conversation's name if it must be added."""
        key = self._settings.gateway_engine_key
        fields = for_engine(
            exchange.headers,
            exchange.client,
            key.get_secret_value().strip() if key is not None else None,
            keep_keys=not self._clients.have_tokens,
        )
        fields = [
            (name, self._reader.tenants.session(client.tenant, value.decode("latin-1")).encode("latin-1"))
            if name in SESSION_HEADERS
            else (name, value)
            for name, value in fields
        ]
        return fields if session is None else [*fields, (SESSION_HEADER, session.encode())]

    @staticmethod
    async def _refuse(exchange: Exchange, error: GatewayError) -> None:
        if exchange.status is None:
            headers = error.headers
            if exchange.expects:
                headers = (*headers, CLOSE)  # the client may or may not send the body now
            elif error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                with contextlib.suppress(GatewayError):
                    await exchange.discard()
            await exchange.answer(error.status, error.body(), headers)


def _scope(exchange: Exchange, client: Client) -> str:
    """Return the scope of a request. Raises GatewayError (403)."""
    scope = scope_of(exchange.headers, client)
    if scope is None:
        raise GatewayError(
            403, "this client may not use the scope in x-lpc-scope: leave it out, or allow it in LPC_GATEWAY_SCOPES"
        )
    return scope


def _path(exchange: Exchange) -> str:
    """Return the path of a request. Raises GatewayError (400)."""
    try:
        check_framing(exchange.headers)
    except BadTarget as error:
        raise GatewayError(400, str(error), CLOSE) from None
    return path_of(exchange.raw_path, exchange.query)


def _feedback(body: bytes, tenant: str) -> pb.FeedbackRequest:
    """Return the feedback in a body. Raises GatewayError (400)."""
    try:
        fields = json.loads(body)
        wrong, drop = fields.get("wrong", True), fields.get("drop", False)
        if not isinstance(wrong, bool) or not isinstance(drop, bool):
            raise TypeError  # the text "false" would count as true
        reason = pb.Complaint.Value(f"COMPLAINT_{fields.get('reason', 'unspecified').upper()}")
        entry = bytes.fromhex(fields["entry"])
        return pb.FeedbackRequest(entry_id=entry, wrong=wrong, drop=drop, tenant=tenant, reason=reason)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise GatewayError(400, f"send JSON: {FEEDBACK_FORM}") from None
