"""Long conversations never occupy what short ones wait for, whatever the form in which they come."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from tokenizers import AddedToken

from lpc.model.conversation import UserTurns
from lpc.model.features import ModelInput
from lpc.model.inference import Model
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from predictor_service.batching.batch_queue import SHORT_TOKENS
from predictor_service.requests.parser import RequestParser
from predictor_service.server import Parts
from tests.chat_templates import STYLES, tokenizer_of
from tests.eventually import eventually, patiently
from tests.integration.test_server import chat, one, shown, sidecar

TEXT = "what is a cache " * 4096
FORMS = {
    "text": pb.Conversation(prompt=TEXT),
    "a long message": chat(TEXT),
    "many messages": chat(*["hi"] * 4001),
    "long instructions": pb.Conversation(
        chat=pb.ChatMessages(
            messages=[pb.ChatMessage(role="system", content=TEXT), pb.ChatMessage(role="user", content="hello")]
        )
    ),
    "long results of tools": pb.Conversation(
        chat=pb.ChatMessages(messages=[pb.ChatMessage(role="tool", content=TEXT), pb.ChatMessage(role="user", content="hello")])
    ),
    "many token ids": pb.Conversation(tokens=pb.TokenIds(ids=[300] * 5000, served_model="m")),
    "ids of long tokens": pb.Conversation(tokens=pb.TokenIds(ids=[0] * 300, served_model="long")),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("served")
    tokenizer = tokenizer_of(STYLES["chatml"])
    tokenizer.save_pretrained(root / "m")
    tokenizer.add_tokens([AddedToken("z" * 1000)])
    tokenizer.save_pretrained(root / "long")
    FORMS["ids of long tokens"].tokens.ids[:] = [tokenizer.convert_tokens_to_ids("z" * 1000)] * 300
    return {name: str(root / name) for name in ("m", "long")}


@pytest.mark.parametrize(
    ("compressed", "batch"),
    [
        pytest.param(False, False, id="plain-one call each"),
        pytest.param(True, True, id="compressed-one batch"),
        pytest.param(False, True, id="plain-one batch", marks=pytest.mark.nightly),
        pytest.param(True, False, id="compressed-one call each", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("form", FORMS)
async def test_short_conversations_overtake_long_ones_that_are_being_read(
    tiny_models: Path, served: dict[str, str], form: str, compressed: bool, batch: bool
) -> None:
    go, held = threading.Event(), []

    class Held(RequestParser):
        def parse(self, conversation: pb.Conversation, window: int) -> UserTurns:
            is_short = conversation.WhichOneof("input") == "prompt" and len(conversation.prompt) <= 100
            if not is_short and conversation != probe(conversation.tokens.served_model):
                held.append(conversation)
                assert go.wait(patiently())
            return super().parse(conversation, window)

    compression = grpc.Compression.Gzip if compressed else grpc.Compression.NoCompression
    needed = {name: path for name, path in served.items() if name == FORMS[form].tokens.served_model}
    async with sidecar(tiny_models, Parts(parser=Held), served_models=needed) as (stub, _):
        for name in needed:
            await eventually(lambda name=name: reads_ids(stub, name))  # its tokenizer may still be loading
        if batch:
            request = pb.PredictBatchRequest(conversations=[FORMS[form]] * 4)
            calls = [asyncio.ensure_future(awaited(stub.PredictBatch(request, compression=compression)))]
        else:
            calls = [asyncio.ensure_future(awaited(stub.Predict(one(FORMS[form]), compression=compression))) for _ in range(12)]
        try:
            await eventually(lambda: held)
            for _ in range(20):
                answer = await stub.Predict(one(pb.Conversation(prompt="hello world")), timeout=patiently())
                assert answer.prediction.probability > 0
            assert len(held) == 1 and not any(call.done() for call in calls)
        finally:
            go.set()
        await asyncio.gather(*calls)


def probe(served_model: str) -> pb.Conversation:
    return pb.Conversation(tokens=pb.TokenIds(ids=[300], served_model=served_model))


async def reads_ids(stub: rpc.ContinuationPredictorStub, served_model: str) -> bool:
    try:
        await stub.Predict(one(probe(served_model)), timeout=patiently())
    except grpc.aio.AioRpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE, error
        return False
    return True


async def awaited(call: object) -> object:
    return await call  # type: ignore[misc]


async def test_short_inputs_overtake_long_ones_in_the_model(tiny_models: Path) -> None:
    go, held = threading.Event(), []

    class Held(Model):
        def run(self, batch: Sequence[ModelInput]) -> list[float]:
            if max(len(features.input_ids) for features in batch) > SHORT_TOKENS:
                held.append(len(batch))
                assert go.wait(patiently())
            return super().run(batch)

    async with sidecar(tiny_models, Parts(load=Held)) as (stub, addresses):
        calls = [stub.Predict(one(pb.Conversation(prompt=TEXT))) for _ in range(40)]
        try:
            await shown(addresses, "lpc_queue_depth 40.0")
            await eventually(lambda: held)
            for n in range(20):
                assert (await stub.Predict(one(chat("hello " * n + "you")), timeout=patiently())).prediction.probability > 0
            assert len(held) == 1
        finally:
            go.set()
        for call in calls:
            assert (await call).prediction.probability > 0
