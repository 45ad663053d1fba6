"""Tenants of one engine: what one can see of another."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from response_cache.gateway.clients import SESSION_HEADERS
from tests.caching_sidecar import ResponseCaches, response_caches
from tests.engine_double import EngineDouble, Received, serve_double
from tests.eventually import eventually
from tests.integration.response_cache.gateway.conftest import CHAT, Running, a_gateway, chat


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory, tiny_models: Path) -> Iterator[ResponseCaches]:
    with response_caches(tmp_path_factory.mktemp("caches"), tiny_models) as made:
        yield made


async def received(gateway: Running, engine: EngineDouble, tenant: str | None, path: str = CHAT, **fields: Any) -> Received:
    """Send a request as a tenant; return what the engine received."""
    headers = {"x-session-id": "mine", **({"x-forwarded-user": tenant} if tenant else {})}
    before = len(engine.received)
    await gateway.client.post(path, json={**chat("hello"), **fields}, headers=headers)
    return engine.received[before]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_each_tenant_has_its_own_salt_and_conversation_names(path: str) -> None:
    fields = {"prompt": "hello"} if path == "/v1/completions" else {}
    async with serve_double(EngineDouble()) as engine, a_gateway(engine) as gateway:
        one, two, again = [await received(gateway, engine, tenant, path, **fields) for tenant in ("one", "two", "one")]
        salts = [request.json["cache_salt"] for request in (one, two, again)]
        names = [request.header("x-session-id") for request in (one, two, again)]
        for kinds in (salts, names):
            assert kinds[0] == kinds[2] != kinds[1]
        assert "mine" not in names and "one" not in str(salts)
        # Everything else is unchanged.
        plain = json.dumps({**chat("hello"), **fields}, separators=(",", ":"), ensure_ascii=False)
        assert one.body.decode() == f'{{"cache_salt":"{salts[0]}",{plain[1:]}'


async def test_in_score_and_rerank_each_tenant_has_its_own_names_of_media() -> None:
    image = {"type": "image_url", "image_url": {"url": "http://a/b.png"}, "uuid": "mine"}
    bodies = {
        "/v1/rerank": {"query": {"content": [image]}, "documents": [{"content": [image]}]},
        "/rerank": {"query": [image], "documents": [[image]]},
        "/v1/score": {"queries": {"content": [image]}, "items": [{"content": [image]}]},
        "/score": {"data_1": [{"content": [image]}], "data_2": {"content": [image]}},
        "/pooling": {"messages": [{"role": "user", "content": [image]}]},
    }
    async with serve_double(EngineDouble()) as engine, a_gateway(engine) as gateway:
        for path, fields in bodies.items():
            one, two = [await received(gateway, engine, tenant, path, **fields) for tenant in ("one", "two")]
            assert b'"mine"' not in one.body + two.body and b"uuid" in one.body
            assert {**one.json, "cache_salt": ""} != {**two.json, "cache_salt": ""}, path
        before = len(engine.received)
        hashed = {"type": "image_url", "image_url": {"url": "http://a/b.png", "content_hash": "sha256:" + "0" * 64}}
        refused = await gateway.client.post(
            "/v1/rerank", json={"query": "a", "documents": [[hashed]]}, headers={"x-forwarded-user": "one"}
        )
        steered = await gateway.ask(chat("hi"), x_forwarded_user="one", x_override_bootstrap_host="10.0.0.1")
        assert (refused.status_code, steered.status_code, len(engine.received)) == (400, 400, before)


async def test_a_tenant_cannot_choose_the_salt_or_conversation_name_of_another() -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine) as gateway:
        victim = await received(gateway, engine, "victim", session_id="mine")
        salt, name = victim.json["cache_salt"], victim.json["session_id"]
        for tenant in ("other", None):
            for fields in (
                {"cache_salt": salt, "session_id": name},
                {"cache_salt": salt, "vllm_xargs": {"session_id": "mine"}},
                {"cache_salt": salt, "custom_params": {"session_id": "mine"}, "session_id": "mine"},
            ):
                got = (await received(gateway, engine, tenant, **fields)).json
                assert got["cache_salt"] != salt
                if tenant is not None:
                    assert name not in json.dumps(got)
                    assert '"mine"' not in json.dumps(got)


@pytest.mark.parametrize("header", sorted(SESSION_HEADERS))
async def test_no_header_gives_access_to_the_conversation_of_another_tenant(header: bytes) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine) as gateway:
        names = set()
        for tenant in ("victim", "other"):
            headers = {header: b"mine", b"x-forwarded-user": tenant.encode()}
            await gateway.client.post("/v1/responses", json={"model": "m", "input": "hello"}, headers=headers)
            names.add(engine.received[-1].header(header.decode()))
        assert len(names) == 2 and "mine" not in names


@pytest.mark.parametrize(
    "header",
    [
        *("x-data-parallel-rank", "X-Vllm-Priority", "x-body-compressed", "x-override-bootstrap-host"),
        *("x-override-bootstrap-room", "X-Override-Priority", "x-override-routed-dp-rank", "x-override-rid"),
    ],
)
async def test_a_header_that_steers_an_engine_is_refused(header: str) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine) as gateway:
        for method, path in (("POST", CHAT), ("POST", "/v1/embeddings"), ("GET", "/v1/models")):
            body = chat("hello") if method == "POST" else None
            for tenant in ("one", None):
                before = len(engine.received)
                headers = {header: "1", **({"x-forwarded-user": tenant} if tenant else {})}
                answer = await gateway.client.request(method, path, json=body, headers=headers)
                if tenant:
                    assert answer.status_code == 400 and f"leave out the header field {header.lower()}" in answer.text
                assert len(engine.received) - before == (0 if tenant else 1)


@pytest.mark.parametrize(("hints", "reads"), [("vllm", "header"), ("sglang", "custom_params")])
@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        ({"session_id": "c"}, {}),
        ({}, {"x-session-id": "c"}),
        ({"vllm_xargs": {"session_id": "c"}}, {}),
        ({"prompt_cache_key": "c"}, {}),
        ({"conversation": {"id": "c"}}, {}),
        ({"conversation_params": {"conversation_id": "c"}}, {}),
        ({"nvext": {"agent_context": {"session_id": "c"}}}, {}),
        ({}, {"x-dynamo-session-id": "c"}),
    ],
)
async def test_the_engine_gets_the_conversations_name_from_any_field(
    fields: dict[str, Any], headers: dict[str, str], hints: str, reads: str
) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, gateway_hints=hints) as gateway:

        async def name(tenant: str) -> str:
            body = {"model": "m", "input": "hello", **fields}
            await gateway.client.post("/v1/responses", json=body, headers={**headers, "x-forwarded-user": tenant})
            got = engine.received[-1]
            if reads == "custom_params":
                return str(got.json["custom_params"]["session_id"])
            in_body = got.json.get("session_id") or got.json.get("vllm_xargs", {}).get("session_id")
            return str(in_body or got.header("x-session-id"))

        assert await name("one") == await name("one") != await name("two")
        assert len(await name("one")) == 64


async def test_a_name_in_openais_fields_reaches_the_engine_as_the_tenants_own() -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine) as gateway:

        async def name(tenant: str | None, text: str, **fields: Any) -> str | None:
            headers = {"x-forwarded-user": tenant} if tenant else {}
            await gateway.client.post("/v1/responses", json={"model": "m", "input": text, **fields}, headers=headers)
            return engine.received[-1].header("x-session-id")

        odd = "k\r\nx-injected: 1\u2615"
        for tenant in ("one", None):
            first = await name(tenant, "hello", prompt_cache_key=odd)
            assert first is not None and first.isalnum() and first.isascii()
            assert first == await name(tenant, "hello", prompt_cache_key=odd)
            assert first != await name(tenant, "another beginning", prompt_cache_key=odd)
            conversation = await name(tenant, "hello", conversation={"id": "c"}, prompt_cache_key=odd)
            assert conversation == await name(tenant, "more", conversation="c") != first
            assert await name(tenant, "hello", conversation={}, prompt_cache_key=7) is None
        assert await name("one", "hello", conversation="c") != await name("two", "hello", conversation="c")


@pytest.mark.parametrize(("hints", "field"), [("vllm", "vllm_xargs"), ("sglang", "custom_params"), ("off", None)])
async def test_the_time_to_keep_a_prompt_reaches_the_engine_as_a_hint(hints: str, field: str | None) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, gateway_hints=hints) as gateway:
        asked = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
        for tenant in ("one", None):
            got = (await received(gateway, engine, tenant, "/v1/messages", **asked)).json
            assert (got.get(field or "vllm_xargs") or {}).get("lpc_retain_seconds") == (3600.0 if field else None)
            assert got["cache_control"] == asked["cache_control"]
            if field:
                for own, seconds in (({"lpc_retain_seconds": 1, "other": "x"}, 1), ({"other": "x"}, 3600.0)):
                    arguments = (await received(gateway, engine, tenant, **asked, **{field: own})).json[field]
                    assert (arguments["lpc_retain_seconds"], arguments["other"]) == (seconds, "x")
                assert (await received(gateway, engine, tenant, **asked, **{field: "odd"})).json[field] == "odd"


async def test_the_body_of_an_anonymous_caller_is_forwarded_unchanged() -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine) as gateway:
        body = b'{ "model": "m", "session_id":"s", "messages":[{"role":"user","content":"hi"}], "x":1.0 }'
        await gateway.client.post(CHAT, content=body, headers={"authorization": "Bearer EMPTY"})
        assert engine.received[0].body == body


async def test_other_paths_send_the_tenants_own_conversation_names(caches: ResponseCaches) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine) as gateway:
        names = {(await received(gateway, engine, tenant, "/v1/embeddings")).header("x-session-id") for tenant in ("a", "b")}
        assert len(names | {"mine"}) == 3


async def test_gateways_with_the_same_key_file_send_the_same_salt(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("5a" * 32)
    async with serve_double(EngineDouble()) as engine:
        salts = []
        for settings in ({"gateway_salt_key_file": key}, {"gateway_salt_key_file": key}, {}):
            async with a_gateway(engine, **settings) as gateway:
                salts.append((await received(gateway, engine, "one")).json["cache_salt"])
        assert salts[0] == salts[1] != salts[2]


async def test_anonymous_callers_share_no_answers(caches: ResponseCaches) -> None:
    settings = {"sidecar": caches.sidecar.address, "gateway_cache_anonymous": False}
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, **settings) as gateway:
        for headers in ({}, {"authorization": "Bearer EMPTY"}, {"authorization": "Bearer the-engines-one-key"}):
            for _ in range(2):
                answer = await gateway.ask(chat("unknown"), **headers)
                assert answer.status_code == 200 and "x-lpc-cache" not in answer.headers
        assert len(engine.completions) == 6

        async def hit() -> bool:
            return (await gateway.ask(chat("unknown"), x_forwarded_user="u")).headers["x-lpc-cache"] == "exact"

        await eventually(hit)
        assert (await gateway.ask(chat("unknown"), x_forwarded_user="v")).headers["x-lpc-cache"] == "miss"


async def test_the_engine_answers_and_one_error_is_logged_if_the_sidecar_refuses_tenants(
    tmp_path: Path, tiny_models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with response_caches(tmp_path, tiny_models, cache_gateways="") as closed:
        async with serve_double(EngineDouble()) as engine, a_gateway(engine, sidecar=closed.sidecar.address) as gateway:
            for _ in range(3):
                answer = await gateway.ask(chat("denied"))
                assert answer.status_code == 200 and "x-lpc-cache" not in answer.headers
            assert len(engine.completions) == 3
            assert await gateway.metric('lpc_gateway_misses_total{reason="permission_denied"}') == 3
            assert await gateway.metric("lpc_gateway_cache_up") == 0
        errors = [
            r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR and r.name.startswith("response_cache.gateway")
        ]
        assert len(errors) == 1 and "LPC_CACHE_GATEWAYS" in errors[0]
