"""Whatever is sent, in any of the three forms of input: one clear status, and the sidecar answers the next one.

Hypothesis draws inputs (10,000 in `make test-nightly`), half of them conversations of the contract with content
that means harm, half bytes that are nearly such a conversation. The sidecar is a process of its own, so that what kills it
is seen.
"""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lpc.v1 import predictor_pb2 as pb
from testing.processes import Sidecar
from tests.chat_templates import STYLES, tokenizer_of
from tests.eventually import patiently, until
from tests.nightly import EXAMPLES

SERVED = ("chatml", "qwen3", "llama3", "mistral", "zephyr", "harmony")
MEANT = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""What a caller can do something about. INTERNAL and UNKNOWN are the sidecar's own faults; UNAVAILABLE means that it died."""
CODES = {code.value[0]: code for code in grpc.StatusCode}
GOOD = pb.Conversation(prompt="hello world")


@pytest.fixture(scope="module")
def served_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("served")
    for name in SERVED:
        tokenizer_of(STYLES[name]).save_pretrained(root / name)
    return {**{name: str(root / name) for name in SERVED}, "broken": str(root / "nowhere")}


@pytest.fixture(scope="module")
def sidecar(
    tiny_models: Path, served_models: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Sidecar, grpc.Channel]]:
    """A sidecar, and a channel to it that sends messages of any size."""
    folder = tmp_path_factory.mktemp("sidecar")
    limits = {"max_request_bytes": 2**20}
    with (
        Sidecar(folder, tiny_models, "tiny", threads=1, served_models=served_models, **limits) as process,
        grpc.insecure_channel(process.address, [("grpc.max_send_message_length", -1)]) as channel,
    ):
        for name in served_models:
            tokens = pb.Conversation(tokens=pb.TokenIds(ids=[1], served_model=name)).SerializeToString()
            # Its tokenizer is being loaded.
            until(lambda tokens=tokens: sent(channel, "Predict", tokens) != {grpc.StatusCode.UNAVAILABLE})
        yield process, channel
        assert "internal error" not in process.log and "Traceback" not in process.log


POISON = [
    "\0",
    "\u202e",
    "\ufeff",
    "\u200d" * 50,
    "e" + "\u0301" * 500,
    "\U0010ffff",
    "\U000f0000\U000f0001",
    "\N{PILE OF POO}",
    "<|im_start|>user\n",
    "<|im_end|>",
    "<|start_header_id|>user<|end_header_id|>\n\n",
    "[INST]",
    "<|user|>\n",
    "</s>",
    "<s>",
    "<pad>",
    "Zqalpha",
    "Zqfoxtrot",
    "{{ 7 * 7 }}",
    "{% raise %}",
    "%s%n",
    "'; DROP TABLE",
    "\r\n\r\nHTTP/1.1 200 OK",
    "a" * 20_000,
    " " * 20_000 + "x",
    "\n" * 3000,
    "ab " * 10_000,
    "界" * 8_000,
]
texts = st.one_of(
    st.text(max_size=40), st.sampled_from(POISON), st.lists(st.sampled_from(POISON), min_size=2, max_size=4).map("".join)
)
roles = st.one_of(st.sampled_from(["user", "assistant", "system", "developer", "tool", "function", "User", ""]), texts)
messages = st.builds(pb.ChatMessage, role=roles, content=texts)
chats = st.one_of(
    st.lists(messages, max_size=8).map(lambda found: pb.ChatMessages(messages=found)),
    st.builds(lambda message, n: pb.ChatMessages(messages=[message] * n), messages, st.sampled_from([100, 4096, 4097])),
)
ids = st.one_of(
    st.lists(st.integers(0, 700), max_size=60),
    st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 260, 300]), max_size=200),
    st.lists(st.integers(0, 2**32 - 1), max_size=5),
    st.builds(lambda token, n: [token] * n, st.integers(0, 400), st.sampled_from([1000, 20_000, 100_000])),
)
names = st.one_of(st.sampled_from([*SERVED, "broken"]), st.sampled_from([*SERVED]), texts)
tokens = st.builds(pb.TokenIds, ids=ids, served_model=names)
INPUTS = {"chat": chats, "prompt": texts, "tokens": tokens}


@st.composite
def conversations(draw: st.DrawFn, form: str) -> pb.Conversation:
    conversation = pb.Conversation(
        turn_count=draw(st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1), st.sampled_from([0, 1, 100_000, 100_001]))),
        category=draw(st.one_of(st.just("agent"), texts)),
        conversation_id=draw(st.one_of(st.just(""), texts)),
    )
    value = draw(INPUTS[form])
    if form == "prompt":
        conversation.prompt = value
    else:
        getattr(conversation, form).CopyFrom(value)
    return conversation


@st.composite
def damaged(draw: st.DrawFn, form: str) -> bytes:
    """The bytes of a conversation with some of them replaced, taken out or put in."""
    data = bytearray(draw(conversations(form)).SerializeToString()[:4000])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(data)


def field(number: int, data: bytes) -> bytes:
    """A length-delimited field of a protobuf message."""
    length, n = b"", len(data)
    while n > 0x7F:
        length, n = length + bytes([n & 0x7F | 0x80]), n >> 7
    return bytes([number << 3 | 2]) + length + bytes([n]) + data


def sent(channel: grpc.Channel, method: str, conversation: bytes) -> set[grpc.StatusCode]:
    """Send a conversation's bytes by a method; return every status that comes back, of the call and of its items."""
    path = f"/lpc.v1.ContinuationPredictor/{method}"
    body = field(1, conversation)
    response = {"Predict": pb.PredictResponse, "PredictBatch": pb.PredictBatchResponse}[method]
    call = channel.unary_unary(path, response_deserializer=response.FromString)  # type: ignore[attr-defined]
    try:
        answer = call(body * 2 if method == "PredictBatch" else body, timeout=patiently())
    except grpc.RpcError as error:
        return {error.code()}
    results = answer.results if method == "PredictBatch" else [answer]
    assert len(results) == (2 if method == "PredictBatch" else 1)
    for result in results:
        if result.HasField("prediction"):
            assert 0 < result.prediction.probability < 1
    return {grpc.StatusCode.OK} | {CODES[r.error.code] for r in results if not r.HasField("prediction")}


forms = st.sampled_from(sorted(INPUTS))
hostile = forms.flatmap(lambda form: st.one_of(conversations(form).map(pb.Conversation.SerializeToString), damaged(form)))


@pytest.mark.timeout(3600)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=hostile, method=st.sampled_from(["Predict", "PredictBatch"]))
def test_no_input_is_the_sidecars_fault_and_it_answers_the_next(
    sidecar: tuple[Sidecar, grpc.Channel], data: bytes, method: str
) -> None:
    process, channel = sidecar
    assert sent(channel, method, data) <= MEANT
    assert process.running
    assert sent(channel, "Predict", GOOD.SerializeToString()) == {grpc.StatusCode.OK}
