"""Hostile and unusual requests and answers, with a real sidecar and a real Redis."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.caching_sidecar import ResponseCaches, response_caches
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import eventually
from tests.integration.response_cache.gateway.conftest import CHAT, Running, a_gateway, chat


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory, tiny_models: Path) -> Iterator[ResponseCaches]:
    scopes = {"default": {}, "watched": {"mode": "shadow"}}
    with response_caches(tmp_path_factory.mktemp("caches"), tiny_models, scopes) as made:
        yield made


async def kept(gateway: Running, body: dict[str, Any], **headers: str) -> None:
    """Repeat a request until its answer comes from the cache."""

    async def hit() -> bool:
        return (await gateway.ask(body, **headers)).headers.get("x-lpc-cache") == "exact"

    await eventually(hit)


@pytest.mark.parametrize("why", ["length", "refused", "long"])
async def test_equal_requests_do_not_wait_for_an_answer_that_is_not_cached(caches: ResponseCaches, why: str) -> None:
    engine = EngineDouble(seconds=0.3, finish="length" if why == "length" else "stop", refuse=why == "refused")
    if why == "long":
        engine.words = ["x" * 5000]
    settings = {"max_answer_bytes": 4096}
    async with serve_double(engine), a_gateway(engine, sidecar=caches.sidecar.address, **settings) as gateway:
        asking = [asyncio.ensure_future(gateway.ask(chat(f"not kept: {why}"))) for _ in range(8)]
        await eventually(lambda: engine.completions)
        engine.go.clear()
        # When the first one's answer has come, all the others are asked at once, and each of them but once.
        await eventually(lambda: len(engine.completions) == 8)
        looked_up = await gateway.metric("lpc_gateway_lookup_seconds_count")
        engine.go.set()
        answers = await asyncio.gather(*asking)
        assert len(engine.completions) == 8 == looked_up
        assert len({answer.status_code for answer in answers}) == 1


async def test_of_equal_requests_with_a_candidate_one_reaches_the_engine(caches: ResponseCaches) -> None:
    settings = {"gateway_scopes": {"*": ("watched",)}}
    engine = EngineDouble(words=["The same to all."], seconds=0.3)
    async with serve_double(engine), a_gateway(engine, sidecar=caches.sidecar.address, **settings) as gateway:
        await kept(gateway, chat("where can a bird be seen"), x_lpc_scope="watched")

        words = iter(["please", "thanks", "now", "today", "again", "here", "there", "really"] * 100)

        async def has_candidate() -> bool:
            await gateway.ask(chat(f"where can a bird be seen {next(words)} and {next(words)}"), x_lpc_scope="watched")
            return await gateway.metric('lpc_gateway_misses_total{reason="below_threshold"}') > 0

        await eventually(has_candidate)
        before = len(engine.completions)
        asking = (gateway.ask(chat("where can a bird be seen thanks"), x_lpc_scope="watched") for _ in range(16))
        answers = await asyncio.gather(*asking)
        assert len(engine.completions) == before + 1
        assert sorted(answer.headers["x-lpc-cache"] for answer in answers) == ["exact"] * 15 + ["miss"]


async def test_a_request_that_cannot_be_looked_up_is_forwarded_without_a_cache_header(caches: ResponseCaches) -> None:
    plain = json.dumps(chat("odd"))
    odd = {
        "no model": plain.replace('"model": "m"', '"model": null'),
        "model that is no text": plain.replace('"model": "m"', '"model": 1'),
        "half a character": plain.replace("odd", "\\ud800"),
        "a chat with a prompt": plain.replace("0}", '0, "prompt": "odd"}'),
        "tools that are no list": plain.replace("0}", '0, "tools": {"a": 1}}'),
    }
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        await kept(gateway, chat("up"))
        engine.refuse = True
        for name, body in odd.items():
            assert await gateway.metric("lpc_gateway_cache_up") == 1
            before = len(engine.received)
            answer = await gateway.client.post(CHAT, content=body.encode(), headers={"content-type": "application/json"})
            assert [received.body for received in engine.received[before:]] == [body.encode()], name
            assert "x-lpc-cache" not in answer.headers or answer.headers["x-lpc-cache"] == "miss", name
            assert await gateway.metric("lpc_gateway_cache_up") == 1, name


PROMPTED = (
    *(CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings", "/v1/score"),
    *("/v1/rerank", "/v2/rerank", "/score", "/rerank", "/classify", "/pooling", "/tokenize", "/detokenize"),
    *("/invocations", "/inference/v1/generate"),
)


@pytest.mark.parametrize("path", PROMPTED)
async def test_no_prompt_of_a_tenant_reaches_the_engine_without_its_salt(path: str) -> None:
    plain = json.dumps({**chat("odd"), "session_id": "mine"}).encode()
    raw = zlib.compressobj(wbits=-15)
    coded = {"gzip": gzip.compress(plain), "deflate": zlib.compress(plain), "Identity": plain, "x-gzip": gzip.compress(plain)}
    refused = {
        415: [("br", plain), ("zstd", plain), ("gzip, gzip", gzip.compress(coded["gzip"])), ("gzip;q=1", coded["gzip"])],
        400: [
            *(("gzip", plain), ("gzip", coded["gzip"][:-9]), ("gzip", coded["gzip"] + b"x"), ("gzip", coded["gzip"] * 2)),
            *(("deflate", coded["deflate"][:-1]), ("identity", coded["gzip"]), ("identity", plain[:-1])),
            ("identity", plain[:-1] + b', "x": ' + b"[" * 101 + b"]" * 101 + b"}"),
            ("identity", plain[:-1] + b', "x": ' + b"1" * 5000 + b"}"),
        ],
    }
    more = ("POST /invocations", "POST /inference/v1/generate")
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, gateway_cache=False, gateway_paths=more) as gateway:
        common = {"x-forwarded-user": "t", "content-type": "application/json"}
        bodies = [*coded.items(), ("deflate", raw.compress(plain) + raw.flush())]
        for coding, body in bodies:
            await gateway.client.post(path, content=body, headers={**common, "content-encoding": coding})
        assert len(engine.received) == len(bodies)
        assert len({received.json["cache_salt"] for received in engine.received}) == 1
        for received in engine.received:
            assert received.header("content-encoding") is None and received.json["session_id"] != "mine"
        for status, cases in refused.items():
            for coding, body in cases:
                answer = await gateway.client.post(path, content=body, headers={**common, "content-encoding": coding})
                assert answer.status_code == status and answer.json()["error"]["message"], (coding, body[:20])
                assert ("accept-encoding" in answer.headers) == (status == 415)
        for declared in ("text/plain", "multipart/form-data; boundary=a", "application/x-www-form-urlencoded"):
            if "multipart" not in declared or path not in PROMPTED[-2:]:
                answer = await gateway.client.post(path, content=plain, headers={**common, "content-type": declared})
                assert answer.status_code == 415
        assert len(engine.received) == len(bodies)


async def test_a_body_that_grows_when_it_is_decoded_is_refused_when_it_exceeds_the_limit() -> None:
    settings = {"max_request_bytes": 3 * 2**20, "gateway_max_held_bytes": 4 * 2**20}
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, gateway_cache=False, **settings) as gateway:
        for zeros in (2**20, 2**22, 2**28):
            for coding, compress in (("gzip", gzip.compress), ("deflate", zlib.compress)):
                bomb = compress(json.dumps(chat("{}")).encode().replace(b"{}", b"0" * zeros))
                answer = await gateway.client.post(CHAT, content=bomb, headers={"content-encoding": coding})
                assert answer.status_code == (200 if zeros == 2**20 else 413)
        assert len(engine.completions) == 2
        assert await gateway.metric("lpc_gateway_held_bytes") == 0


async def test_requests_with_another_query_share_no_answer(caches: ResponseCaches) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        await kept(gateway, chat("query"))
        answer = await gateway.client.post(f"{CHAT}?key=another", json=chat("query"))
        assert answer.headers["x-lpc-cache"] == "miss"
        assert engine.completions[-1].target == f"{CHAT}?key=another"


async def test_head_requests_are_forwarded_and_other_methods_are_not(caches: ResponseCaches) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        head = await gateway.client.head("/v1/models")
        assert (head.status_code, head.content) == (200, b"") and int(head.headers["content-length"]) > 0
        assert (await gateway.client.options(CHAT)).status_code == 418
        for method in ("PUT", "DELETE", "PATCH", "GET"):
            answer = await gateway.client.request(method, CHAT)
            assert (answer.status_code, answer.headers["allow"]) == (405, "OPTIONS, POST"), method
        before = len(engine.received)
        for method in ("GET", "HEAD", "OPTIONS"):
            assert (await gateway.client.request(method, "/v1/models", content=b"{}")).status_code == 400
        assert len(engine.received) == before


async def test_websockets_are_refused() -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, gateway_cache=False) as gateway:
        upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "AAAA"}
        answer = await gateway.client.get("/v1/realtime", headers=upgrade)
        assert answer.status_code == 404 and not engine.received
        assert not any(received.header("upgrade") for received in engine.received)
