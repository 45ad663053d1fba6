"""The mtls overlay's two nginx configurations and its Redis, for real: one nginx in front of a sidecar, one beside a client."""

import grp
import os
import pwd
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
import redis

from eviction_client.namespace import Namespace
from eviction_client.stores.redis import RedisStore
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from predictor_service.config import ServiceSettings
from predictor_service.server import running
from tests.dockerfile import ROOT
from tests.redis_server import RedisServer, free_port

OVERLAY = ROOT / "deploy/overlays/mtls"


def certificates(folder: Path, *names: str) -> dict[str, Path]:
    """Make an authority, and a folder as cert-manager's secrets are for each name."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    folder.mkdir()
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=authority")
    made = {}
    for name in names:
        place = made[name] = folder / name
        place.mkdir()
        (folder / "ext").write_text(f"subjectAltName=DNS:{name},IP:127.0.0.1\n")
        openssl("req", *new, "-keyout", f"{name}/tls.key", "-out", "request", "-subj", f"/CN={name}")
        openssl(
            *("x509", "-req", "-in", "request", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"),
            *("-extfile", "ext", "-out", f"{name}/tls.crt"),
        )
        (place / "ca.crt").write_bytes((folder / "ca.crt").read_bytes())
    return made


@contextmanager
def nginx(folder: Path, file: str, changes: dict[str, str]) -> Iterator[None]:
    """Run an nginx with the overlay's configuration, its addresses and paths changed to this test's."""
    folder.mkdir()
    text = (OVERLAY / file).read_text()
    for old, new in {"/tmp/": f"{folder}/", "/dev/stderr": f"{folder}/error.log", **changes}.items():
        assert old in text
        text = text.replace(old, new)
    # Started by root, nginx would take another user's rights, and the sidecar's socket is for its own user alone.
    own = f"user {pwd.getpwuid(os.getuid()).pw_name} {grp.getgrgid(os.getgid()).gr_name};\n" if os.getuid() == 0 else ""
    (folder / "nginx.conf").write_text(own + text)
    subprocess.run(["nginx", "-t", "-q", "-c", folder / "nginx.conf"], check=True)
    process = subprocess.Popen(["nginx", "-c", folder / "nginx.conf"])
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


async def test_an_engine_with_a_certificate_is_served_and_one_without_is_not(timed_models: Path, tmp_path: Path) -> None:
    ours = certificates(tmp_path / "ours", "lpc-predictor.lpc.svc", "engine")
    theirs = certificates(tmp_path / "theirs", "engine")
    front, beside = free_port(), free_port()
    socket = tmp_path / "run/predictor.sock"
    settings = ServiceSettings(models=timed_models, model="tiny", port=0, metrics_port=None, unix_socket=socket, threads=1)
    server = {
        "/etc/lpc/tls": str(ours["lpc-predictor.lpc.svc"]),
        "listen 50051": f"listen 127.0.0.1:{front}",
        "/run/lpc/predictor.sock": str(socket),
    }
    client = {
        "/etc/lpc/tls": str(ours["engine"]),
        "listen 127.0.0.1:50051": f"listen 127.0.0.1:{beside}",
        "grpcs://lpc-predictor.lpc.svc:50051": f"grpcs://127.0.0.1:{front}",
    }
    async with running(settings):
        with nginx(tmp_path / "front", "server.conf", server), nginx(tmp_path / "beside", "client.conf", client):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{beside}") as channel:
                assert await stream(channel, 50) == 50
            async with grpc.aio.insecure_channel(f"127.0.0.1:{front}") as channel:
                assert await refused(channel)
            for keys in (None, theirs["engine"]):
                async with grpc.aio.secure_channel(
                    f"127.0.0.1:{front}", credentials(ours["engine"] / "ca.crt", keys)
                ) as channel:
                    assert await refused(channel)
            async with grpc.aio.secure_channel(
                f"127.0.0.1:{front}", credentials(ours["engine"] / "ca.crt", ours["engine"])
            ) as channel:
                assert await stream(channel, 5) == 5
    assert "hello" not in (tmp_path / "front/error.log").read_text()


def credentials(authority: Path, keys: Path | None) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        authority.read_bytes(),
        (keys / "tls.key").read_bytes() if keys else None,
        (keys / "tls.crt").read_bytes() if keys else None,
    )


async def stream(channel: grpc.aio.Channel, count: int) -> int:
    """Ask one after the other on one stream, so that each answer passes before the next question."""
    call = rpc.ContinuationPredictorStub(channel).PredictStream(wait_for_ready=True, timeout=30)
    answered = 0
    for number in range(count):
        await call.write(pb.PredictStreamRequest(request_id=str(number), conversation=pb.Conversation(prompt="hello")))
        answer = await call.read()
        assert answer.request_id == str(number)
        answered += answer.WhichOneof("result") == "prediction"
    await call.done_writing()
    return answered


async def refused(channel: grpc.aio.Channel) -> bool:
    try:
        await rpc.ContinuationPredictorStub(channel).Predict(
            pb.PredictRequest(conversation=pb.Conversation(prompt="hello")), timeout=5
        )
    except grpc.aio.AioRpcError as error:
        return error.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT}
    return False


def test_redis_takes_engines_with_a_certificate_only(tmp_path: Path) -> None:
    keys = certificates(tmp_path / "ours", "engine")["engine"]
    lines = (OVERLAY / "redis.conf").read_text().replace("/etc/lpc/tls", str(keys))
    options = dict(re.findall(r"(?m)^(tls-(?!port)\S+) \"?([^\"\n]+)\"?$", lines))
    port = free_port()
    (tmp_path / "tls.conf").write_text("".join(f"{name} {value}\n" for name, value in options.items()))
    namespace = Namespace(hash_algorithm="sha256_cbor", hash_seed="0", block_size=16, model="m")
    with RedisServer(tmp_path / "redis", include=str(tmp_path / "tls.conf"), **{"tls-port": str(port)}):
        files = f"ssl_ca_certs={keys}/ca.crt&ssl_certfile={keys}/tls.crt&ssl_keyfile={keys}/tls.key"
        store = RedisStore(f"rediss://127.0.0.1:{port}/0?{files}", namespace)
        try:
            store.check()
        finally:
            store.close()
        without = redis.Redis(port=port, ssl=True, ssl_ca_certs=str(keys / "ca.crt"), socket_timeout=5)
        with pytest.raises(redis.RedisError):
            without.ping()
        without.close()
