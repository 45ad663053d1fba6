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
    "unknown role": (of(message(CANARY, "hello")), "message 0 has an unknown role"),
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

WITHOUT_TEXT = {
    "a picture alone": of(message("user", "")),
    "blank user message": of(message("user", " \n\t ")),
    "picture and reply": of(message("user", ""), message("assistant", CANARY), message("user", "")),
    "only instructions": of(message("system", CANARY)),
    "only a reply": of(message("assistant", CANARY)),
    "only tools": of(message("assistant", ""), message("tool", CANARY)),
    "reply at the end": of(message("user", " "), message("assistant", CANARY)),
    "empty prompt": pb.Conversation(prompt=""),
    "blank prompt": pb.Conversation(prompt=" \n"),
    "long blank prompt": pb.Conversation(prompt=" " * 1_000_000),
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


async def test_conversations_without_user_text_are_answered_from_lengths_and_times(
    tiny_models: Path, served_models: dict[str, str]
) -> None:
    tokenizer = tokenizer_of(STYLES["chatml"])
    cases = dict(WITHOUT_TEXT)
    rendered = {
        "rendered picture": "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n",
        "rendered pictures": "<|im_start|>user\n <|im_end|>\n<|im_start|>assistant\nA cat.<|im_end|>\n" * 3,
        "rendered instructions": "<|im_start|>system\nBe brief.<|im_end|>\n",
        "blank completion": "  \n",
        "only added tokens": "<|im_end|>",
    }
    for name, text in rendered.items():
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        cases[name] = pb.Conversation(tokens=pb.TokenIds(ids=ids, served_model="m"))
    async with sidecar(tiny_models, served_models=served_models) as (stub, _):

        async def loaded() -> bool:
            try:
                await stub.Predict(one(cases["rendered picture"]))
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                return False
            return True

        await eventually(loaded)
        for case, conversation in cases.items():
            answer = (await stub.Predict(one(conversation))).prediction
            assert 0 < answer.probability < 1, case
            assert (answer.turn_count, answer.unread) == (1, False), case
            counted = pb.Conversation()
            counted.CopyFrom(conversation)
            counted.turn_count = 7
            assert (await stub.Predict(one(counted))).prediction.turn_count == 7, case
        batch = await stub.PredictBatch(pb.PredictBatchRequest(conversations=cases.values()))
        assert all(result.prediction.probability > 0 for result in batch.results)
        # With an id its turns are counted, and the same turn again is not a further one.
        for count in (1, 1, 2, 2, 3):
            messages = [message("user", "") if i % 2 == 0 else message("assistant", "A cat.") for i in range(2 * count - 1)]
            conversation = of(*messages)
            conversation.conversation_id = "s"
            assert (await stub.Predict(one(conversation))).prediction.turn_count == count


async def test_invalid_requests_are_refused_without_their_text(
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


async def test_token_ids_without_a_served_model_are_logged_as_such(tiny_models: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with sidecar(tiny_models) as (stub, _):
        request = pb.PredictRequest(conversation=pb.Conversation(tokens=pb.TokenIds(ids=[1, 2])), accept_unread=True)
        assert (await stub.Predict(request)).prediction.unread
    (line,) = [line for line in caplog.messages if "cannot read prompts" in line]
    assert line.startswith("cannot read prompts without a served model: no tokenizer is configured")
