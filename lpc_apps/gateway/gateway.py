"""The way of a request through the gateway: who asks, what is kept, which engine, and what of its answer is kept.

Completions (`/v1/chat/completions`, `/v1/completions`) are read and may be answered from the cache. The other paths of
:mod:`lpc_apps.gateway.targets` are proxied unchanged; other requests are refused. An engine's answer is forwarded byte by byte,
except hop-by-hop header fields. Paths below /lpc/ are the gateway's own.
"""

import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from http import HTTPStatus
from typing import Final

import httpx
from starlette.types import Receive, Scope, Send

from lpc.cache.bodies import reply_of
from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.wire.session import name_under_salt
from lpc_apps.gateway.cached import Cached, Found
from lpc_apps.gateway.clients import SESSION_HEADERS, Client, Clients, scope_of
from lpc_apps.gateway.conversations import Conversations
from lpc_apps.gateway.engines import Upstream
from lpc_apps.gateway.errors import GatewayError
from lpc_apps.gateway.exchange import JSON, ClientGone, Exchange, Load
from lpc_apps.gateway.headers import Directives, Headers, directives_of, end_to_end, for_engine
from lpc_apps.gateway.metrics import Metrics
from lpc_apps.gateway.recording import Recording, ahead, replay
from lpc_apps.gateway.request import SESSION_HEADER, Asked, Reader, Reading, digest
from lpc_apps.gateway.settings import GatewaySettings
from lpc_apps.gateway.targets import CHAT, COMPLETIONS, OWN, SALTED, Paths, path_of

BUFFERED_BYTES: Final = 2**20
"""A body up to this length is read before an engine is asked, so that another can be if the first takes no connection."""
LOOKUP_BYTES: Final = 256 * 2**10
"""The caches are not asked about a longer body: the sidecar would parse it while engines wait for predictions."""
STREAM: Final = (b"content-type", b"text/event-stream; charset=utf-8")
MISS: Final = (b"x-lpc-cache", b"miss")
HEALTH: Final = "/lpc/health"
FEEDBACK: Final = "/lpc/v1/feedback"
"""Says whether an answer from the cache was right, for applications that speak HTTP."""
FEEDBACK_BYTES: Final = 4096
FEEDBACK_FORM: Final = '{"entry": "the x-lpc-entry of the answer", "wrong": true, "drop": true}'


