"""Clients and servers of different releases, over real gRPC: neither fails on what the other one knows and it does not.

The newer contract is the present one with one more field in each message and one more value in each enum.
"""

import contextlib
from collections.abc import Callable, Iterator
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from eviction_client import PredictorClient
from eviction_client.settings import ClientSettings
from lpc.cache.v1 import response_cache_pb2 as cache_pb
from lpc.v1 import predictor_pb2 as pb
from lpc_cli.predict import asking
from response_cache.client import ResponseCacheClient
from testing.processes import free_port
from tests.caching_sidecar import ResponseCaches, response_caches
from tests.eventually import eventually, patiently

PREDICTOR, CACHE = "lpc.v1.ContinuationPredictor", "lpc.cache.v1.ResponseCache"
UNKNOWN = 9999
BODY = b'{"id": "1", "choices": [{"message": {"role": "assistant", "content": "Paris"}, "finish_reason": "stop"}]}'


class Contract:
    """Message classes of a release."""

    def __init__(self, files: list[FileDescriptorProto]) -> None:
        self.pool = descriptor_pool.DescriptorPool()
        for file in files:
            self.pool.Add(file)

    def __call__(self, name: str, **fields: Any) -> Any:
        """Return a message, such as ``lpc.v1.Prediction``."""
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(name))(**fields)

    def method(self, service: str, name: str) -> tuple[Any, Any]:
        """Return the classes of a method's request and answer."""
        found = self.pool.FindServiceByName(service).FindMethodByName(name)
        return message_factory.GetMessageClass(found.input_type), message_factory.GetMessageClass(found.output_type)

    def call(self, channel: grpc.Channel, service: str, name: str, message: Any) -> Any:
        """Call a method as a client of this release does."""
        asked, answered = self.method(service, name)
        path = f"/{service}/{name}"
        return channel.unary_unary(path, asked.SerializeToString, answered.FromString)(message, timeout=patiently())


def present_files() -> list[FileDescriptorProto]:
    return [FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb) for module in (pb, cache_pb)]


def newer_files() -> list[FileDescriptorProto]:
    """Return the present contract with one more field in each message and one more value in each enum."""
    files = present_files()
    for file in files:
        for enum in file.enum_type:
            enum.value.add(name=f"{enum.name}_OF_A_NEWER_RELEASE", number=UNKNOWN)
        for message in file.message_type:
            message.field.add(
                name="of_a_newer_release",
                number=UNKNOWN,
                type=FieldDescriptorProto.TYPE_STRING,
                label=FieldDescriptorProto.LABEL_OPTIONAL,
            )
    return files


@pytest.fixture(scope="module")
def contract() -> Contract:
    return Contract(newer_files())


@pytest.fixture(scope="module")
def caches(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResponseCaches]:
    with response_caches(tmp_path_factory.mktemp("skew"), tiny_models, {"default": {}}) as running:
        yield running


def age(message: Any) -> Any:
    """Set the newer release's field and enum values in a message and all that it holds."""
    if "of_a_newer_release" in message.DESCRIPTOR.fields_by_name:
        message.of_a_newer_release = "unknown"
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE and not field.message_type.GetOptions().map_entry:
            for inner in value if hasattr(value, "append") else [value]:
                age(inner)
        elif field.type == FieldDescriptor.TYPE_ENUM and UNKNOWN in field.enum_type.values_by_number:
            setattr(message, field.name, UNKNOWN)
    return message


Answers = dict[str, Callable[[Any], Any]]


@contextlib.contextmanager
def serving(contract: Contract, service: str, answers: Answers) -> Iterator[str]:
    """Serve methods as a server of a release does; yield its address."""

    def handler(name: str) -> grpc.RpcMethodHandler:
        asked, answered = contract.method(service, name)
        return grpc.unary_unary_rpc_method_handler(
            lambda request, _: answers[name](request),
            request_deserializer=asked.FromString,
            response_serializer=answered.SerializeToString,
        )

    server = grpc.server(futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler(name) for name in answers}),))
    address = f"127.0.0.1:{free_port()}"
    assert server.add_insecure_port(address)
    server.start()
    try:
        yield address
    finally:
        server.stop(0).wait()


def cache_question(contract: Contract) -> Any:
    question = contract("lpc.cache.v1.Request", model="m", parameters_json=b'{"temperature": 0}')
    question.messages.add(role="user", content=f"capital of France? {id(contract)}")
    return question


