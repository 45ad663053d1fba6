"""TLS and mutual TLS between engine, sidecar and Redis, with certificates that are renewed while they are used."""

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from pydantic import ValidationError

from eviction_client.settings import ClientSettings
from eviction_client.stores import open_store
from eviction_client.stores.namespace import Namespace
from eviction_client.stores.redis import RedisStore
from eviction_client.transport.client import PredictorClient
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc.wire.access import access_of
from lpc.wire.certificates import CertificateFiles
from predictor_service.errors import StartError
from predictor_service.process import Addresses
from predictor_service.server import running
from testing.processes import RedisServer, free_port
from tests.authority import Authority
from tests.eventually import eventually, patiently
from tests.integration.test_server import chat, one
from tests.tuned import tuned

NAMESPACE = Namespace("sha256_cbor", "0", 16, "a-model")


@contextlib.asynccontextmanager
async def tls_sidecar(models: Path, files: CertificateFiles, *, mutual: bool, **changes: object) -> AsyncIterator[Addresses]:
    values = {"models": models, "model": "tiny", "port": 0, "metrics_port": 0, "unix_socket": None, "threads": 1, **changes}
    tls = {
        "tls_certificate": files.certificate,
        "tls_key": files.key,
        "tls_client_ca": files.ca if mutual else None,
    }
    async with running(*tuned({**values, **tls})) as addresses:
        yield addresses


async def probability(address: str, **settings: object) -> float:
    """Ask with an engine's settings; raises grpc.RpcError."""
    access = access_of(ClientSettings(predictor_address=address, **settings))()  # type: ignore[arg-type]

    def ask() -> float:
        with access.channel(address) as channel:
            stub = rpc.ContinuationPredictorStub(channel)
            return stub.Predict(one(chat("hello")), timeout=patiently(), metadata=access.metadata).prediction.probability

    return await asyncio.to_thread(ask)


def of(files: CertificateFiles) -> dict[str, object]:
    return {"predictor_ca": files.ca, "client_certificate": files.certificate, "client_key": files.key}


async def refused(address: str, **settings: object) -> bool:
    with pytest.raises(grpc.RpcError) as caught:
        await probability(address, **settings)
    return caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_tls_serves_clients_that_trust_its_authority_and_refuses_plain_text(
    tiny_models: Path, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "stranger").certificate
    async with tls_sidecar(tiny_models, authority.issue("sidecar"), mutual=False) as addresses:
        address = f"127.0.0.1:{addresses.port}"
        assert 0 < await probability(address, predictor_ca=authority.certificate) < 1
        assert await refused(address, predictor_ca=stranger)
        assert await refused(address)


async def test_mutual_tls_refuses_clients_without_a_certificate_or_with_a_strangers(
    tiny_models: Path, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "stranger").issue("engine")
    async with tls_sidecar(tiny_models, authority.issue("sidecar"), mutual=True) as addresses:
        address = f"127.0.0.1:{addresses.port}"
        assert 0 < await probability(address, **of(authority.issue("engine"))) < 1
        assert await refused(address, predictor_ca=authority.certificate)
        assert await refused(address, **of(replace(stranger, ca=authority.certificate)))


