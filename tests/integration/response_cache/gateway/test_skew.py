"""The gateway with a newer sidecar: a real gRPC server whose answers have enum values that the gateway does not know."""

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.cache.v1 import response_cache_pb2_grpc as rpc
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import eventually
from tests.integration.response_cache.gateway.conftest import a_gateway, chat

FUTURE: Any = 99


class Newer(rpc.ResponseCacheServicer):
    """Answers lookups with `answer`, and records the calls of Store."""

    def __init__(self) -> None:
        self.answer = pb.LookupResponse()
        self.stored: list[pb.StoreRequest] = []

    async def Lookup(self, request: pb.LookupRequest, context: Any) -> pb.LookupResponse:  # noqa: N802
        return self.answer

    async def Store(self, request: pb.StoreRequest, context: Any) -> pb.StoreResponse:  # noqa: N802
        self.stored.append(request)
        return pb.StoreResponse(stored=True)


@pytest.fixture
async def newer() -> AsyncIterator[tuple[Newer, str]]:
    servicer, server = Newer(), grpc.aio.server()
    rpc.add_ResponseCacheServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield servicer, f"127.0.0.1:{port}"
    await server.stop(None)


BODY = b'{"id": "chatcmpl-1", "created": 1, "model": "m", "choices": [{"index": 0, "message": {"content": "kept"}}]}'
ANSWERS = {
    "a hit of an unknown source": pb.LookupResponse(hit=pb.Hit(source=FUTURE, response=pb.Response(body=BODY))),
    "a miss for an unknown reason": pb.LookupResponse(miss=pb.Miss(reason=FUTURE, flight=b"flight")),
    "neither": pb.LookupResponse(),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_an_enum_value_of_a_newer_sidecar_is_a_miss(newer: tuple[Newer, str], kind: str) -> None:
    servicer, address = newer
    servicer.answer = ANSWERS[kind]
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, sidecar=address) as gateway:
        for _ in range(2):
            answer = await gateway.ask(chat("new"))
            assert (answer.status_code, answer.headers.get("x-lpc-cache")) == (200, "miss")
            assert answer.json()["choices"][0]["message"]["content"] == "You said: new"
        assert len(engine.completions) == 2
        assert await gateway.metric('lpc_gateway_misses_total{reason="unspecified"}') == 2
        await eventually(lambda: len(servicer.stored) == 2)
        assert {request.flight for request in servicer.stored} == {b"flight" if kind.startswith("a miss") else b""}
