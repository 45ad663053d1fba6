"""docs/how-to/security.md is run: its commands make what it says, its Redis user suffices and can nothing else."""

import contextlib
import subprocess
from pathlib import Path

import grpc
import pytest
import redis

from eviction_client.errors import StoreError
from eviction_client.settings import ClientSettings
from eviction_client.stores.namespace import Namespace
from eviction_client.stores.redis import RedisStore
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc.wire.access import access_of
from lpc.wire.certificates import CertificateFiles, read
from lpc.wire.redis_connection import Connection
from lpc.wire.tokens import read_tokens
from predictor_service.server import running
from predictor_service.settings import ServiceSettings
from tests.eventually import patiently
from tests.guarded_redis import GuardedRedis, code_block, rules

NAMESPACE = Namespace("sha256_cbor", "0", 16, "a-model")
NEEDED = ["eval", "zmscore", "zadd", "zcount", "zremrangebyrank", "pexpire", "get", "set", "time"]


def shell(text: str, folder: Path) -> None:
    subprocess.run(["bash", "-euc", text], cwd=folder, check=True, capture_output=True, timeout=patiently())


async def test_the_certificates_and_the_token_of_the_page_open_a_sidecar(tiny_models: Path, tmp_path: Path) -> None:
    shell(code_block("lpc-test-authority"), tmp_path)
    shell(code_block("rand -hex"), tmp_path)
    assert list(read_tokens(tmp_path / "tokens").values()) == ["engine-a"]
    for name in ("ca.key", "predictor.key", "engine.key", "tokens", "engine-a.token"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
    settings = ServiceSettings(
        models=tiny_models,
        model="tiny",
        port=0,
        metrics_port=None,
        unix_socket=None,
        threads=1,
        tls_certificate=tmp_path / "predictor.crt",
        tls_key=tmp_path / "predictor.key",
        tls_client_ca=tmp_path / "ca.crt",
        tokens=tmp_path / "tokens",
    )
    async with running(settings) as addresses:
        engine = ClientSettings(
            predictor_address=f"localhost:{addresses.port}",
            predictor_ca=tmp_path / "ca.crt",
            client_certificate=tmp_path / "engine.crt",
            client_key=tmp_path / "engine.key",
            predictor_token_file=tmp_path / "engine-a.token",
        )
        access = access_of(engine)()
        assert access.credentials is not None
        async with grpc.aio.secure_channel(f"127.0.0.1:{addresses.port}", access.credentials) as channel:
            stub = rpc.ContinuationPredictorStub(channel)
            request = pb.PredictRequest(conversation=pb.Conversation(prompt="hello"))
            assert (await stub.Predict(request, metadata=access.metadata)).prediction.probability > 0
            with pytest.raises(grpc.aio.AioRpcError, match="no valid token"):
                await stub.Predict(request)
    assert read(CertificateFiles(tmp_path / "redis.crt", tmp_path / "redis.key", tmp_path / "ca.crt")).expires_at


def use(url: str) -> None:
    store = RedisStore(Connection(url), NAMESPACE)
    try:
        store.check()
    finally:
        store.close()


@pytest.mark.parametrize("command", NEEDED[:-3])  # get and set are for sidecars, time for `lpc doctor`
def test_every_command_of_the_page_is_needed(guarded_redis: GuardedRedis, command: str) -> None:
    assert f"+{command}" in rules()
    guarded_redis.allow(f"-{command}")
    with pytest.raises(StoreError):
        use(guarded_redis.url)


def test_nothing_else_is_allowed(guarded_redis: GuardedRedis) -> None:
    guarded_redis.allow()
    use(guarded_redis.url)
    allowed = {word.removeprefix("+") for word in rules() if word.startswith("+")}
    assert allowed == set(NEEDED)
    with contextlib.closing(redis.Redis(port=guarded_redis.port, username="engine", password="CHANGE-ME")) as client:
        for command in (
            ["KEYS", "*"],
            ["FLUSHALL"],
            ["CONFIG", "GET", "*"],
            ["DEL", "lpc:x"],
            ["GET", "other:x"],
            ["ACL", "LIST"],
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.publish("channel", "x")
        with pytest.raises(redis.ResponseError, match="can't run this command"):
            client.eval("return redis.call('DEL', KEYS[1])", 1, "lpc:x")
        with pytest.raises(redis.ResponseError, match="no permissions to access"):
            client.eval("return redis.call('GET', KEYS[1])", 1, "other:x")
