"""A hostile body costs the sidecar about as much as a harmless one of its size, and small requests do not wait for it."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from lpc.cache.v1 import response_cache_pb2 as cache_pb
from lpc.v1 import predictor_pb2 as pb
from predictor_service.requests.parser import ids_of
from predictor_service.rpc.large import LARGE, MAX_FIELDS
from response_cache.service.servicer import MAX_BYTES
from tests.caching_sidecar import ResponseCaches, response_caches
from tests.integration.test_hostile_inputs import field

PREDICT = "/lpc.v1.ContinuationPredictor/Predict"
LOOKUP = "/lpc.cache.v1.ResponseCache/Lookup"
STORE = "/lpc.cache.v1.ResponseCache/Store"
BODY = 15 * 2**20
SMALL = pb.PredictRequest(conversation=pb.Conversation(prompt="hello world")).SerializeToString()
HARMLESS = pb.PredictRequest(conversation=pb.Conversation(prompt="hello " * (BODY // 6))).SerializeToString()


def asked(**fields: object) -> cache_pb.Request:
    return cache_pb.Request(**{"model": "m", "parameters_json": b'{"temperature": 0}', **fields})  # type: ignore[arg-type]


def looked_up(**fields: object) -> bytes:
    return cache_pb.LookupRequest(request=asked(**fields)).SerializeToString()


def said(text: str) -> list[cache_pb.Message]:
    return [cache_pb.Message(role="user", content=text)]


HOSTILE = {
    "chat of empty messages": (PREDICT, field(1, field(1, b"\x0a\x00" * (BODY // 2)))),
    "chat of unknown fields": (PREDICT, field(1, field(1, b"\x78\x00" * (BODY // 2)))),
    "too many token ids": (PREDICT, field(1, pb.Conversation(tokens=pb.TokenIds(ids=range(BODY // 4))).SerializeToString())),
    "look-up of empty messages": (LOOKUP, field(1, field(2, b"") * (BODY // 2))),
    "look-up of a long text": (LOOKUP, looked_up(messages=said("e\u0301 , " * (BODY // 7)))),
    "look-up of many lists": (LOOKUP, looked_up(messages=said("hi"), tools_json=b"[" + b"[]," * (BODY // 3) + b"1]")),
}


@pytest.fixture(scope="module")
def caches(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResponseCaches]:
    with response_caches(tmp_path_factory.mktemp("caches"), tiny_models, threads=1) as running:
        yield running


@pytest.fixture(scope="module")
def channel(caches: ResponseCaches) -> Iterator[grpc.Channel]:
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(caches.sidecar.address, options) as channel:
        yield channel


def send(channel: grpc.Channel, method: str, body: bytes) -> grpc.StatusCode | bytes:
    try:
        return bytes(channel.unary_unary(method)(body, timeout=300))  # type: ignore[attr-defined]
    except grpc.RpcError as error:
        return error.code()


def cpu_s(caches: ResponseCaches) -> float:
    """Seconds of CPU that the sidecar has used: other processes of a busy machine do not count."""
    return caches.sidecar.processor_s


def cost(caches: ResponseCaches, channel: grpc.Channel, method: str, body: bytes) -> float:
    send(channel, method, body)
    before = cpu_s(caches)
    for _ in range(3):
        send(channel, method, body)
    return cpu_s(caches) - before


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_body_costs_about_as_much_as_a_harmless_one(caches: ResponseCaches, channel: grpc.Channel, kind: str) -> None:
    harmless = cost(caches, channel, PREDICT, HARMLESS)
    assert cost(caches, channel, *HOSTILE[kind]) < 3 * harmless


def mean_wait(channel: grpc.Channel, flood: tuple[str, bytes] | None = None) -> float:
    """Return the mean seconds that a small prediction takes, while large bodies come in one after another."""
    done = threading.Event()

    def send_large() -> None:
        while flood is not None and not done.is_set():
            send(channel, *flood)

    flooding = threading.Thread(target=send_large)
    flooding.start()
    began = time.perf_counter()
    try:
        for _ in range(20):
            assert isinstance(send(channel, PREDICT, SMALL), bytes)
        return (time.perf_counter() - began) / 20
    finally:
        done.set()
        flooding.join()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["harmless", *HOSTILE])
def test_small_requests_are_answered_while_large_ones_arrive(channel: grpc.Channel, kind: str) -> None:
    send(channel, PREDICT, SMALL)
    alone = mean_wait(channel)
    # Threads of one interpreter take turns of some milliseconds: 10 to 25 times. Bodies read at once made it 1,500 times.
    assert mean_wait(channel, {"harmless": (PREDICT, HARMLESS), **HOSTILE}[kind]) < 100 * alone


def test_a_request_with_too_many_fields_is_refused_with_a_remedy(channel: grpc.Channel) -> None:
    method, body = HOSTILE["chat of empty messages"]
    with pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(method)(body)  # type: ignore[attr-defined]
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    assert f"more than {MAX_FIELDS} fields: split the batch" in refused.value.details()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": said("x" * MAX_BYTES)},
        {"messages": said("hi"), "tools_json": b"[" + b"1," * 20_000 + b"1]"},
        {"messages": said("hi") * 5000},
        {"prompt": "hi", "parameters_json": b'{"a":' * 30_000},
    ],
    ids=["text", "nodes", "messages", "depth"],
)
def test_a_request_that_is_too_large_is_a_miss_and_its_answer_is_not_cached(
    channel: grpc.Channel, fields: dict[str, object]
) -> None:
    answer = send(channel, LOOKUP, looked_up(**fields))
    assert isinstance(answer, bytes)
    miss = cache_pb.LookupResponse.FromString(answer).miss
    assert (miss.reason, miss.refusal, miss.flight) == (cache_pb.REASON_REFUSED, "too_large", b"")
    answer = send(channel, STORE, cache_pb.StoreRequest(request=asked(**fields)).SerializeToString())
    assert isinstance(answer, bytes)
    stored = cache_pb.StoreResponse.FromString(answer)
    assert (stored.stored, stored.refusal) == (False, "too_large")


def test_one_client_has_a_bounded_number_of_large_bodies_in_flight(channel: grpc.Channel) -> None:
    calls = [channel.unary_unary(PREDICT).future(HARMLESS, timeout=300) for _ in range(24)]  # type: ignore[attr-defined]
    codes = {call.exception().code() if call.exception() else grpc.StatusCode.OK for call in calls}  # type: ignore[union-attr]
    assert codes == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert isinstance(send(channel, PREDICT, HARMLESS), bytes), "they are given back"


@pytest.mark.parametrize("count", [0, 1, 31, 32, 5000])
def test_token_ids_are_read_as_they_were_sent(count: int) -> None:
    ids = [(n * 2654435761) % 2**32 for n in range(count)]
    tokens = pb.TokenIds.FromString(
        pb.TokenIds(ids=ids, served_model="m" * 200, tokenizer="t").SerializeToString() + b"\x78\x01"
    )
    assert ids_of(tokens).tolist() == ids and ids_of(tokens).dtype == np.dtype("<u4")
    assert tokens.served_model == "m" * 200


def test_large_is_where_the_number_of_fields_begins_to_matter() -> None:
    assert LARGE // 2 <= 2 * MAX_FIELDS