def test_a_newer_client_asks_the_present_sidecars_cache(caches: ResponseCaches, contract: Contract) -> None:
    with grpc.insecure_channel(caches.sidecar.address) as channel:

        def call(name: str, kind: str, **fields: Any) -> Any:
            return contract.call(channel, CACHE, name, age(contract(f"lpc.cache.v1.{kind}", **fields)))

        question = cache_question(contract)
        missed = call("Lookup", "LookupRequest", request=question)
        assert missed.WhichOneof("result") == "miss"
        response = contract("lpc.cache.v1.Response", body=BODY, finish_reason="stop", completion_tokens=1)
        assert call("Store", "StoreRequest", request=question, response=response, flight=missed.miss.flight).stored
        found = call("Lookup", "LookupRequest", request=question)
        assert found.hit.response.body == BODY
        assert call("Feedback", "FeedbackRequest", entry_id=found.hit.entry_id, wrong=True).counted
        assert call("Stats", "StatsRequest").scopes
        assert call("Invalidate", "InvalidateRequest", scope="default").done


def test_a_newer_client_asks_the_present_sidecar_for_predictions(caches: ResponseCaches, contract: Contract) -> None:
    conversation = contract("lpc.v1.Conversation", prompt="hello", conversation_id="c")
    with grpc.insecure_channel(caches.sidecar.address) as channel:

        def call(name: str, kind: str, **fields: Any) -> Any:
            return contract.call(channel, PREDICTOR, name, age(contract(f"lpc.v1.{kind}", **fields)))

        assert call("Predict", "PredictRequest", conversation=conversation).prediction.model_version == "v1"
        assert call("PredictBatch", "PredictBatchRequest", conversations=[conversation]).results[0].prediction.turn_count == 1
        assert call("GetModelInfo", "GetModelInfoRequest").model_name == "tiny"


def of_cache(contract: Contract, answer: Any) -> Answers:
    """Return a server that misses and keeps nothing, or gives ``answer`` to look-ups."""
    kinds = {
        "Store": "StoreResponse",
        "Feedback": "FeedbackResponse",
        "Stats": "StatsResponse",
        "Invalidate": "InvalidateResponse",
    }
    same = {name: age(contract(f"lpc.cache.v1.{kind}")) for name, kind in kinds.items()}
    return {name: partial(lambda given, _: given, given) for name, given in {"Lookup": answer, **same}.items()}


def lookup_answer(contract: Contract, result: str) -> Any:
    """Return an answer to a look-up, with values that the present release does not know if the contract has any."""
    answer = contract("lpc.cache.v1.LookupResponse")
    if result == "hit":
        answer.hit.source = 1
        answer.hit.response.body = BODY
    elif result == "miss":
        answer.miss.reason = 1
        answer.miss.flight = b"flight"
    return age(answer)


@pytest.mark.parametrize("result", ["hit", "miss", "neither"])
async def test_the_present_cache_client_asks_a_newer_sidecar(result: str, contract: Contract) -> None:
    with serving(contract, CACHE, of_cache(contract, lookup_answer(contract, result))) as address:
        client = ResponseCacheClient(address, timeout_s=20)
        question = cache_question(Contract(present_files()))
        question = cache_pb.Request.FromString(question.SerializeToString())
        found = await client.lookup(question)
        # An answer from a source that this release does not know is not used.
        assert found.hit.response.body == b""
        assert found.miss.flight == (b"flight" if result == "miss" else b"")
        assert await client.wait_for_answer(question, 0.5) == found
        assert not (await client.store(cache_pb.StoreRequest(request=question))).stored
        assert not (await client.feedback(cache_pb.FeedbackRequest(entry_id=b"1"))).counted
        assert not (await client.stats(cache_pb.StatsRequest())).scopes
        assert not (await client.invalidate(cache_pb.InvalidateRequest(scope="default"))).done
        await client.close()


def of_predictor(contract: Contract) -> Answers:
    """Return a server that answers each question with 0.25, and nothing else that it need not."""

    def prediction() -> Any:
        return age(contract("lpc.v1.Prediction", probability=0.25))

    return {
        "Predict": lambda _: age(contract("lpc.v1.PredictResponse", prediction=prediction())),
        "GetModelInfo": lambda _: age(contract("lpc.v1.GetModelInfoResponse")),
    }


async def test_the_present_engine_and_lpc_predict_ask_a_newer_sidecar(contract: Contract) -> None:
    with serving(contract, PREDICTOR, of_predictor(contract)) as address:
        with asking(ClientSettings(predictor_address=address), 20.0) as ask:
            assert ask(pb.Conversation(prompt="hello")).probability == 0.25
        client = PredictorClient(address, served_model="m", timeout_s=20.0)
        client.ask("r", token_ids=[1, 2], conversation_id="c")
        answer = await eventually(lambda: client.take("r"))
        client.close()
    assert answer.probability == 0.25
