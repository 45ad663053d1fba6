"""Whatever a caller sends gets one clear status; the server goes on serving; no text of a conversation is logged."""

import logging
from pathlib import Path

import grpc
import grpc.aio
import pytest

from lpc.v1 import predictor_pb2 as pb
from tests.chat_templates import STYLES, tokenizer_of
from tests.eventually import eventually
from tests.integration.test_server import chat, one, sidecar

CANARY = "canaryzebra"
MIB = 2**20


def message(role: str, content: str) -> pb.ChatMessage:
    return pb.ChatMessage(role=role, content=content)


def of(*messages: pb.ChatMessage, **fields: int) -> pb.Conversation:
    return pb.Conversation(chat=pb.ChatMessages(messages=messages), **fields)


REFUSED = {
    "no input": (pb.Conversation(), "has no input"),
    "empty conversation": (pb.Conversation(chat=pb.ChatMessages()), "has no messages"),
    "no user turn": (of(message("system", CANARY), message("assistant", CANARY)), "none of the 2 messages is a user message"),
    "blank user turn": (of(message("user", " \n\t ")), "none of the 1 messages is a user message"),
    "unknown role": (of(message(CANARY, "hello")), "message 0 has an unknown role"),
    "empty prompt": (pb.Conversation(prompt=""), "has no input|prompt is empty"),
    "blank prompt": (pb.Conversation(prompt="  "), "prompt is empty"),
    "turn count zero": (of(message("user", CANARY), turn_count=0), "turn_count must be from 1 to"),
    "turn count negative": (of(message("user", CANARY), turn_count=-5), "turn_count must be from 1 to"),
    "turn count too high": (of(message("user", CANARY), turn_count=2**31 - 1), "turn_count must be from 1 to"),
    "turn count below what is seen": (
        of(*[message("user", CANARY)] * 3, turn_count=2),
        "turn_count is 2, but the input has 3 user turns",
    ),
    "too many messages": (of(*[message("user", CANARY)] * 10_000), "10000 messages, at most 4096"),
    "no token ids": (pb.Conversation(tokens=pb.TokenIds(served_model="m")), "tokens.ids is empty"),
    "ids outside the vocabulary": (
        pb.Conversation(tokens=pb.TokenIds(ids=[1, 2**32 - 1], served_model="m")),
        "token id 4294967295 at position 1 is outside the vocabulary of m",
    ),
}


@pytest.fixture
def served_models(tmp_path: Path) -> dict[str, str]:
    tokenizer_of(STYLES["chatml"]).save_pretrained(tmp_path)
    return {"m": str(tmp_path), "broken": str(tmp_path / "nowhere")}


async def test_a_message_over_the_limit_is_refused(tiny_models: Path) -> None:
    async with sidecar(tiny_models, max_request_bytes=MIB) as (stub, _):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await stub.Predict(one(pb.Conversation(prompt="x" * 2 * MIB)))
        assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Predict(one(chat("hello")))).prediction.probability > 0


# A Conversation.prompt whose bytes are no UTF-8, inside a PredictRequest; and bytes that are no message at all.
INVALID_UTF8 = bytes([0x0A, 4, 0x12, 2, 0xC3, 0x28])


async def test_bytes_that_cannot_be_decoded_and_wrong_batches_are_the_callers_fault(tiny_models: Path) -> None:
    async with sidecar(tiny_models) as (stub, addresses), grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}") as channel:
        for method in ("Predict", "PredictBatch"):
            for data in (INVALID_UTF8, b"\xff\xff\xff\xff", b"\x0a\x7f"):
                with pytest.raises(grpc.aio.AioRpcError, match="not a valid protobuf message") as refusal:
                    await channel.unary_unary(f"/lpc.v1.ContinuationPredictor/{method}")(data)
                assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        for count in (0, 257):
            with pytest.raises(grpc.aio.AioRpcError, match=f"1 to 256 conversations, this one {count}") as refusal:
                await stub.PredictBatch(pb.PredictBatchRequest(conversations=[chat("hello")] * count))
            assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await stub.Predict(one(chat("hello")))).prediction.probability > 0


async def test_what_cannot_be_answered_is_refused_as_invalid_and_no_text_is_in_logs_or_refusals(
    tiny_models: Path, served_models: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tokenizer = tokenizer_of(STYLES["chatml"])
    ids = tokenizer(CANARY, add_special_tokens=False)["input_ids"]
    async with sidecar(tiny_models, served_models=served_models) as (stub, _):

        async def tokens_are_read() -> bool:
            try:
                await stub.Predict(one(pb.Conversation(tokens=pb.TokenIds(ids=ids, served_model="m"))))
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                return False
            return True

        await eventually(tokens_are_read)
        for case, (conversation, why) in REFUSED.items():
            with pytest.raises(grpc.aio.AioRpcError, match=why) as refusal:
                await stub.Predict(one(conversation))
            assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT, case
            assert CANARY not in str(refusal.value.details()), case
        for conversation in (chat(CANARY), pb.Conversation(prompt=CANARY)):
            await stub.Predict(one(conversation))
    assert CANARY not in "\n".join(record.getMessage() for record in caplog.records if not record.name.startswith("asyncio"))
