"""`make run`: from nothing to a serving sidecar with three scored conversations on the screen."""

import asyncio
import signal

import grpc
import grpc.aio
from rich.console import Console
from rich.table import Table

from lpc.console import console
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from predictor_service.config import ServiceSettings
from predictor_service.server import Addresses, running

SAMPLES = {
    "a question with an answer": [("user", "What is the capital of Australia?")],
    "work in progress": [
        ("user", "Write a Python function that parses an Apache access log line."),
        ("assistant", "def parse(line): ..."),
        ("user", "Now add support for the combined format."),
        ("assistant", "def parse(line): ..."),
        ("user", "It fails on lines with IPv6 addresses, here is the traceback. Please fix it"),
    ],
    "a farewell": [
        ("user", "Can you proofread this e-mail to my landlord?"),
        ("assistant", "Dear Ms Miller, ..."),
        ("user", "Perfect, thank you very much, that is all!"),
    ],
}


def run(settings: ServiceSettings) -> None:
    """Export the default artefact if it is missing, then serve and score until SIGINT or SIGTERM.

    Raises:
        ServiceError, StartError, ExportError and what the export raises.
    """
    from training.export import export  # torch takes seconds to load

    screen = console()
    with screen.status("looking for the model artefact"):
        folder = export(settings.models, name=settings.model)
    screen.print(f"model artefact: {folder}")
    asyncio.run(_serve(settings, screen))


async def _serve(settings: ServiceSettings, screen: Console) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(settings) as addresses:
        await _score(f"{addresses.host}:{addresses.port}", screen)
        _how_to_call(addresses, screen)
        await stop.wait()
        screen.print("draining")
    screen.print("stopped")


async def _score(address: str, screen: Console) -> None:
    table = Table("conversation", "user turns", "probability that it continues", "tokenise + infer")
    async with grpc.aio.insecure_channel(address) as channel:
        stub = rpc.ContinuationPredictorStub(channel)
        for name, messages in SAMPLES.items():
            chat = pb.ChatMessages(messages=[pb.ChatMessage(role=role, content=content) for role, content in messages])
            response = await stub.Predict(pb.PredictRequest(conversation=pb.Conversation(chat=chat)))
            answer = response.prediction
            spent = (answer.timing.tokenize_us + answer.timing.infer_us) / 1000
            table.add_row(name, str(answer.turn_count), f"{answer.probability:.3f}", f"{spent:.1f} ms")
    screen.print(table)


def _how_to_call(addresses: Addresses, screen: Console) -> None:
    screen.print(f"gRPC     {addresses.host}:{addresses.port}")
    if addresses.unix_socket is not None:
        screen.print(f"         unix://{addresses.unix_socket}")
    if addresses.metrics_port is not None:
        screen.print(f"metrics  http://{addresses.metrics_host}:{addresses.metrics_port}/metrics")
    screen.print("try      echo 'How do I sort a list in Rust?' | .venv/bin/lpc predict")
    screen.print("Ctrl-C drains and stops")
