"""What one client offers costs others neither their tokenizers nor their answers. Real gRPC, real files."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from eviction_client.transport.channel import CHANNEL_OPTIONS
from eviction_client.transport.client import PredictorClient
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc.wire.tokenizer_files import MAX_BYTES, NAMES, digest_of
from predictor_service.requests.loading import TokenizerLoader
from predictor_service.requests.parser import RequestLimits, RequestParser
from predictor_service.requests.served_models import ServedModels
from predictor_service.server import Parts
from testing.processes import Sidecar
from tests.chat_templates import STYLES, tokenizer_of
from tests.eventually import eventually, patiently
from tests.integration.response_cache.test_callers import bearer, tokens
from tests.integration.test_server import SHIPPED, one, sidecar

Stub = rpc.ContinuationPredictorStub
Files = dict[str, bytes]
INFO = pb.GetModelInfoRequest()
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
BAD_NAMES = {
    "2 MiB": "x" * 2**21,
    "257 characters": "x" * 257,
    "escape": "m\x1b[2J",
    "newline": "m\nERROR forged",
    "NUL": "m\0",
    "bidirectional": "m\u202egpj",
    "zero width": "m\u200b",
    "C1 control": "m\x9b2J",
    "private use": "m\ue000",
}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A tokenizer's files."""
    folder = tmp_path / "engine"
    tokenizer_of(STYLES["chatml"]).save_pretrained(folder)
    return {name: (folder / name).read_bytes() for name in NAMES if (folder / name).exists()}


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's folder for temporary files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def digest(files: Files) -> str:
    return digest_of({name: sha256(content).hexdigest() for name, content in files.items()})


def variant(files: Files, number: int, **changes: str) -> Files:
    """Return another tokenizer: its configuration differs."""
    changed = files | {name.replace("_jinja", ".jinja"): text.encode() for name, text in changes.items()}
    changed["tokenizer_config.json"] = changed["tokenizer_config.json"].rstrip() + b"\n" * (number + 1)
    return {name: changed[name] for name in NAMES if name in changed}


def first(files: Files, name: str = "m") -> pb.OfferTokenizerRequest:
    named = [pb.TokenizerFile(name=name, bytes=len(content)) for name, content in files.items()]
    return pb.OfferTokenizerRequest(offer=pb.TokenizerOffer(served_model=name, digest=digest(files), files=named))


def parts_of(files: Files, name: str = "m") -> list[pb.OfferTokenizerRequest]:
    content = b"".join(files.values())
    chunks = [content[at : at + 2**17] for at in range(0, len(content), 2**17)]
    return [first(files, name), *(pb.OfferTokenizerRequest(data=chunk) for chunk in chunks)]


async def offer(stub: Stub, files: Files, client: str, name: str = "m") -> pb.TokenizerStatus:
    return (await stub.OfferTokenizer(iter(parts_of(files, name)), metadata=bearer(client))).status


async def offered(stub: Stub, files: Files, client: str, name: str = "m") -> pb.TokenizerStatus:
    """Offer a tokenizer until the answer is final."""

    async def final() -> pb.TokenizerStatus | None:
        await asyncio.sleep(0.02)
        status = await offer(stub, files, client, name)
        return None if status.state == pb.TOKENIZER_STATE_LOADING else status

    found: pb.TokenizerStatus = await eventually(final)
    return found