async def test_new_certificates_are_used_without_a_restart(tiny_models: Path, tmp_path: Path) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    files = CertificateFiles(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt")

    def install(source: CertificateFiles) -> None:
        for place, origin in ((files.certificate, source.certificate), (files.key, source.key), (files.ca, source.ca)):
            assert place is not None
            assert origin is not None
            shutil.copy(origin, tmp_path / ".new")
            (tmp_path / ".new").rename(place)

    install(old.issue("sidecar"))
    async with tls_sidecar(tiny_models, files, mutual=True, reload_s=0.05) as addresses:
        address = f"127.0.0.1:{addresses.port}"
        assert 0 < await probability(address, **of(old.issue("engine"))) < 1
        install(new.issue("sidecar"))
        engine = new.issue("engine")

        async def welcome() -> bool:
            with contextlib.suppress(grpc.RpcError):
                return 0 < await probability(address, **of(engine)) < 1
            return False

        await eventually(welcome)
        assert await refused(address, **of(old.issue("engine")))


async def test_the_engines_client_takes_new_certificates_without_a_restart(tiny_models: Path, tmp_path: Path) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    places = {
        side: CertificateFiles(*(tmp_path / f"{side}.{kind}" for kind in ("crt", "key", "ca")))
        for side in ("sidecar", "engine")
    }

    def install(authority: Authority) -> None:
        for side, place in places.items():
            source = authority.issue(side)
            for target, origin in zip(place.present, source.present, strict=True):
                shutil.copy(origin, tmp_path / ".new")
                (tmp_path / ".new").rename(target)

    install(old)
    async with tls_sidecar(tiny_models, places["sidecar"], mutual=True, reload_s=0.05, connection_age_s=0.5) as at:
        address = f"127.0.0.1:{at.port}"
        settings = ClientSettings(predictor_address=address, **of(places["engine"]))  # type: ignore[arg-type]
        client = PredictorClient(address, access=access_of(settings), probe_s=0.1)

        async def answers() -> bool:
            before = client.counters
            client.ask("r", token_ids=[1], timeout_s=2)
            while client.waiting:
                await asyncio.sleep(0.01)
            # There is no tokenizer: the sidecar itself refuses.
            return client.counters.failed > before.failed and client.healthy

        try:
            assert await answers()
            install(new)
            await asyncio.sleep(1.0)  # the old connection has ended
            for _ in range(100):
                if await answers():
                    break
            else:
                pytest.fail("the new certificates were not taken")
        finally:
            await asyncio.to_thread(client.close)


async def test_invalid_new_certificates_are_logged_and_ignored(
    tiny_models: Path, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = authority.issue("good")
    assert good.certificate is not None
    certificate = tmp_path / "tls.crt"
    shutil.copy(good.certificate, certificate)
    async with tls_sidecar(tiny_models, replace(good, certificate=certificate), mutual=False, reload_s=0.05) as addresses:
        certificate.write_text("half a file")
        await eventually(lambda: "the new certificates are not used" in caplog.text)
        await asyncio.sleep(0.3)
        assert caplog.text.count("the new certificates are not used") == 1
        assert 0 < await probability(f"127.0.0.1:{addresses.port}", predictor_ca=authority.certificate) < 1


@pytest.mark.parametrize(
    ("wrong", "why"),
    [("missing", r"cannot read .*nowhere"), ("expired", "has expired: renew it"), ("another's key", "do not match")],
)
async def test_a_sidecar_does_not_start_with_files_it_cannot_use(
    tiny_models: Path, authority: Authority, wrong: str, why: str
) -> None:
    good = authority.issue("good")
    files = {
        "missing": replace(good, certificate=Path("/nowhere.crt")),
        "expired": authority.issue("expired", days=-1),
        "another's key": replace(good, key=authority.issue("other").key),
    }[wrong]
    with pytest.raises(StartError, match=why):
        async with tls_sidecar(tiny_models, files, mutual=False):
            pass


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"client_certificate": "a", "predictor_ca": "c"}, "client_certificate and client_key go together"),
        ({"client_certificate": "a", "client_key": "b"}, "needs predictor_ca"),
        ({"client_key": "a"}, "client_certificate and client_key go together"),
        ({"redis_ca": "a", "redis_url": "redis://r"}, "begins with rediss://"),
        ({"predictor_token_file": "f", "predictor_address": "10.0.0.1:50051"}, "would travel in clear"),
        ({"redis_password_file": "f", "redis_url": "redis://u:hunter2@r"}, "remove one of them"),
    ],
)
def test_an_engines_settings_must_make_sense_together(given: dict[str, str], why: str) -> None:
    with pytest.raises(ValidationError, match=why) as caught:
        ClientSettings(**given)  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "localhost:1", "unix:///run/lpc.sock"])
def test_a_token_may_stay_on_this_machine_in_clear(address: str) -> None:
    assert ClientSettings(predictor_token_file=Path("t"), predictor_address=address).predictor_files.ca is None


@contextlib.contextmanager
def tls_redis(folder: Path, files: CertificateFiles, *, mutual: bool = True) -> Iterator[str]:
    """A Redis that speaks TLS on one port (and plain text on another, for the fixture to see it start)."""
    tls_port = free_port()
    options = {
        "tls_port": str(tls_port),
        "tls_cert_file": str(files.certificate),
        "tls_key_file": str(files.key),
        "tls_ca_cert_file": str(files.ca),
        "tls_auth_clients": "yes" if mutual else "no",
    }
    with RedisServer(folder, **options):
        yield f"rediss://127.0.0.1:{tls_port}/0"


def test_times_are_shared_over_mutual_tls_with_redis(authority: Authority, tmp_path: Path) -> None:
    with tls_redis(tmp_path, authority.issue("redis")) as url:
        files = authority.issue("engine")
        settings = ClientSettings(
            redis_url=url,  # type: ignore[arg-type]
            redis_ca=files.ca,
            client_certificate=files.certificate,
            client_key=files.key,
        )
        store = open_store(settings, NAMESPACE)
        try:
            assert isinstance(store, RedisStore)
            store.check()
            store.trim(time.time())
            assert store.failures == 0
        finally:
            store.close()


def test_the_representation_of_an_access_does_not_contain_metadata(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2")
    access = access_of(ClientSettings(predictor_token_file=tmp_path / "token"))()
    assert "hunter2" not in repr(access)
    assert access.metadata == (("authorization", "Bearer hunter2"),)
