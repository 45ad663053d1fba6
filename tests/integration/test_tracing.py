"""Traces go to a real OTLP endpoint, continue the caller's, and never get in the way of an answer."""

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from benchmarks.processes import free_port
from lpc.model.conversation import UserTurns
from lpc.v1 import predictor_pb2 as pb
from lpc.wire.log_lines import JsonFormatter
from predictor_service.errors import StartError
from predictor_service.requests.parser import RequestParser
from predictor_service.server import Parts
from tests.eventually import eventually
from tests.integration.test_server import chat, one, traced
from tests.otlp_collector import Collector, attributes

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)
METHOD = "lpc.v1.ContinuationPredictor"


@pytest.fixture(autouse=True)
def quick_and_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")


async def test_a_call_and_its_prediction_are_spans_below_the_callers(tiny_models: Path) -> None:
    with Collector() as collector:
        async with traced(tiny_models, collector.endpoint) as (stub, _):
            answer = (await stub.Predict(one(chat("hello", "hi", "what is a cache")), metadata=SAMPLED)).prediction
            spans = {span.name: span for span in await asyncio.to_thread(collector.wait_for, 2)}
    call, prediction = spans[f"{METHOD}/Predict"], spans["predict"]
    assert call.trace_id.hex() == prediction.trace_id.hex() == TRACE
    assert call.parent_span_id.hex() == PARENT
    assert prediction.parent_span_id == call.span_id
    assert (call.kind, prediction.kind) == (call.SPAN_KIND_SERVER, call.SPAN_KIND_INTERNAL)
    assert attributes(call) == {
        "rpc.system.name": "grpc",
        "rpc.method": f"{METHOD}/Predict",
        "rpc.response.status_code": "OK",
    }
    told = attributes(prediction)
    assert told.pop("lpc.tokens") in range(3, 513)
    assert told == {
        "lpc.input": "chat",
        "lpc.turn_count": 2,
        "lpc.queue_us": answer.timing.queue_us,
        "lpc.tokenize_us": answer.timing.tokenize_us,
        "lpc.infer_us": answer.timing.infer_us,
        "lpc.model_version": "v1",
        "rpc.response.status_code": "OK",
    }
    (resource,) = [r.resource for request in collector.requests[:1] for r in request.resource_spans]
    assert {pair.key: pair.value.string_value for pair in resource.attributes}["service.name"] == "lpc-predictor"


async def test_errors_and_cancelled_calls_have_their_status(tiny_models: Path) -> None:
    began, gone = threading.Event(), threading.Event()

    class Slow(RequestParser):
        def parse(self, conversation: pb.Conversation, window: int) -> UserTurns:
            if conversation.HasField("chat"):
                began.set()
                gone.wait(60)
            return super().parse(conversation, window)

    with Collector() as collector:
        async with traced(tiny_models, collector.endpoint, Parts(parser=Slow), max_queue_items=1) as (stub, _):
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Predict(one(pb.Conversation()))
            call = stub.Predict(one(chat("hello")))
            await eventually(began.is_set)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            gone.set()
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.PredictBatch(pb.PredictBatchRequest(conversations=[chat("hello")] * 2))
        calls = [span for span in collector.spans if span.name != "predict"]
    assert {attributes(span)["rpc.response.status_code"] for span in calls} == {
        "INVALID_ARGUMENT",
        "CANCELLED",
        "RESOURCE_EXHAUSTED",
    }
    assert {span.status.code for span in calls} == {calls[0].status.STATUS_CODE_ERROR}


@pytest.mark.parametrize(
    ("sampler", "argument", "flags", "spans"),
    [
        ("always_off", "", None, 0),
        ("traceidratio", "0", None, 0),
        ("parentbased_traceidratio", "0", "01", 2),
        ("parentbased_always_on", "", "00", 0),
    ],
)
async def test_the_standard_variables_choose_what_is_sampled(
    tiny_models: Path, monkeypatch: pytest.MonkeyPatch, sampler: str, argument: str, flags: str | None, spans: int
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    metadata = (("traceparent", f"00-{TRACE}-{PARENT}-{flags}"),) if flags else ()
    with Collector() as collector:
        async with traced(tiny_models, collector.endpoint) as (stub, _):
            await stub.Predict(one(chat("hello")), metadata=metadata)
    assert len(collector.spans) == spans


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """Accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def nobody() -> Iterator[str]:
    yield f"http://127.0.0.1:{free_port()}"


@pytest.mark.parametrize("collector", [nobody, black_hole])
async def test_a_collector_that_is_down_or_silent_loses_only_spans(
    tiny_models: Path, monkeypatch: pytest.MonkeyPatch, collector: "type[contextlib.AbstractContextManager[str]]"
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "300")  # seconds that an exporter retries
    with collector() as endpoint:
        async with contextlib.AsyncExitStack() as stack:
            stub, _ = await stack.enter_async_context(traced(tiny_models, endpoint))
            for _ in range(20):
                assert (await stub.Predict(one(chat("hello")), timeout=30)).prediction.probability > 0
            await asyncio.wait_for(stack.aclose(), 100)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "by OTLP over gRPC only"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "brotli", "OTEL_EXPORTER_OTLP_COMPRESSION"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "soon"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100000", "max_export_batch_size"),
    ],
)
async def test_a_wrong_variable_is_one_clear_error(
    tiny_models: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(StartError, match=why):
        async with traced(tiny_models, "http://127.0.0.1:4317"):
            pass


async def test_log_lines_of_a_call_name_its_trace(tiny_models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("predictor_service.rpc.statuses")
    logger.addHandler(handler)

    class Choking(RequestParser):
        def parse(self, conversation: pb.Conversation, window: int) -> UserTurns:
            raise ValueError

    try:
        with Collector() as collector:
            async with traced(tiny_models, collector.endpoint, Parts(parser=Choking)) as (stub, _):
                with pytest.raises(grpc.aio.AioRpcError):
                    await stub.Predict(one(chat("hello")), metadata=SAMPLED)
            (call,) = [span for span in collector.spans if span.name != "predict"]
    finally:
        logger.removeHandler(handler)
    line = json.loads(capsys.readouterr().out)
    assert line["message"].startswith("bug in Predict: please report these lines\nbuiltins.ValueError")
    assert (line["trace_id"], line["span_id"]) == (TRACE, call.span_id.hex())
