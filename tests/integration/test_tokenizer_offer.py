"""Engines offer their tokenizers over real gRPC: predictions with no setting changed, and nobody waits for anybody."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from transformers import PreTrainedTokenizerFast

from eviction_client.transport.client import PredictorClient
from eviction_client.transport.tokenizer_upload import NoTokenizer, hash_files
from lpc.v1 import predictor_pb2 as pb
from lpc.wire.tokenizer_files import MAX_BYTES
from predictor_service.process import Addresses
from predictor_service.requests.loading import LoadLimits
from predictor_service.rpc.offers import MAX_HOURLY
from predictor_service.server import Parts
from tests.chat_templates import STYLES, tokenizer_of
from tests.eventually import eventually, patiently
from tests.integration.test_server import chat, one, sidecar

BOMB = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TURNS = ("hello world", "hi", "what is a cache")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between offers."""
    monkeypatch.setattr("eviction_client.transport.channel.RETRY_S", 0.1)
    monkeypatch.setattr("eviction_client.transport.channel.REFUSED_S", 600.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an engine's tokenizer."""
    made = tmp_path / "engine"
    tokenizer_of(STYLES["chatml"]).save_pretrained(made)
    return made


def ids_of(tokenizer: PreTrainedTokenizerFast, *texts: str) -> list[int]:
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def files_of(folder: Path) -> Callable[[], dict[str, Path]]:
    return lambda: {path.name: path for path in folder.iterdir()}


def engine(address: str, folder: Path, **options: object) -> PredictorClient:
    return PredictorClient(address, served_model="m", timeout_s=60, tokenizer=files_of(folder), **options)  # type: ignore[arg-type]


async def send(address: str, folder: Path) -> None:
    """Let an engine connect until its prompts are read."""
    client = engine(address, folder)
    await eventually(lambda: client.tokenizer_state == "ready")
    client.close()


async def metrics_of(addresses: Addresses) -> dict[str, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", addresses.metrics_port)
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    text = (await reader.read()).decode().partition("\r\n\r\n")[2]
    writer.close()
    return {
        f"{sample.name}{sorted(sample.labels.values())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_the_first_prediction_works_with_default_settings(
    tiny_models: Path, tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ids = ids_of(tokenizer_of(STYLES["chatml"]), *TURNS)
    async with sidecar(tiny_models) as (stub, addresses):
        client = engine(f"127.0.0.1:{addresses.port}", folder)
        try:
            await eventually(lambda: client.tokenizer_state == "ready")
            client.ask("r", token_ids=ids)
            await eventually(lambda: client.waiting == 0)
            answer = client.take("r")
        finally:
            client.close()
        told = (await stub.Predict(one(chat(*TURNS)))).prediction
        info = await stub.GetModelInfo(pb.GetModelInfoRequest())
        counted = await metrics_of(addresses)
    assert answer is not None and not answer.unread and answer.turn_count == 2
    assert answer.probability == pytest.approx(told.probability)
    assert client.counters.unread == client.counters.failed == 0
    (known,) = info.tokenizers
    digest = hash_files(files_of(folder)()).digest
    assert (known.served_model, known.digest, known.status.state) == ("m", digest, pb.TOKENIZER_STATE_READY)
    assert counted["lpc_tokenizers['ready']"] == counted["lpc_tokenizer_offers_total['received']"] == 1
    assert [r.message for r in caplog.records if "reads the prompts of m" in r.message]


async def test_a_known_tokenizer_is_not_sent_again(tiny_models: Path, folder: Path) -> None:
    async with sidecar(tiny_models) as (_, addresses):
        for _ in range(2):
            await send(f"127.0.0.1:{addresses.port}", folder)
        counted = await metrics_of(addresses)
    assert counted["lpc_tokenizer_offers_total['received']"] == 1
    assert counted["lpc_tokenizer_offers_total['known']"] >= 1


def offer_of(files: Mapping[str, int], digest: str = "0" * 64) -> pb.OfferTokenizerRequest:
    named = [pb.TokenizerFile(name=name, bytes=size) for name, size in files.items()]
    return pb.OfferTokenizerRequest(offer=pb.TokenizerOffer(served_model="m", digest=digest, files=named))


@pytest.mark.parametrize("ends", ["cancels", "stalls"])
async def test_an_engine_that_does_not_finish_leaves_the_sending_to_the_next(
    tiny_models: Path, folder: Path, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are the same client: an engine that restarts, or another one of a fleet without tokens."""
    monkeypatch.setattr("predictor_service.requests.uploads.FREE_S", 10.0)
    if ends == "stalls":
        monkeypatch.setattr("predictor_service.rpc.offers.STALLED_S", 3.0)
    files = hash_files(files_of(folder)())
    async with sidecar(tiny_models) as (stub, addresses):
        sending = stub.OfferTokenizer()
        await sending.write(offer_of(files.sizes, files.digest))
        await sending.write(pb.OfferTokenizerRequest(data=b"{"))
        client = engine(f"127.0.0.1:{addresses.port}", folder)
        await eventually(lambda: client.tokenizer_state == "loading")
        if ends == "cancels":
            sending.cancel()
        await eventually(lambda: client.tokenizer_state == "ready")
        client.close()
        sending.cancel()


@pytest.mark.parametrize(
    ("files", "digest", "why"),
    [
        ({"../../tokenizer.json": 1}, "0" * 64, "any of added_tokens.json, "),
        ({"tokenizer.json": 1, "code.py": 1}, "0" * 64, "any of"),
        ({"tokenizer_config.json": 1}, "0" * 64, "with tokenizer.json"),
        ({"tokenizer_config.json": 1, "tokenizer.json": 1}, "0" * 64, "in this order"),
        ({"tokenizer.json": MAX_BYTES + 1}, "0" * 64, "has 67108865 bytes, this sidecar accepts 67108864"),
        ({"tokenizer.json": 1}, "../secret", "64 hexadecimal digits"),
    ],
)
async def test_an_invalid_offer_is_refused(tiny_models: Path, files: dict[str, int], digest: str, why: str) -> None:
    async with sidecar(tiny_models) as (stub, _):
        status = (await stub.OfferTokenizer(iter([offer_of(files, digest)]))).status
    assert status.state == pb.TOKENIZER_STATE_REFUSED and why in status.message


async def test_a_wrong_upload_is_discarded_and_uploads_per_hour_are_bounded(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with sidecar(tiny_models) as (stub, _):

        async def said(number: int, data: bytes) -> str:
            parts = [offer_of({"tokenizer.json": 3}, f"{number:064}"), pb.OfferTokenizerRequest(data=data)]
            status = (await stub.OfferTokenizer(iter(parts))).status
            assert status.state == pb.TOKENIZER_STATE_REFUSED
            return status.message

        assert "do not have the offered digest" in await said(0, b"{ }")
        assert "more bytes than were offered" in await said(1, b"{ } ")
        for number in range(2, MAX_HOURLY):
            await said(number, b"{ }")
        assert "has sent 32 tokenizers within an hour" in await said(99, b"{ }")
    assert not [path for path in os.listdir(tmp_path) if path.startswith("lpc-tokenizers-")]  # noqa: PTH208


@pytest.mark.nightly
async def test_a_tokenizer_that_hangs_delays_no_answer(
    tiny_models: Path, tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "chat_template.jinja").write_text(BOMB)
    hanging = tmp_path / "hanging"
    tokenizer_of(STYLES["chatml"]).save_pretrained(hanging)
    (hanging / "chat_template.jinja").write_text(BOMB)
    ids = ids_of(tokenizer_of(STYLES["chatml"]), "hello")
    parts = Parts(tokenizer_limits=LoadLimits(offered_s=8))
    async with sidecar(tiny_models, parts) as (stub, addresses):
        client = engine(f"127.0.0.1:{addresses.port}", folder)
        try:
            await eventually(lambda: client.tokenizer_state == "loading")
            for n in range(10):
                client.ask(n, token_ids=ids, conversation_id=f"c{n}")
                answer = (await stub.Predict(one(pb.Conversation(prompt="hello world")), timeout=patiently())).prediction
                assert answer.probability > 0
            await eventually(lambda: client.waiting == 0)
            assert client.tokenizer_state == "loading", "they were answered while it hangs"
            unread = [client.take(n) for n in range(10)]
            assert all(answer is not None and answer.unread for answer in unread)
            await eventually(lambda: client.tokenizer_state == "failed")
            client.ask("after", token_ids=ids)
            client.ask("again", token_ids=ids)
            await eventually(lambda: client.waiting == 0)
        finally:
            client.close()
        counted = await metrics_of(addresses)
    assert client.counters.unread == 12 and client.counters.failed == 0
    assert counted["lpc_unread_prompts_total['loading']"] == 10
    assert counted["lpc_unread_prompts_total['failed']"] == 2
    lines = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert sum("cannot be loaded" in line and "accepted again after" in line for line in lines) == 1, (
        "the sidecar, of the tokenizer"
    )
    assert sum(line.startswith("cannot read prompts of served model m:") for line in lines) == 1, "the sidecar, of the prompts"
    assert sum("the predictor cannot read the prompts of m" in line for line in lines) == 1, "the engine"


async def test_an_engine_without_files_gets_advice_and_predictions_from_lengths(
    tiny_models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def none() -> dict[str, Path]:
        raise NoTokenizer("tekken.json cannot be sent")

    async with sidecar(tiny_models) as (_, addresses):
        client = PredictorClient(f"127.0.0.1:{addresses.port}", served_model="m", timeout_s=60, tokenizer=none)
        await eventually(lambda: client.tokenizer_state == "none")
        for turn in range(1, 4):
            client.ask(turn, token_ids=[1, 2, 3, 4][: turn + 1], conversation_id="c")
            await eventually(lambda: client.waiting == 0)
        counts = [answer.turn_count for turn in range(1, 4) if (answer := client.take(turn)) is not None]
        client.close()
    assert counts == [1, 2, 3], "turns are counted by the conversation's id"
    lines = [record.message for record in caplog.records]
    assert sum("cannot be offered to the predictor (tekken.json cannot be sent)" in line for line in lines) == 1
    assert sum("LPC_SERVED_MODELS" in line and "cannot read the prompts of m" in line for line in lines) == 1


async def test_a_sidecar_with_offers_disabled_refuses_them(tiny_models: Path, folder: Path) -> None:
    async with sidecar(tiny_models, offered_tokenizers=False) as (_, addresses):
        client = engine(f"127.0.0.1:{addresses.port}", folder)
        await eventually(lambda: client.tokenizer_state == "refused")
        client.ask("r", token_ids=[1])
        await eventually(lambda: client.waiting == 0)
        answer = client.take("r")
        client.close()
        counted = await metrics_of(addresses)
    assert answer is not None and answer.unread
    assert counted["lpc_tokenizer_offers_total['refused']"] == 1