@contextlib.contextmanager
def plug_in(address: str, **options: Any) -> Iterator[PredictorClient]:
    client = PredictorClient(address, timeout_s=60, probe_s=0.05, **options)
    try:
        yield client
    finally:
        client.close()


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
async def test_a_name_that_others_could_not_read_is_refused(
    tiny_models: Path, files: Files, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with sidecar(tiny_models) as (stub, addresses):
        status = (await stub.OfferTokenizer(iter(parts_of(files, name)))).status
        assert status.state == pb.TOKENIZER_STATE_REFUSED and "256 printable characters" in status.message
        for conversation in (
            pb.Conversation(tokens=pb.TokenIds(ids=[1], served_model=name)),
            pb.Conversation(tokens=pb.TokenIds(ids=[1], served_model="m", tokenizer=name)),
            pb.Conversation(prompt="hello", category=name),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Predict(pb.PredictRequest(conversation=conversation, accept_unread=True))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert len(caught.value.details() or "") < 1000
            (item,) = (await stub.PredictBatch(pb.PredictBatchRequest(conversations=[conversation]))).results
            assert item.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        with plug_in(f"127.0.0.1:{addresses.port}") as client:
            await eventually(lambda: client.healthy)
        info = await stub.GetModelInfo(INFO)
    assert not info.tokenizers and info.ByteSize() < 4096
    assert not [record.message for record in caplog.records if name in record.getMessage()]


async def test_a_long_conversation_id_is_refused(tiny_models: Path) -> None:
    async with sidecar(tiny_models) as (stub, _):
        assert (await stub.Predict(one(pb.Conversation(prompt="hello", conversation_id="\n" * 256)))).prediction.probability
        with pytest.raises(grpc.aio.AioRpcError, match="conversation_id has 257 characters, at most 256"):
            await stub.Predict(one(pb.Conversation(prompt="hello", conversation_id="x" * 257)))


async def test_more_versions_of_curves_than_sidecars_are_refused(tiny_models: Path) -> None:
    async with sidecar(tiny_models) as (stub, _):
        for count in (65, 2**20):
            request = pb.PredictRequest(conversation=pb.Conversation(prompt="hello"), known_curves=[2**63] * count)
            with pytest.raises(grpc.aio.AioRpcError, match=f"known_curves has {count} versions, at most 64"):
                await stub.Predict(request)
        del request.known_curves[64:]
        assert (await stub.Predict(request)).prediction.probability


async def test_an_offer_with_long_fields_or_repeated_files_is_refused(tiny_models: Path, files: Files) -> None:
    long = first(files)
    long.offer.files[0].name = "x" * 2**21
    twice = first(files)
    twice.offer.files.insert(0, twice.offer.files[0])
    many = first(files)
    many.offer.files.extend([pb.TokenizerFile(name="tokenizer.json", bytes=1)] * 10_000)
    digests = first(files)
    digests.offer.digest = "0" * 2**21
    async with sidecar(tiny_models) as (stub, _):
        for message in (long, twice, many, digests):
            status = (await stub.OfferTokenizer(iter([message]))).status
            assert status.state == pb.TOKENIZER_STATE_REFUSED
            assert 0 < len(status.message) < 1000


async def test_the_largest_model_info_fits_every_client(
    tiny_models: Path, tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch, scratch: Path
) -> None:
    """All tables are full, of the longest names and reasons in four bytes per character."""
    wide = "\U0001d400"
    monkeypatch.setattr("predictor_service.requests.loading.TokenizerLoader._read", fails_with(wide * 2**16))
    clients = [f"c{n}" for n in range(5)]
    configured = {f"{n:03}".ljust(256, wide): f"/{wide * 1000}" for n in range(100)}
    async with sidecar(tiny_models, tokens=tokens(tmp_path, *clients), served_models=configured) as (stub, addresses):
        for number in range(110):
            name = f"{number:03}".ljust(256, wide)
            status = await offered(stub, variant(files, number), clients[number % 5], name)
            assert status.state == pb.TOKENIZER_STATE_FAILED
        options = [option for option in CHANNEL_OPTIONS if option[0] == "grpc.max_receive_message_length"]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}", options) as channel:
            info = await Stub(channel).GetModelInfo(INFO, metadata=bearer("c0"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            tokens_of = pb.TokenIds(ids=[1], served_model="unknown")
            await stub.Predict(one(pb.Conversation(tokens=tokens_of)), metadata=bearer("c0"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND, "not a status that is too long for gRPC"
    assert len(info.served_models) == len(info.tokenizers) == 100
    assert info.ByteSize() < 768 * 2**10, "clients accept 1 MiB"


def fails_with(reason: str) -> Any:
    def _read(self: Any, source: str, target: Path, *, offered: bool) -> None:
        raise loading.TokenizerError(reason)

    from predictor_service.requests import loading

    return _read


async def test_model_info_is_limited_for_one_client_and_not_for_others(tiny_models: Path, tmp_path: Path) -> None:
    async with sidecar(tiny_models, tokens=tokens(tmp_path, "loud", "quiet")) as (stub, _):

        async def ask(client: str) -> grpc.StatusCode:
            try:
                await stub.GetModelInfo(INFO, metadata=bearer(client))
            except grpc.aio.AioRpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        answers = [await ask("loud") for _ in range(5)] + await asyncio.gather(*(ask("loud") for _ in range(1000)))
        assert set(answers) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert await ask("quiet") is grpc.StatusCode.OK


@pytest.mark.parametrize("kind", ["too large", "garbage", "refused"])
async def test_the_plug_in_goes_on_if_it_cannot_read_the_model_info(
    tiny_models: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A real sidecar, whose answers to GetModelInfo a proxy of gRPC messages replaces."""
    caplog.set_level(logging.INFO)
    asked = 0

    async def info(request: bytes, context: Any) -> bytes:
        nonlocal asked
        asked += 1
        if kind == "refused":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many")
        return b"\x0a" + b"\xff\xff\xff\x01" + b"x" * 2**22 if kind == "too large" else b"\xff" * 100

    async with sidecar(tiny_models) as (_, addresses), replaced(addresses.port, info) as port, asking(port) as client:
        await eventually(lambda: client.healthy)
        seen = asked
        await eventually(lambda: asked >= seen + 3)
        client.ask("r", token_ids=[1, 2, 3], served_model="m")
        await eventually(lambda: client.waiting == 0)
        assert client.healthy
    lines = [record.getMessage() for record in caplog.records if record.name == "eviction_client"]
    assert not [line for line in lines if "no connection" in line], lines
    assert len([line for line in lines if "answers, but not to GetModelInfo" in line]) == 1, lines


@contextlib.asynccontextmanager
async def asking(port: int) -> AsyncIterator[PredictorClient]:
    with plug_in(f"127.0.0.1:{port}") as client:
        yield client


@contextlib.asynccontextmanager
async def replaced(port: int, info: Any) -> AsyncIterator[int]:
    """Forward calls to a sidecar, except GetModelInfo."""
    server = grpc.aio.server()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        predict = channel.unary_unary("/lpc.v1.ContinuationPredictor/Predict")

        async def forward(request: bytes, context: Any) -> bytes:
            try:
                return await predict(request)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details())

        methods = {
            "GetModelInfo": grpc.unary_unary_rpc_method_handler(info),
            "Predict": grpc.unary_unary_rpc_method_handler(forward),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("lpc.v1.ContinuationPredictor", methods),))
        own = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield own
        finally:
            await server.stop(0)


async def test_without_names_the_callers_of_each_address_are_a_client(tiny_models: Path, files: Files) -> None:
    async with sidecar(tiny_models, host="::") as (stub, addresses):
        silent = stub.OfferTokenizer()
        await silent.write(first(variant(files, 1)))

        async def refused() -> bool:
            await asyncio.sleep(0.1)
            return "of client anonymous at ip" in (await offer(stub, files, "same address")).message

        await eventually(refused)
        async with grpc.aio.insecure_channel(f"[::1]:{addresses.port}") as channel:
            other = rpc.ContinuationPredictorStub(channel)
            assert (await offered(other, files, "another address")).state == pb.TOKENIZER_STATE_READY
        silent.cancel()


@pytest.mark.parametrize("holders", [1, 3])
async def test_a_silent_upload_of_a_digest_holds_nobody_else(
    tiny_models: Path, tmp_path: Path, files: Files, holders: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("predictor_service.requests.uploads.ALONE_S", 0.2)
    monkeypatch.setattr("predictor_service.rpc.offers.STALLED_S", patiently(60))  # on a busy machine they would end
    names = [f"holder-{n}" for n in range(holders)]
    async with sidecar(tiny_models, tokens=tokens(tmp_path, "honest", *names)) as (stub, _):
        held = []
        for name in names:
            call = stub.OfferTokenizer(metadata=bearer(name))
            await call.write(first(files))
            await call.write(pb.OfferTokenizerRequest(data=b"{"))
            held.append(call)
            await asyncio.sleep(patiently(0.3))  # the next one begins when this one is no longer alone
        status = await offered(stub, files, "honest")
        assert status.state == pb.TOKENIZER_STATE_READY
        assert not any(call.done() for call in held), "the others still hold their uploads"
        for call in held:
            call.cancel()


async def test_endless_templates_of_one_client_delay_others_by_one_load(
    tiny_models: Path, tmp_path: Path, files: Files
) -> None:
    began = time.monotonic()
    TokenizerLoader().load(str(tmp_path / "engine"), offered=True)
    limits = replace(SHIPPED.tokenizer_limits, offered_s=max(3.0, 3 * (time.monotonic() - began)))
    order: list[str] = []
    async with sidecar(tiny_models, Parts(tokenizer_limits=limits), tokens=tokens(tmp_path, "attacker", "honest")) as (stub, _):
        endless = [variant(files, n, chat_template_jinja=ENDLESS) for n in range(6)]
        for one_more in endless:
            await offer(stub, one_more, "attacker")

        async def attack() -> None:
            while True:
                for n, one_more in enumerate(endless):
                    if (await offer(stub, one_more, "attacker")).state == pb.TOKENIZER_STATE_FAILED and f"a{n}" not in order:
                        order.append(f"a{n}")
                await asyncio.sleep(0.3)

        attacking = asyncio.create_task(attack())
        try:
            status = await offered(stub, files, "honest")
            order.append("honest")
            assert status.state == pb.TOKENIZER_STATE_READY
            waits = await offer(stub, endless[-1], "attacker")
        finally:
            attacking.cancel()
            await asyncio.gather(attacking, return_exceptions=True)
    assert len(order) <= 2 and order[-1] == "honest", order
    assert waits.state == pb.TOKENIZER_STATE_LOADING and "its next one is accepted in" in waits.message


async def test_messages_of_a_few_bytes_end_an_upload(tiny_models: Path, files: Files) -> None:
    sent = 0

    async def drops() -> AsyncIterator[pb.OfferTokenizerRequest]:
        nonlocal sent
        yield first({"tokenizer.json": b"x" * 2**20})
        for _ in range(2**17):
            sent += 1
            yield pb.OfferTokenizerRequest(data=b"x")

    async with sidecar(tiny_models) as (stub, _):
        status = (await stub.OfferTokenizer(drops())).status
    assert status.state == pb.TOKENIZER_STATE_REFUSED and "messages of at least" in status.message
    assert sent < 2**17, "the call ended first"


async def test_an_upload_that_trickles_ends(tiny_models: Path, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("predictor_service.rpc.offers.STALLED_S", 1.0)
    monkeypatch.setattr("predictor_service.rpc.offers.MIN_BYTES_PER_S", 2**20)

    async def trickle() -> AsyncIterator[pb.OfferTokenizerRequest]:
        yield first({"tokenizer.json": b"x" * MAX_BYTES})
        for _ in range(60):
            await asyncio.sleep(0.5)
            yield pb.OfferTokenizerRequest(data=b"x")

    async with sidecar(tiny_models) as (stub, _):
        status = (await stub.OfferTokenizer(trickle(), timeout=patiently())).status
    assert status.state == pb.TOKENIZER_STATE_REFUSED and "too slow" in status.message


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("lpc-*/**/*") if path.is_file()]


async def test_no_file_of_a_killed_sidecar_stays_and_a_running_one_keeps_its_own(
    tiny_models: Path, tmp_path: Path, files: Files
) -> None:
    """Three sidecars share a folder for temporary files."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    with contextlib.ExitStack() as stack:
        stack.enter_context(environment(TMPDIR=str(shared)))
        running = []
        for name in ("killed", "kept"):
            (tmp_path / name).mkdir()
            process = stack.enter_context(Sidecar(tmp_path / name, tiny_models, "tiny", threads=1))
            stack.enter_context(grpc.insecure_channel(process.address))
            channel = grpc.aio.insecure_channel(process.address)
            call = rpc.ContinuationPredictorStub(channel).OfferTokenizer()
            before = len(files_in(shared))
            await call.write(first({"tokenizer.json": b"x" * 2**20}))
            await call.write(pb.OfferTokenizerRequest(data=b"x" * 2**17))
            await eventually(lambda before=before: len(files_in(shared)) > before)
            running.append((process, channel, call))
        left = set(files_in(shared))
        assert len(left) == 2
        (foreign := shared / "lpc-tokenizers-of-somebody").symlink_to(tmp_path / "engine")
        running[0][0].kill()
        assert set(files_in(shared)) >= left, "nobody has deleted them yet"
        (tmp_path / "third").mkdir()
        stack.enter_context(Sidecar(tmp_path / "third", tiny_models, "tiny", threads=1))
        assert len(set(files_in(shared)) & left) == 1
        assert foreign.is_symlink() and (tmp_path / "engine" / "tokenizer.json").exists()
        await running[1][2].write(pb.OfferTokenizerRequest(data=b"x" * (2**20 - 2**17)))
        await running[1][2].done_writing()
        answer = await running[1][2]
        assert answer.status.state == pb.TOKENIZER_STATE_FAILED or answer.status.state == pb.TOKENIZER_STATE_LOADING
        for _, channel, call in running:
            call.cancel()
            await channel.close()


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def observed() -> tuple[list[ServedModels], Parts]:
    """Return a list that gets a sidecar's tokenizers, and the parts of that sidecar."""
    kept: list[ServedModels] = []

    def parser(limits: RequestLimits, models: ServedModels) -> RequestParser:
        kept.append(models)
        return RequestParser(limits, models)

    return kept, Parts(parser=parser)


async def test_a_loading_process_that_dies_leaves_nothing_behind(
    tiny_models: Path, tmp_path: Path, scratch: Path, files: Files
) -> None:
    kept, parts = observed()
    endless = variant(files, 0, chat_template_jinja=ENDLESS)
    async with sidecar(tiny_models, parts, tokens=tokens(tmp_path, "a", "b")) as (stub, _):
        await offer(stub, endless, "a")
        running = kept[0].loader.running
        await eventually(lambda: running)
        assert kept[0].uploading and files_in(scratch)
        for process in list(running):
            process.kill()
        status = await offered(stub, endless, "a")
        assert status.state == pb.TOKENIZER_STATE_FAILED and "has died" in status.message
        await eventually(lambda: not kept[0].uploading)
        assert not files_in(scratch)
        assert (await offered(stub, files, "b")).state == pb.TOKENIZER_STATE_READY


async def test_a_client_with_two_connections_has_one_upload(tiny_models: Path, tmp_path: Path, files: Files) -> None:
    async with sidecar(tiny_models, tokens=tokens(tmp_path, "a", "b")) as (stub, addresses):
        call = stub.OfferTokenizer(metadata=bearer("a"))
        await call.write(first(files))
        await call.write(pb.OfferTokenizerRequest(data=b"{"))
        await eventually(lambda: said_by(stub, variant(files, 1), "a", "another tokenizer of client a"))
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}", options) as channel:
            assert await said_by(Stub(channel), variant(files, 2), "a", "another tokenizer of client a")
        assert (await offered(stub, variant(files, 3), "b")).state == pb.TOKENIZER_STATE_READY
        call.cancel()


async def said_by(stub: Stub, files: Files, client: str, text: str) -> bool:
    """Return whether the answer to an offer contains a text."""
    await asyncio.sleep(0.1)
    return text in (await offer(stub, files, client)).message


@pytest.mark.parametrize("after", ["nothing", "the offer", "half", "all but one byte", "everything"])
async def test_a_cancelled_offer_gives_back_its_slot_bytes_and_files(
    tiny_models: Path, scratch: Path, files: Files, after: str
) -> None:
    """Cancelled at once, and after the sidecar has got what was sent."""
    kept, parts = observed()
    content = b"".join(files.values())
    sizes = {"nothing": 0, "the offer": 0, "half": len(content) // 2, "all but one byte": len(content) - 1}
    part = content[: sizes.get(after, len(content))]
    async with sidecar(tiny_models, parts) as (stub, _):
        offers = kept[0]

        async def send() -> Any:
            call = stub.OfferTokenizer()
            if after != "nothing":
                await call.write(first(files))
            if part:
                await call.write(pb.OfferTokenizerRequest(data=part))
            return call

        for _ in range(3):
            (await send()).cancel()
            await eventually(lambda: not offers.uploading)
        for _ in range(3 if 0 < len(part) < len(content) else 0):
            calls: list[Any] = []

            async def arrived(calls: list[Any] = calls) -> bool:
                if not calls or calls[-1].done():  # an earlier call has not ended yet
                    await asyncio.sleep(0.1)
                    calls.append(await send())
                return bool(offers.uploading) and sum(path.stat().st_size for path in files_in(scratch)) == len(part)

            await eventually(arrived)
            calls[-1].cancel()
            await eventually(lambda: not offers.uploading)
            assert not files_in(scratch)
            offers._uploads._rest_until.clear()
        assert (await offered_by_all(stub, files)).state == pb.TOKENIZER_STATE_READY
        assert not offers.uploading and not files_in(scratch)


async def offered_by_all(stub: Stub, files: Files) -> pb.TokenizerStatus:
    """Offer as the anonymous client until the answer is final."""
    return await offered(stub, files, "anonymous")


async def test_a_full_disk_refuses_the_upload_and_leaves_nothing_behind(
    tiny_models: Path, small_disk: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    kept, parts = observed()
    async with sidecar(tiny_models, parts) as (stub, _):
        large = {"tokenizer.json": b"x" * 2**20}
        status = await offer(stub, large, "anonymous")
        assert status.state == pb.TOKENIZER_STATE_REFUSED
        assert "No space left on device" in status.message and "set TMPDIR" in status.message
        assert not kept[0].uploading and not files_in(small_disk)
        assert (await stub.Predict(one(pb.Conversation(prompt="hello")))).prediction.probability


async def test_a_disk_that_has_no_space_for_the_loaded_tokenizer_fails_the_load_alone(
    tiny_models: Path, small_disk: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    kept, parts = observed()
    async with sidecar(tiny_models, parts) as (stub, _):
        assert (await offer(stub, files, "anonymous")).state == pb.TOKENIZER_STATE_LOADING
        fill(small_disk / "filler")  # while the loading process starts
        status = await offered(stub, files, "anonymous")
        assert status.state == pb.TOKENIZER_STATE_FAILED
        assert "No space left on device" in status.message or "disk space" in status.message
        await eventually(lambda: not kept[0].uploading)
        assert not files_in(small_disk)
        assert (await stub.Predict(one(pb.Conversation(prompt="hello")))).prediction.probability


def fill(path: Path) -> None:
    """Fill a disk."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
