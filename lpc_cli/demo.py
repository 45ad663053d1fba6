"""`lpc demo`, the command of `make run`: a model, a small simulation, and a running sidecar."""

import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lpc.distribution import install
from lpc.wire.addresses import with_port
from lpc_cli.outcome import writable
from lpc_cli.settings import client_settings, service_settings

if TYPE_CHECKING:
    from rich.console import Console

    from eviction_client.settings import ClientSettings
    from lpc.model.recalibration import Platt
    from predictor_service.process import Addresses
    from predictor_service.settings import ServiceSettings

PICTURE = Path("out/gain.png")
"""The default, whose folder is created."""
TIMEOUT_S = 60.0
"""Timeout of each prediction."""
SHARES = (0.01, 0.02, 0.03, 0.05, 0.08)
"""Sizes of the simulated cache, shares of the working set."""
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


def demo(
    picture: Annotated[Path, typer.Option(help="PNG to write: hit rates of the simulation.")] = PICTURE,
) -> None:
    """Export the model, simulate a small cache with and without the plug-in, start the sidecar and score conversations."""
    if picture != PICTURE:
        writable(picture)
    settings = service_settings(None, log_format="text")
    _run(settings, picture)


def _run(settings: "ServiceSettings", picture: Path) -> None:
    import asyncio

    from lpc.model.artifact import read_manifest
    from lpc.model.recalibration import Platt
    from lpc.wire.terminal import console
    from lpc_apps.training.export import export  # libraries that take a second to load

    screen = console()
    with screen.status("looking for the model artefact"):
        folder = export(settings.models, name=settings.model)
    screen.print(f"model artefact: {folder}")
    try:
        _show_gain(picture, screen)
    except ModuleNotFoundError as error:
        screen.print(f"no simulated cache: {error.name} is not installed ({install('demo')})")
    found = read_manifest(folder).head.get("corrections", {})
    corrections = {name.split()[-1].partition(".")[0]: Platt(*correction) for name, correction in found.items()}
    asyncio.run(_serve(settings, corrections, screen))


def _show_gain(picture: Path, screen: "Console") -> None:
    """Simulate an hour of chat with a small cache under LRU and the plug-in; print and draw the hit rates."""
    from rich.table import Table
    from rich.text import Text

    from lpc_apps.simulator.picture import draw_hit_rates, write_png
    from lpc_apps.simulator.run import SimulationRun, WorkloadSpec, sweep
    from lpc_apps.simulator.summary import BASELINE, OURS, derived, nearest, pairs

    runs = [
        SimulationRun(WorkloadSpec(workload="production"), policy, share) for share in SHARES for policy in (BASELINE, OURS)
    ]
    summary = derived([{**row, "by_fraction": True} for row in sweep(runs)])
    table = Table(
        "cache, of the working set",
        "LRU",
        "this project",
        "more hits",
        title="Prompt tokens served from the cache: one simulated hour of chat, modelled on a real trace",
    )
    choices = pairs(summary)
    for lru, ours in choices:
        more = f"{round(100 * (ours['hit_rate'] / lru['hit_rate'] - 1)):+d}%"
        table.add_row(
            f"{lru['capacity_fraction']:.0%}", f"{lru['hit_rate']:.1%}", Text(f"{ours['hit_rate']:.1%}", "bold"), more
        )
    screen.print(table)
    write_png(draw_hit_rates(summary, nearest(choices, None)), picture)
    screen.print(f"picture: {picture}")


async def _serve(settings: "ServiceSettings", corrections: "Mapping[str, Platt]", screen: "Console") -> None:
    import asyncio

    from predictor_service.server import running

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(settings) as addresses:
        address = address_of(addresses)
        await asyncio.to_thread(score, client_settings(predictor_address=address), corrections, screen)
        _how_to_call(addresses, address, screen)
        await stop.wait()
        screen.print("draining")
    screen.print("stopped")


def address_of(addresses: "Addresses") -> str:
    """Return the Unix socket if there is one, because it needs neither TLS nor a token; otherwise host:port."""
    if addresses.unix_socket is not None:
        return f"unix://{addresses.unix_socket}"
    return with_port(addresses.host, addresses.port)


def score(settings: "ClientSettings", corrections: "Mapping[str, Platt]", screen: "Console") -> None:
    """Ask for the predictions of the example conversations, and print them."""
    from rich.table import Table

    from lpc.model.probability import logit
    from lpc.v1 import predictor_pb2 as pb
    from lpc_cli.predict import asking

    table = Table(
        "conversation",
        "user turns",
        "probability that it continues",
        *(f"users of {name}" for name in corrections),
        "tokenise + infer",
    )
    chats = [
        pb.ChatMessages(messages=[pb.ChatMessage(role=role, content=content) for role, content in messages])
        for messages in SAMPLES.values()
    ]
    with asking(settings, TIMEOUT_S) as ask:
        answers = [ask(pb.Conversation(chat=chat)) for chat in chats]
    for name, answer in zip(SAMPLES, answers, strict=True):
        spent = (answer.timing.tokenize_us + answer.timing.infer_us) / 1000
        learnt = [correction.probability(logit(answer.probability)) for correction in corrections.values()]
        table.add_row(name, str(answer.turn_count), *(f"{p:.3f}" for p in (answer.probability, *learnt)), f"{spent:.1f} ms")
    screen.print(table)
    screen.print(
        "Text says little about who returns; users differ more. The probability is for users of unknown habits. Once a "
        "sidecar has seen a hundred times whether a conversation went on, it corrects this to its own users: the next columns "
        "show the result for those of the training data. A sidecar also learns return times from its own traffic; the gain "
        "above comes from that alone."
    )


def _how_to_call(addresses: "Addresses", address: str, screen: "Console") -> None:
    screen.print(f"gRPC     {with_port(addresses.host, addresses.port)}")
    if addresses.unix_socket is not None:
        screen.print(f"         unix://{addresses.unix_socket}")
    if addresses.metrics_port is not None:
        screen.print(f"metrics  http://{with_port(addresses.metrics_host, addresses.metrics_port)}/metrics")
    # Not wrapped, so that it can be copied.
    question = "echo 'How do I sort a list in Rust?'"
    screen.print(f"try      {question} | {_program()} predict --address {address}", highlight=False, soft_wrap=True)
    screen.print("Ctrl-C drains and stops")


def _program() -> str:
    """Return the command that runs this installation of `lpc` from the same folder."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m lpc_cli"
    found = shutil.which(called.name)
    if found is not None and Path(found).resolve() == called.resolve():
        return called.name
    try:
        return shlex.quote(str(called.resolve().relative_to(Path.cwd())))
    except ValueError:
        return shlex.quote(str(called.resolve()))