class Gateway:
    """An ASGI application. Lives on one event loop.

    Args:
        max_answer_bytes: longer answers are not recorded.
        clock: seconds since the Unix epoch, for the answers' `created`.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        clients: Clients,
        cached: Cached,
        conversations: Conversations,
        upstream: Upstream,
        metrics: Metrics,
        reader: Reader,
        load: Load,
        max_answer_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._paths = Paths(settings.gateway_paths)
        self._reader = reader
        self._load = load
        self._max_answer_bytes = max_answer_bytes
        self._clients = clients
        self._cached = cached
        self._conversations = conversations
        self._upstream = upstream
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send, self._settings.max_request_bytes, self._load)
        endpoint, status = "other", ""
        try:
            path = path_of(exchange.raw_path, exchange.query)
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
        except httpx.HTTPError as error:
            # The engine broke off. Before it began to answer that is a 502; later the answer ends where its own did.
            broken = GatewayError(502, f"the engine broke off before it answered ({type(error).__name__})")
            await self._refuse(exchange, broken)
            status = "cut"
        if endpoint:
            self._metrics.requests.labels(endpoint, status or str(exchange.status)).inc()

    async def _own(self, exchange: Exchange, path: str) -> None:
        """Answer on one of the gateway's own paths."""
        methods = {HEALTH: ("GET", "HEAD"), FEEDBACK: ("POST",)}.get(path)
        if methods is None:
            raise GatewayError(404, "the gateway has no such path of its own")
        if exchange.method not in methods:
            raise GatewayError(405, "this path is for another method", (b"allow", ", ".join(methods).encode()))
        if path == HEALTH:
            await exchange.answer(200, b'{"status": "ok"}', [JSON])
            return
        exchange.max_bytes = FEEDBACK_BYTES
        with self._load.admitted(exchange):
            client = self._who(exchange)
            try:
                said = json.loads(await exchange.body())
                if not isinstance(said.get("wrong", True), bool) or not isinstance(said.get("drop", False), bool):
                    raise TypeError  # "false" is true to Python
                message = pb.FeedbackRequest(
                    entry_id=bytes.fromhex(said["entry"]),
                    wrong=said.get("wrong", True),
                    drop=said.get("drop", False),
                    tenant=client.tenant,
                )
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise GatewayError(400, f"send JSON: {FEEDBACK_FORM}") from None
            done = await self._cached.feedback(message)
            body = json.dumps({"counted": done.counted, "dropped": done.dropped}).encode()
            await exchange.answer(200 if done.counted or done.dropped else 404, body, [JSON])

    def _who(self, exchange: Exchange) -> Client:
        client = self._clients.who(exchange.headers)
        if client is None:
            raise GatewayError(
                401, "no valid token: send `Authorization: Bearer TOKEN` with a token of the gateway's token file"
            )
        return client

    async def _answer(self, exchange: Exchange, path: str) -> None:
        client = self._who(exchange)
        self._paths.check(exchange.method, path)
        if exchange.method == "POST" and path in SALTED:
            body = await exchange.body()
            scope = scope_of(exchange.headers, client)
            if scope is None:
                raise GatewayError(
                    403, "this client may not name the scope of x-lpc-scope: leave it out, or allow it in LPC_GATEWAY_SCOPES"
                )
            directives = directives_of(exchange.headers)
            cached = client.cached and len(body) <= LOOKUP_BYTES and self._cached.concerns(directives)
            async with exchange.watched():
                reading = await self._reader.read(
                    path, exchange.headers, body, exchange.query.decode("ascii"), client.tenant, scope if cached else None
                )
                if reading.asked is None:
                    await self._pass(exchange, client, reading.body, reading.affinity, reading.session)
                else:
                    await self._complete(exchange, client, scope, directives, reading, reading.asked)
            return
        content = await exchange.body() if exchange.body_bytes <= BUFFERED_BYTES else exchange.chunks()
        async with exchange.watched():
            await self._pass(exchange, client, content, digest("other", client.tenant))

    async def _complete(
        self, exchange: Exchange, client: Client, scope: str, directives: Directives, reading: Reading, asked: Asked
    ) -> None:
        """Answer a completion, from the cache or by an engine."""
        name = self._conversations.name(asked, reading.states)
        found = await self._cached.find(reading.question, directives)
        if found.hit is not None:
            told = replay(found.hit.response, asked.form, self._clock())
            if told is not None:
                await self._tell_again(exchange, client, scope, reading, asked, found, found.hit, told, name)
                return
            # It lacks what this form tells; the engine's answer will have it.
            found = Found(found.question)
        if directives.only_if_cached:
            self._cached.hand_in(found, None)
            raise GatewayError(504, "no answer is kept for this request (Cache-Control: only-if-cached)")
        if found.asked:
            self._metrics.answers.labels(client.name, scope, found.label).inc()
        await self._by_engine(exchange, client, reading, asked, found, directives, name)

    async def _tell_again(
        self,
        exchange: Exchange,
        client: Client,
        scope: str,
        reading: Reading,
        asked: Asked,
        found: Found,
        hit: pb.Hit,
        told: bytes,
        name: str | None,
    ) -> None:
        headers = [
            STREAM if asked.form.streamed else JSON,
            (b"x-lpc-cache", found.label.encode()),
            (b"age", str(max(0, int(hit.age_s))).encode()),
            (b"x-lpc-entry", hit.entry_id.hex().encode()),
        ]
        if hit.source == pb.SOURCE_SEMANTIC:
            headers.append((b"x-lpc-similarity", f"{hit.similarity:.4f}".encode()))
            headers.append((b"x-lpc-error-bound", f"{hit.error_bound:.4f}".encode()))
        self._metrics.answers.labels(client.name, scope, found.label).inc()
        self._metrics.first_byte_seconds.labels(found.label).observe(time.perf_counter() - exchange.began)
        await exchange.answer(200, told, headers)
        self._conversations.answered(asked, reading.states, name, reply_of(hit.response))
        if name is not None:
            name = self._engines_name(client, asked, name)
            name = name if reading.salt is None else name_under_salt(name, reading.salt)  # as the engine's plug-in does
        with contextlib.suppress(ValueError, TypeError, KeyError):
            conversation = asked.conversation(name)
            if conversation is not None:
                self._conversations.report(conversation)

    async def _by_engine(
        self,
        exchange: Exchange,
        client: Client,
        reading: Reading,
        asked: Asked,
        found: Found,
        directives: Directives,
        name: str | None,
    ) -> None:
        # A name of the client's own stays where it put it.
        headers = self._for_engine(exchange, client, name if asked.session is None else reading.session)
        # What is recorded must be text as it is.
        headers = [(key, value) for key, value in headers if key != b"accept-encoding"]
        recording: Recording | None = None
        began = time.perf_counter()
        settled = False

        def settle(*, ended: bool) -> None:
            """Hand in what was recorded, once, as soon as it is known: others may wait for this answer."""
            nonlocal settled
            if settled:
                return
            settled = True
            response = None if recording is None else recording.response()
            if response is not None:
                response.engine_s = time.perf_counter() - began
                self._conversations.answered(asked, reading.states, name, reply_of(response))
            self._cached.hand_in(found, response, store=directives.store, ended=ended)

        try:
            async with contextlib.AsyncExitStack() as stack:
                answer = await stack.enter_async_context(
                    self._upstream.answer(exchange.method, exchange.target, headers, reading.body, reading.affinity)
                )
                chunks = answer.aiter_raw()
                if answer.status_code == 200:
                    recording = Recording(asked.form.streamed, self._max_answer_bytes)
                    reading_ahead = ahead(chunks, recording, partial(settle, ended=True))
                    chunks = await stack.enter_async_context(contextlib.aclosing(reading_ahead))
                else:
                    settle(ended=True)
                extra = [MISS] if found.asked else []
                await self._relay(exchange, answer, chunks, extra, "miss" if found.asked else "none")
        finally:
            # Also when the client or the engine has gone. Clients hang up as soon as they have read [DONE], which is before the
            # stream's end: what was recorded is whole anyway.
            settle(ended=exchange.complete)

    async def _pass(
        self, exchange: Exchange, client: Client, content: bytes | object, key: bytes, session: str | None = None
    ) -> None:
        """Pass a request on whose answer is not kept. ``session``: as of `Reading`."""
        body = content if isinstance(content, bytes) else exchange.chunks()
        headers = self._for_engine(exchange, client, session)
        async with self._upstream.answer(exchange.method, exchange.target, headers, body or None, key) as answer:
            await self._relay(exchange, answer, answer.aiter_raw(), [], "none")

    async def _relay(
        self, exchange: Exchange, answer: httpx.Response, chunks: AsyncIterator[bytes], extra: Headers, label: str
    ) -> None:
        """Send an engine's answer on as it comes."""
        await exchange.start(answer.status_code, [*end_to_end(answer.headers.raw), *extra])
        self._metrics.first_byte_seconds.labels(label).observe(time.perf_counter() - exchange.began)
        async for data in chunks:
            await exchange.write(data)
        await exchange.end()

    def _engines_name(self, client: Client, asked: Asked, name: str) -> str:
        """Return a conversation's name as engines get it. One that the gateway made is of one tenant already."""
        return name if asked.session is None else self._reader.tenants.session(client.tenant, name)

    def _for_engine(self, exchange: Exchange, client: Client, session: str | None) -> Headers:
        """Return the header fields for an engine. ``session``: its conversation's name, if it must be added."""
        key = self._settings.gateway_engine_key
        fields = for_engine(
            exchange.headers,
            exchange.client,
            key.get_secret_value().strip() if key is not None else None,
            keep_authorization=not self._clients.known,
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
            if error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                with contextlib.suppress(GatewayError):
                    await exchange.discard()
            await exchange.answer(error.status, error.body(), error.headers)
