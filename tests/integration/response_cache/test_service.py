"""The response caches through a real sidecar, gRPC and Redis: identity of callers, failures of Redis, and settings."""

import asyncio
import json
import math
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import grpc
import grpc.aio
import pytest

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.cache.v1 import response_cache_pb2_grpc as rpc
from predictor_service.errors import StartError
from response_cache.service.running import running
from response_cache.service.settings import CacheSettings
from response_cache.store.scopes import ScopeSettings
from testing.processes import RedisServer, free_port
from tests.eventually import eventually, patiently
from tests.response_cache import KEY_LINES


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis server that a test may kill."""
    with RedisServer(tmp_path / "own-redis") as server:
        yield server


def caching(models: Path, folder: Path, url: str, **changes: object) -> CacheSettings:
    """Return the settings of a sidecar with response caches in the Redis at ``url``."""
    (folder / "keys").write_text(KEY_LINES)
    values = {"models": models, "model": "tiny", "port": 0, "metrics_port": None, "unix_socket": None, "threads": 1}
    cache = {"cache_redis_url": url, "cache_keys": folder / "keys", "cache_redis_timeout_s": 5.0, "state": folder}
    return CacheSettings(**{**values, **cache, **changes})  # type: ignore[arg-type]


@asynccontextmanager
async def serve_caches(models: Path, folder: Path, url: str, **changes: object) -> AsyncIterator[rpc.ResponseCacheStub]:
    settings = caching(models, folder, url, **{"cache_gateways": "anonymous", **changes})
    async with running(settings) as addresses, grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}") as channel:
        yield rpc.ResponseCacheStub(channel)


def request(text: str = "Is it?", **fields: object) -> pb.Request:
    parameters = json.dumps({"temperature": 0}).encode()
    messages = [pb.Message(role="user", content=text)]
    return pb.Request(**{"model": "m", "parameters_json": parameters, "messages": messages, "scope": "faq", **fields})  # type: ignore[arg-type]


def response(text: str = "It is.") -> pb.Response:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    body = json.dumps({"object": "chat.completion", "model": "m", "choices": [choice]}).encode()
    return pb.Response(body=body, prompt_tokens=3, completion_tokens=2, finish_reason="stop", engine_s=0.5)


def streamed(text: str = "It is.") -> pb.Response:
    chunks = [json.dumps({"choices": [{"index": 0, "delta": {"content": part}}]}).encode() for part in text.split()]
    chunks.append(b'{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}')
    return pb.Response(chunks=chunks, prompt_tokens=3, completion_tokens=2, finish_reason="stop", engine_s=0.5)


async def reason(stub: rpc.ResponseCacheStub, message: pb.Request, **fields: object) -> str:
    found = await stub.Lookup(pb.LookupRequest(request=message, **fields))  # type: ignore[arg-type]
    return "HIT" if found.HasField("hit") else pb.Reason.Name(found.miss.reason).removeprefix("REASON_")


async def test_no_call_makes_the_sidecar_remember_a_long_name_of_a_scope(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    """The names of scopes are kept in memory, ten thousand of them."""
    for scope, code in (("s" * 256, None), ("s" * 257, grpc.StatusCode.INVALID_ARGUMENT)):
        async with serve_caches(
            tiny_models, tmp_path, redis_server.url, cache_scopes={"default": ScopeSettings(pairs="text", warm_up=True)}
        ) as stub:
            calls = (
                stub.Stats(pb.StatsRequest(scope=scope)),
                stub.Report(pb.ReportRequest(scope=scope)),
                stub.Invalidate(pb.InvalidateRequest(scope=scope)),
                stub.Frequent(pb.FrequentRequest(scope=scope, most=1)),
                stub.Pairs(pb.PairsRequest(scope=scope, most=1)),
            )
            found = [getattr(one, "code", lambda: None)() for one in await asyncio.gather(*calls, return_exceptions=True)]
            assert found == [code] * len(calls)


async def test_an_answer_is_returned_as_it_was_sent(tiny_models: Path, tmp_path: Path, redis_server: RedisServer) -> None:
    async with serve_caches(tiny_models, tmp_path, redis_server.url) as stub:
        miss = (await stub.Lookup(pb.LookupRequest(request=request()))).miss
        assert (miss.reason, bool(miss.flight)) == (pb.REASON_COLD, True)
        stored = await stub.Store(pb.StoreRequest(request=request(), response=response(), flight=miss.flight))
        assert stored.stored and stored.entry_id
        hit = (await stub.Lookup(pb.LookupRequest(request=request()))).hit
        assert hit.response == response()
        assert hit.source == pb.SOURCE_EXACT and 0 < hit.remaining_s <= 4 * 3600
        stats = await stub.Stats(pb.StatsRequest())
        assert [(scope.scope, scope.entries) for scope in stats.scopes] == [("faq", 1)]
        assert (await stub.Feedback(pb.FeedbackRequest(entry_id=hit.entry_id, wrong=True, drop=True))).dropped
        assert await reason(stub, request(), wait_ms=0) == "COLD"
        assert (await stub.Invalidate(pb.InvalidateRequest(scope="faq", erase=True))).done


async def test_a_stream_is_returned_as_it_was_sent_but_not_as_a_body(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    asked = request(parameters_json=b'{"temperature": 0, "stream": true}')
    async with serve_caches(tiny_models, tmp_path, redis_server.url) as stub:
        assert (await stub.Store(pb.StoreRequest(request=asked, response=streamed()))).stored
        assert (await stub.Lookup(pb.LookupRequest(request=asked))).hit.response == streamed()
        # It lacks the usage of a body. The caller leads a flight, and its answer serves both forms.
        miss = (await stub.Lookup(pb.LookupRequest(request=request()))).miss
        assert miss.reason == pb.REASON_COLD and miss.flight
        assert (await stub.Store(pb.StoreRequest(request=request(), response=response(), flight=miss.flight))).stored
        assert (await stub.Lookup(pb.LookupRequest(request=request()))).hit.response == response()
        assert len((await stub.Lookup(pb.LookupRequest(request=asked))).hit.response.chunks) == 3


async def test_invalid_requests_are_refused(tiny_models: Path, tmp_path: Path, redis_server: RedisServer) -> None:
    wrong = [
        request(parameters_json=b"{"),
        request(parameters_json=b"[]"),
        request(parameters_json=b'{"a": 1e999}'),
        request(parameters_json=b'{"temperature": 0, "a": "\\ud800"}'),
        request(parameters_json=b"[" * 10_000),
        request(tools_json=b"{}"),
        request(model=""),
        request(scope="s" * 300),
        pb.Request(model="m"),
    ]
    async with serve_caches(tiny_models, tmp_path, redis_server.url) as stub:
        for one in wrong:
            for call in (stub.Lookup(pb.LookupRequest(request=one)), stub.Store(pb.StoreRequest(request=one))):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, one
        for seconds in (math.nan, math.inf, -1.0):
            answer = response()
            answer.engine_s = seconds
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Store(pb.StoreRequest(request=request(), response=answer))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, seconds
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Invalidate(pb.InvalidateRequest())
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_token_identifies_the_client(tiny_models: Path, tmp_path: Path, redis_server: RedisServer) -> None:
    tokens = {"alice": "a-token", "bob": "b-token"}
    (tmp_path / "tokens").write_text("".join(f"{name}: {sha256(t.encode()).hexdigest()}\n" for name, t in tokens.items()))
    async with serve_caches(tiny_models, tmp_path, redis_server.url, tokens=tmp_path / "tokens") as stub:

        async def look_up(name: str) -> pb.LookupResponse:
            metadata = (("authorization", f"Bearer {tokens[name]}"),)
            return await stub.Lookup(pb.LookupRequest(request=request()), metadata=metadata)

        flight = (await look_up("alice")).miss.flight
        bearer = (("authorization", "Bearer a-token"),)
        await stub.Store(pb.StoreRequest(request=request(), response=response(), flight=flight), metadata=bearer)
        assert (await look_up("alice")).HasField("hit")
        assert (await look_up("bob")).miss.reason == pb.REASON_COLD
        # Bob cannot use Alice's entry.
        hit = (await look_up("alice")).hit
        as_bob = (("authorization", "Bearer b-token"),)
        assert not (
            await stub.Feedback(pb.FeedbackRequest(entry_id=hit.entry_id, wrong=True, drop=True), metadata=as_bob)
        ).counted
        await stub.Invalidate(pb.InvalidateRequest(everything=True), metadata=as_bob)
        assert (await look_up("alice")).HasField("hit")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Lookup(pb.LookupRequest(request=request()))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_dead_or_silent_redis_is_a_miss_until_it_is_back(
    tiny_models: Path, tmp_path: Path, own_redis: RedisServer
) -> None:
    async with serve_caches(tiny_models, tmp_path, own_redis.url, cache_redis_timeout_s=0.05) as stub:
        # A loaded machine may exceed the timeout.
        async def stored() -> bool:
            return bool((await stub.Store(pb.StoreRequest(request=request(), response=response()))).stored)

        async def hit() -> bool:
            return await reason(stub, request()) == "HIT"

        async def available() -> bool:
            return await reason(stub, request()) != "UNAVAILABLE"

        await eventually(stored)
        await eventually(hit)
        own_redis.freeze()
        assert await reason(stub, request()) == "UNAVAILABLE"
        assert {await reason(stub, request(f"{n}?")) for n in range(20)} == {"UNAVAILABLE"}
        refused = await stub.Store(pb.StoreRequest(request=request(), response=response()))
        assert (refused.stored, refused.refusal) == (False, "unavailable")
        assert not (await stub.Invalidate(pb.InvalidateRequest(scope="faq"))).done
        assert not (await stub.Stats(pb.StatsRequest(scope="faq"))).scopes[0].known
        own_redis.thaw()
        await eventually(hit)
        own_redis.kill()
        assert await reason(stub, request()) == "UNAVAILABLE"
        own_redis.start()
        await eventually(available)


async def test_a_thousand_concurrent_requests_call_the_engine_once(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    engine_calls = 0
    async with serve_caches(tiny_models, tmp_path, redis_server.url) as stub:

        async def one() -> bool:
            nonlocal engine_calls
            found = await stub.Lookup(pb.LookupRequest(request=request(), wait_ms=30_000))
            if found.HasField("hit"):
                return True
            engine_calls += 1
            await asyncio.sleep(0.05)
            await stub.Store(pb.StoreRequest(request=request(), response=response(), flight=found.miss.flight))
            return False

        assert sum(await asyncio.gather(*(one() for _ in range(1000)))) == 999
    assert engine_calls == 1


async def test_a_sidecar_starts_without_redis(tiny_models: Path, tmp_path: Path) -> None:
    async with serve_caches(tiny_models, tmp_path, f"redis://127.0.0.1:{free_port()}") as stub:
        assert await reason(stub, request()) == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (None, "cannot read"),
        ("", "lacks the line `names`"),
        (f"names: {'1' * 64}", "lacks a key for encryption"),
        ("names: secret", "line 1: expected"),
        (f"{KEY_LINES}k1: {'5' * 64}", "duplicate name"),
        (f"{KEY_LINES}k2: {'22' * 32}", "duplicate key"),
        ("\xff", "is not UTF-8"),
    ],
)
async def test_an_invalid_key_file_prevents_the_start_and_is_not_quoted(
    tiny_models: Path, tmp_path: Path, lines: str | None, message: str
) -> None:
    path = tmp_path / "wrong-keys"
    if lines is not None:
        path.write_bytes(lines.encode("latin-1"))
    with pytest.raises(StartError, match=message) as caught:
        async with serve_caches(tiny_models, tmp_path, "redis://127.0.0.1:1", cache_keys=path):
            pass
    assert "secret" not in str(caught.value) and "2222" not in str(caught.value)


async def test_a_sidecar_without_response_caches_neither_offers_nor_imports_them(tiny_models: Path, tmp_path: Path) -> None:
    port = free_port()
    settings = {"MODELS": tiny_models, "MODEL": "tiny", "PORT": port, "METRICS_PORT": "", "UNIX_SOCKET": "", "THREADS": 1}
    environment = {**os.environ, **{f"LPC_{name}": str(value) for name, value in settings.items()}}
    with (tmp_path / "imports").open("w") as imports:
        command = [sys.executable, "-X", "importtime", "-m", "lpc_cli", "serve"]
        process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=imports)
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await asyncio.wait_for(channel.channel_ready(), patiently(100))
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await rpc.ResponseCacheStub(channel).Lookup(pb.LookupRequest())
        finally:
            process.terminate()
            assert await asyncio.wait_for(process.wait(), patiently()) == 0
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    names = [line.rpartition("|")[2].strip() for line in (tmp_path / "imports").read_text().splitlines()]
    assert "predictor_service.server" in names
    assert not {name for name in names if name.partition(".")[0] == "response_cache"}
    assert not {"cryptography", "httpx2", "redis", "starlette", "uvicorn", "lpc.cache"} & set(names)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cache_redis_url": "redis://r"}, "needs cache_keys"),
        ({"cache_keys": "k"}, "need cache_redis_url"),
        ({"cache_scopes": {"faq": {}}}, "need cache_redis_url"),
        ({"cache_redis_url": "redis://r/1", "cache_keys": "k", "redis_url": "redis://u:p@r/0"}, "is the same Redis as"),
        ({"cache_redis_url": "http://r", "cache_keys": "k"}, "write redis://HOST:PORT"),
        ({"cache_redis_url": "redis://:p@r", "cache_keys": "k", "cache_redis_password_file": "f"}, "remove one of them"),
        ({"cache_redis_url": "redis://r", "cache_keys": "k", "redis_ca": "f"}, "begins with rediss://"),
        (
            {"cache_redis_url": "redis://r", "cache_keys": "k", "cache_scopes": {"faq": {"mode": "on"}}},
            "'off', 'shadow' or 'serve'",
        ),
    ],
)
def test_contradictory_settings_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CacheSettings(**values)  # type: ignore[arg-type]


def test_scopes_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPC_CACHE_REDIS_URL", "redis://r")
    monkeypatch.setenv("LPC_CACHE_KEYS", "k")
    monkeypatch.setenv("LPC_CACHE_SCOPES", '{"faq": {"kind": "faq", "mode": "shadow"}, "prose": {"kind": "creative"}}')
    scopes = CacheSettings().cache_scopes
    assert scopes["faq"] == ScopeSettings(kind="faq", mode="shadow")
    assert scopes["faq"].life_s == 8 * 3600 and not scopes["prose"].keeps


@pytest.mark.parametrize(
    ("changes", "model"),
    [
        ({}, "default"),
        ({"cache_scopes": {"faq": {"kind": "faq", "mode": "shadow"}}}, "e5-small"),
        ({"cache_scopes": {"faq": {"kind": "faq", "mode": "shadow"}}, "model": "mine"}, "mine"),
    ],
)
def test_questions_are_embedded_by_a_transformer_unless_a_model_is_named(changes: dict[str, object], model: str) -> None:
    values = {"cache_redis_url": "redis://r", "cache_keys": "k", **changes}
    assert CacheSettings(**values).model_name == model  # type: ignore[arg-type]
