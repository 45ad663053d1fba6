"""Two tenants of one engine: what of the one can reach the other."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.cache.v1 import response_cache_pb2_grpc as rpc
from lpc.v1 import predictor_pb2, predictor_pb2_grpc
from lpc.wire.session import name_under_salt
from lpc_apps.gateway.clients import SESSION_HEADERS
from tests.caching_sidecar import ResponseCaches, response_caches
from tests.engine_double import EngineDouble, Received, served
from tests.eventually import eventually
from tests.integration.gateway.conftest import CHAT, Running, a_gateway, chat


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory, tiny_models: Path) -> Iterator[ResponseCaches]:
    with response_caches(tmp_path_factory.mktemp("caches"), tiny_models) as made:
        yield made


async def received(gateway: Running, engine: EngineDouble, tenant: str | None, path: str = CHAT, **fields: Any) -> Received:
    """Ask as a tenant; return what the engine got."""
    headers = {"x-session-id": "mine", **({"x-forwarded-user": tenant} if tenant else {})}
    before = len(engine.received)
    await gateway.client.post(path, json={**chat("hello"), **fields}, headers=headers)
    return engine.received[before]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_tenants_have_salts_and_conversations_of_their_own(path: str) -> None:
    fields = {"prompt": "hello"} if path == "/v1/completions" else {}
    async with served(EngineDouble()) as engine, a_gateway(engine) as gateway:
        one, two, again = [await received(gateway, engine, tenant, path, **fields) for tenant in ("one", "two", "one")]
        salts = [request.json["cache_salt"] for request in (one, two, again)]
        names = [request.header("x-session-id") for request in (one, two, again)]
        for kinds in (salts, names):
            assert kinds[0] == kinds[2] != kinds[1]
        assert "mine" not in names and "one" not in str(salts)
        # All else is as it came.
        plain = json.dumps({**chat("hello"), **fields}, separators=(",", ":"), ensure_ascii=False)
        assert one.body.decode() == f'{{"cache_salt":"{salts[0]}",{plain[1:]}'


async def test_a_tenant_cannot_choose_a_salt_or_the_name_of_anothers_conversation() -> None:
    async with served(EngineDouble()) as engine, a_gateway(engine) as gateway:
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
async def test_no_header_names_anothers_conversation(header: bytes) -> None:
    async with served(EngineDouble()) as engine, a_gateway(engine) as gateway:
        names = set()
        for tenant in ("victim", "other"):
            headers = {header: b"mine", b"x-forwarded-user": tenant.encode()}
            await gateway.client.post("/v1/responses", json={"model": "m", "input": "hello"}, headers=headers)
            names.add(engine.received[-1].header(header.decode()))
        assert len(names) == 2 and "mine" not in names


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
async def test_whatever_names_a_conversation_names_it_to_the_engine(
    fields: dict[str, Any], headers: dict[str, str], hints: str, reads: str
) -> None:
    async with served(EngineDouble()) as engine, a_gateway(engine, gateway_hints=hints) as gateway:

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


async def test_a_conversation_that_only_openais_fields_name_is_named_to_the_engine_and_of_its_tenant() -> None:
    async with served(EngineDouble()) as engine, a_gateway(engine) as gateway:

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
async def test_what_clients_ask_of_their_providers_cache_is_a_hint_for_the_engine(hints: str, field: str | None) -> None:
    async with served(EngineDouble()) as engine, a_gateway(engine, gateway_hints=hints) as gateway:
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


async def test_a_caller_without_identity_gets_its_body_through_as_it_is() -> None:
    async with served(EngineDouble()) as engine, a_gateway(engine) as gateway:
        body = b'{ "model": "m", "session_id":"s", "messages":[{"role":"user","content":"hi"}], "x":1.0 }'
        await gateway.client.post(CHAT, content=body, headers={"authorization": "Bearer EMPTY"})
        assert engine.received[0].body == body


async def test_other_paths_name_conversations_of_the_tenant(caches: ResponseCaches) -> None:
    async with served(EngineDouble()) as engine, a_gateway(engine) as gateway:
        names = {(await received(gateway, engine, tenant, "/v1/embeddings")).header("x-session-id") for tenant in ("a", "b")}
        assert len(names | {"mine"}) == 3


async def test_gateways_with_one_key_file_give_one_tenant_one_salt(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("5a" * 32)
    async with served(EngineDouble()) as engine:
        salts = []
        for settings in ({"gateway_salt_key_file": key}, {"gateway_salt_key_file": key}, {}):
            async with a_gateway(engine, **settings) as gateway:
                salts.append((await received(gateway, engine, "one")).json["cache_salt"])
        assert salts[0] == salts[1] != salts[2]


async def test_callers_whom_nothing_identifies_share_no_answers(caches: ResponseCaches) -> None:
    settings = {"sidecar": caches.sidecar.address, "gateway_cache_anonymous": False}
    async with served(EngineDouble()) as engine, a_gateway(engine, **settings) as gateway:
        for headers in ({}, {"authorization": "Bearer EMPTY"}, {"authorization": "Bearer the-engines-one-key"}):
            for _ in range(2):
                answer = await gateway.ask(chat("unknown"), **headers)
                assert answer.status_code == 200 and "x-lpc-cache" not in answer.headers
        assert len(engine.completions) == 6

        async def hit() -> bool:
            return (await gateway.ask(chat("unknown"), x_forwarded_user="u")).headers["x-lpc-cache"] == "exact"

        await eventually(hit)
        assert (await gateway.ask(chat("unknown"), x_forwarded_user="v")).headers["x-lpc-cache"] == "miss"


async def test_a_sidecar_that_refuses_tenants_is_one_error_and_the_engine_answers(
    tmp_path: Path, tiny_models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with response_caches(tmp_path, tiny_models, cache_gateways="") as closed:
        async with served(EngineDouble()) as engine, a_gateway(engine, sidecar=closed.sidecar.address) as gateway:
            for _ in range(3):
                answer = await gateway.ask(chat("denied"))
                assert answer.status_code == 200 and "x-lpc-cache" not in answer.headers
            assert len(engine.completions) == 3
            assert await gateway.metric('lpc_gateway_misses_total{reason="permission_denied"}') == 3
            assert await gateway.metric("lpc_gateway_cache_up") == 0
        errors = [
            r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR and r.name.startswith("lpc_apps.gateway")
        ]
        assert len(errors) == 1 and "LPC_CACHE_GATEWAYS" in errors[0]


class Sidecar(rpc.ResponseCacheServicer, predictor_pb2_grpc.ContinuationPredictorServicer):
    """A real gRPC server that has one answer, and keeps what the predictor is told."""

    def __init__(self) -> None:
        self.answer = pb.LookupResponse()
        self.told: list[str] = []

    async def Lookup(self, request: pb.LookupRequest, context: Any) -> pb.LookupResponse:  # noqa: N802
        return self.answer

    async def Store(self, request: pb.StoreRequest, context: Any) -> pb.StoreResponse:  # noqa: N802
        self.answer = pb.LookupResponse(hit=pb.Hit(source=pb.SOURCE_EXACT, response=request.response))
        return pb.StoreResponse(stored=True)

    async def Predict(self, request: predictor_pb2.PredictRequest, context: Any) -> predictor_pb2.PredictResponse:  # noqa: N802
        self.told.append(request.conversation.conversation_id)
        return predictor_pb2.PredictResponse()


async def test_the_predictor_is_told_of_a_hit_under_the_name_that_the_engines_plug_in_uses() -> None:
    servicer, server = Sidecar(), grpc.aio.server()
    rpc.add_ResponseCacheServicer_to_server(servicer, server)
    predictor_pb2_grpc.add_ContinuationPredictorServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with served(EngineDouble()) as engine, a_gateway(engine, sidecar=address) as gateway:
        headers = {"x_forwarded_user": "u", "x_session_id": "mine"}
        assert (await gateway.ask(chat("tell"), **headers)).headers["x-lpc-cache"] == "miss"
        await eventually(lambda: servicer.answer.HasField("hit"))
        assert (await gateway.ask(chat("tell"), **headers)).headers["x-lpc-cache"] == "exact"
        await eventually(lambda: servicer.told)
        (request,) = engine.completions
        assert servicer.told == [name_under_salt(request.header("x-session-id") or "", request.json["cache_salt"])]
    await server.stop(None)
