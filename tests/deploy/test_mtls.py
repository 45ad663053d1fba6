"""The mtls overlay's settings, for real: a sidecar and a Redis with them, certificates as cert-manager lays them out."""

import asyncio
import contextlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import redis

from eviction_client.settings import ClientSettings
from eviction_client.stores import open_store
from eviction_client.stores.namespace import Namespace
from eviction_client.stores.redis import RedisStore
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from predictor_service.server import running
from predictor_service.settings import ServiceSettings
from testing.processes import RedisServer, free_port
from tests.authority import Authority
from tests.deploy.test_kubernetes import DEPLOY, containers, named, pods, rendered
from tests.dockerfile import ROOT
from tests.eventually import patiently

MOUNT = "/etc/lpc/tls"


def secret(folder: Path, authority: Authority, name: str) -> Path:
    """Lay out a certificate as cert-manager's secrets are mounted."""
    folder.mkdir()
    files = authority.issue(name)
    for source, target in ((files.certificate, "tls.crt"), (files.key, "tls.key"), (authority.certificate, "ca.crt")):
        assert source is not None
        (folder / target).write_bytes(source.read_bytes())
    return folder


def setting(configuration: str, mounted: Path) -> dict[str, str]:
    """Return the overlay's settings that name certificates, with the files where this test has them."""
    data = named(rendered("mtls"), "ConfigMap", configuration)["data"]
    found = {k.removeprefix("LPC_").lower(): v.replace(MOUNT, str(mounted)) for k, v in data.items() if MOUNT in v}
    assert all(Path(path).exists() for path in found.values())
    return found


def content(path: str | Path) -> bytes:
    return Path(path).read_bytes()


async def predicts(channel: grpc.aio.Channel) -> bool:
    try:
        request = pb.PredictRequest(conversation=pb.Conversation(prompt="hello"))
        await rpc.ContinuationPredictorStub(channel).Predict(request, timeout=patiently())
    except grpc.aio.AioRpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        return False
    return True


async def test_an_engine_with_a_certificate_is_served_and_others_are_not(tiny_models: Path, tmp_path: Path) -> None:
    ours = Authority(tmp_path / "ours")
    sidecar, engine = (secret(tmp_path / name, ours, name) for name in ("sidecar", "engine"))
    stranger = secret(tmp_path / "stranger", Authority(tmp_path / "theirs"), "stranger")
    socket = tmp_path / "run/predictor.sock"
    tls: dict[str, Any] = dict(setting("lpc-predictor", sidecar))
    place: dict[str, Any] = {"models": tiny_models, "port": 0, "metrics_port": None, "unix_socket": socket}
    settings = ServiceSettings(model="tiny", threads=1, **place, **tls)
    authority = content(setting("lpc-engine", engine)["predictor_ca"])
    async with running(settings) as addresses:
        address = f"127.0.0.1:{addresses.port}"
        async with grpc.aio.insecure_channel(address) as channel:
            assert not await predicts(channel)
        for keys, served in ((None, False), (stranger, False), (engine, True)):
            pair = (content(keys / "tls.key"), content(keys / "tls.crt")) if keys else (None, None)
            async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(authority, *pair)) as channel:
                assert await predicts(channel) is served
        done = await asyncio.to_thread(probe, socket)
        image = await asyncio.to_thread(images_check, {"LPC_UNIX_SOCKET": str(socket), "LPC_PORT": str(addresses.port)})
        tcp = await asyncio.to_thread(images_check, {"LPC_UNIX_SOCKET": "", "LPC_PORT": str(addresses.port)})
    assert done.returncode == 0, done.stderr
    assert image.returncode == 0, image.stderr
    assert tcp.returncode == 1, "the TCP port answered without TLS"
    assert probe(socket).returncode == 1


def probe(socket: Path) -> subprocess.CompletedProcess[str]:
    """Run the overlay's probe, with the image's paths replaced by this tree's."""
    (_, pod) = next(found for found in pods(rendered("mtls")) if found[0] == "Deployment lpc-predictor")
    command = containers(pod)[0]["readinessProbe"]["exec"]["command"]
    assert command == ["python", "/opt/lpc/healthcheck.py", "unix:///run/lpc/predictor.sock"]
    here = [sys.executable, str(ROOT / "deploy/image/healthcheck.py"), f"unix://{socket}"]
    return subprocess.run(here, capture_output=True, text=True)


def images_check(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the image's health check, without an argument as the image does."""
    command = [sys.executable, str(ROOT / "deploy/image/healthcheck.py")]
    return subprocess.run(command, env=env, capture_output=True, text=True)


def test_redis_takes_engines_with_a_certificate_only(tmp_path: Path) -> None:
    ours = Authority(tmp_path / "ours")
    server, engine = (secret(tmp_path / name, ours, name) for name in ("redis", "engine"))
    lines = (DEPLOY / "overlays/mtls/redis.conf").read_text().replace(MOUNT, str(server))
    port, kept = free_port(), re.findall(r"(?m)^tls-(?!port).*$", lines)
    assert "port 0\n" in lines and len(kept) == 5
    (tmp_path / "tls.conf").write_text("\n".join(kept) + "\n")
    namespace = Namespace(hash_algorithm="sha256_cbor", hash_seed="0", block_size=16, model="m")
    with RedisServer(tmp_path / "data", include=str(tmp_path / "tls.conf"), **{"tls-port": str(port)}):
        url = f"rediss://127.0.0.1:{port}/0"
        store = open_store(ClientSettings(redis_url=url, **setting("lpc-engine", engine)), namespace)  # type: ignore[arg-type]
        assert isinstance(store, RedisStore)
        with contextlib.closing(store):
            store.check()
        without = redis.Redis(port=port, ssl=True, ssl_ca_certs=str(engine / "ca.crt"))
        with contextlib.closing(without), pytest.raises(redis.RedisError):
            without.ping()
