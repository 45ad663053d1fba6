"""The shipped deployments of response caches, for real: who gets in, and who may name a tenant."""

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx2
import pytest
import redis

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.cache.v1 import response_cache_pb2_grpc as rpc
from tests.deploy.deployed_caches import Deployed, deployed, own_address
from tests.eventually import patiently, until

ADDRESS = own_address()
pytestmark = [
    pytest.mark.skipif(ADDRESS is None, reason="this machine has no address but loopback"),
    pytest.mark.timeout(300),  # several processes are started
]
BODY = {"model": "m", "messages": [{"role": "user", "content": "What did the doctor say?"}], "temperature": 0}


@pytest.fixture(scope="module", params=[pytest.param("compose", marks=pytest.mark.nightly), "kustomize"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Deployed]:
    assert ADDRESS is not None
    with deployed(request.param, tmp_path_factory.mktemp(request.param), models, ADDRESS) as found:
        yield found


def ask(running: Deployed, client: str) -> httpx2.Response:
    headers = {"authorization": f"Bearer {client}"}
    return httpx2.post(
        f"{running.gateway}/v1/chat/completions", json=BODY, headers=headers, timeout=patiently(), trust_env=False
    )


def look_up(running: Deployed, *, token: str | None, tenant: str = "") -> pb.LookupResponse:
    """Call the response caches as any pod can that reaches their port."""
    credentials = grpc.ssl_channel_credentials(running.authority)
    channel = grpc.secure_channel(running.caches, credentials)
    parameters = json.dumps({key: value for key, value in BODY.items() if key not in {"model", "messages"}}).encode()
    messages = [pb.Message(role="user", content="What did the doctor say?")]
    asked = pb.Request(model="m", messages=messages, parameters_json=parameters, scope="default", tenant=tenant)
    with channel:
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        answer: pb.LookupResponse = rpc.ResponseCacheStub(channel).Lookup(
            pb.LookupRequest(request=asked), timeout=patiently(), metadata=metadata
        )
        return answer


def refusal(running: Deployed, *, token: str | None, tenant: str = "") -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        look_up(running, token=token, tenant=tenant)
    code: grpc.StatusCode = caught.value.code()  # type: ignore[attr-defined]
    return code


def test_the_gateway_answers_a_client_from_the_cache(running: Deployed) -> None:
    until(lambda: ask(running, running.client).headers.get("x-lpc-cache") == "exact")
    assert running.double.completions
    stranger = ask(running, "another-token")
    assert stranger.status_code == 401 and "x-lpc-cache" not in stranger.headers


def test_the_gateways_token_names_a_tenant(running: Deployed) -> None:
    assert look_up(running, token=running.token, tenant="client:app").WhichOneof("result") == "hit"
    assert look_up(running, token=running.token, tenant="client:other").WhichOneof("result") == "miss"


@pytest.mark.parametrize("token", [None, "wrong"])
def test_a_pod_without_a_token_is_refused(running: Deployed, token: str | None) -> None:
    assert refusal(running, token=token, tenant="client:app") is grpc.StatusCode.UNAUTHENTICATED
    assert refusal(running, token=token) is grpc.StatusCode.UNAUTHENTICATED


def test_the_caches_redis_asks_for_its_password(running: Deployed) -> None:
    with (
        redis.Redis(port=running.redis, protocol=2) as stranger,
        pytest.raises(redis.AuthenticationError, match="Authentication required"),
    ):
        stranger.keys()
