"""The `lpc` command. Each of its commands is a module of this package.

A command imports its dependencies when it runs, because the base install (the client) has few of them.
"""

import os
import re
import signal
import threading
import traceback
from collections.abc import Callable
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from lpc.distribution import NAME, install
from lpc_cli import lmcache, models
from lpc_cli.caches import cache
from lpc_cli.caches.calibrate import calibrate
from lpc_cli.caches.gateway import gateway
from lpc_cli.caches.warm import warm as warm_cache
from lpc_cli.demo import demo
from lpc_cli.doctor import doctor
from lpc_cli.embed import embed
from lpc_cli.evaluate import evaluate
from lpc_cli.export import export
from lpc_cli.options import examples
from lpc_cli.outcome import end_with, fail, note
from lpc_cli.predict import predict
from lpc_cli.report import report
from lpc_cli.secrets import secrets
from lpc_cli.serve import serve
from lpc_cli.simulate import simulate
from lpc_cli.tiny_model import tiny_model
from lpc_cli.train import train
from lpc_cli.warm import warm
from lpc_cli.why import why

INTERRUPTED: Final = 130
TERMINATED: Final = 143
ENDED: Final[dict[object, str]] = {INTERRUPTED: "interrupted", TERMINATED: "terminated"}
"""Exit codes of commands that a signal ended, in words."""
EXTRAS: Final = ("tls", "server", "sim", "picture", "cache", "lmcache", "train")
"""The first that contains a missing package is recommended, if that of the command does not contain it."""
NEEDS: Final = {
    **dict.fromkeys(("serve", "export", "models"), "server"),
    **dict.fromkeys(("gateway", "cache"), "cache"),
    **dict.fromkeys(("simulate", "why"), "sim"),
    **dict.fromkeys(("embed", "train", "evaluate"), "train"),
    "secrets": "tls",
    "demo": "demo",
    "lmcache": "lmcache",
}
"""Extras by command. The others need only the base."""
DISTRIBUTIONS: Final = {
    "google": "protobuf",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "sklearn": "scikit-learn",
}
"""Distributions whose import name differs."""
_REQUIREMENT: Final = re.compile(r"""([A-Za-z0-9_.-]+)(?:\[([a-z,]+)\])?[^;]*(?:;.*?(?:extra == ["']([a-z-]+)["'])?)?""")


class Commands(TyperGroup):
    """All commands. An error prints one line, after its traceback with --debug."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            # Typer's own: usage errors, exit codes, an aborted prompt.
            if hasattr(error, "exit_code") or isinstance(error, (typer.Abort, EOFError)):
                raise
            if ctx.params["debug"]:
                traceback.print_exc()
            if isinstance(error, ModuleNotFoundError):
                advice = advice_for(error.name or "that it names", ctx.invoked_subcommand)
                fail(f"this command needs the package {error.name}: {advice}")
            end_with(error)


app = typer.Typer(cls=Commands, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"{NAME} {version(NAME)}")
        raise typer.Exit


@app.callback()
def lpc(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks, which may contain text of conversations.")] = False,
) -> None:
    """Learned prefix caching for LLM engines."""


COMMANDS: Final[dict[Callable[..., None], tuple[str, ...]]] = {
    serve: ("lpc serve", "lpc serve --port 50061 --metrics-port 9091", "LPC_REDIS_URL=redis://127.0.0.1:6379/0 lpc serve"),
    gateway: ("lpc gateway --engines http://127.0.0.1:8000", "lpc gateway --no-response-cache --port 8081"),
    secrets: ("lpc secrets lpc-secrets --client app",),
    demo: ("lpc demo",),
    tiny_model: ("lpc tiny-model my-model",),
    predict: ("echo 'How do I sort a list in Rust?' | lpc predict", "lpc predict chats.jsonl --json"),
    doctor: ("lpc doctor", "lpc doctor --engine http://127.0.0.1:8000"),
    report: ("lpc report --engine http://127.0.0.1:8000", "lpc report --prometheus http://127.0.0.1:9090 --hours 24"),
    embed: ("lpc embed", "lpc embed --dataset chat --source requests.jsonl"),
    train: ("lpc train", "lpc train --embeddings data/chat --head head.safetensors", "lpc train --from labels"),
    evaluate: ("lpc evaluate", "lpc evaluate --embeddings data/chat"),
    simulate: (
        "lpc simulate requests.jsonl --cache 160K",
        "zcat requests.jsonl.gz | lpc simulate - --policies lru,plugin --html page.html",
        "lpc simulate requests.jsonl --model Llama-3.1-8B --gpu-gib 12",
    ),
    why: ("lpc why requests.jsonl", "lpc why requests.jsonl --fail-on 5"),
    warm: ("lpc warm state/prefixes-0.jsonl", "lpc warm state/prefixes-0.jsonl --engine http://127.0.0.1:8001 --rate 2"),
    export: ("lpc export", "lpc export requests.jsonl --anonymous --to trace.jsonl"),
}
"""Each with examples."""
for command, lines in COMMANDS.items():
    app.command(epilog=examples(*lines))(command)
cache.app.command("calibrate", epilog=examples("lpc cache calibrate --pairs pairs.jsonl --evidence evidence.json"))(calibrate)
cache.app.command("warm", epilog=examples("lpc cache warm bodies.jsonl --token-file token", "lpc cache warm --yesterday"))(
    warm_cache
)
app.add_typer(cache.app, name="cache")
app.add_typer(lmcache.app, name="lmcache")
app.add_typer(models.app, name="models")


def advice_for(package: str, command: str | None = None) -> str:
    """Return what installs a missing package: an extra of the project, or its own name.

    A package that is in no extra is a dependency of one that is in the command's extra.
    """
    top = package.partition(".")[0]
    name = _normal(DISTRIBUTIONS.get(top, top))
    extras = _extras()
    found = [extra for extra in EXTRAS if name in extras[extra]]
    own = NEEDS.get(command or "")
    if own is not None and (name in extras[own] or not found):
        return install(own)
    if found:
        return install(found[0])
    return install() if name in extras[""] else f"pip install {DISTRIBUTIONS.get(top, top)}"


def _extras() -> dict[str, set[str]]:
    """Return the packages of each extra, with those of the extras in it, and of the base under an empty name."""
    from importlib.metadata import requires

    direct: dict[str, set[str]] = {"": set()}
    inside: dict[str, set[str]] = {}
    for line in requires(NAME) or ():
        found = _REQUIREMENT.fullmatch(line)
        assert found is not None
        package, extras, extra = _normal(found[1]), found[2], found[3] or ""
        if package == NAME:
            inside.setdefault(extra, set()).update(extras.split(","))
        else:
            direct.setdefault(extra, set()).add(package)

    def whole(extra: str) -> set[str]:
        return direct.get(extra, set()).union(*map(whole, inside.get(extra, ())))

    return {extra: whole(extra) for extra in {*direct, *inside}}


def _normal(name: str) -> str:
    return re.sub(r"[._-]+", "-", name.lower())


def main(on_ctrl_c: object = signal.default_int_handler) -> None:
    """Run the command. Ctrl-C exits with 130 and SIGTERM with 143, after the command has removed what it began.

    Args:
        on_ctrl_c: handler that this replaces; another one stays.
    """
    for number, default in ((signal.SIGINT, on_ctrl_c), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) == default:  # else it is ignored, as by nohup
            signal.signal(number, _end)
    # Otherwise transformers recommends installing PyTorch when it is imported.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        app()
    except SystemExit as end:
        if end.code in ENDED:
            note(ENDED[end.code])
        raise


def _end(number: int, _frame: object) -> NoReturn:
    """End the command, which first removes what it began. The same signal again ends the process at once."""
    signal.signal(number, signal.SIG_DFL)
    threading.excepthook = lambda _: None  # threads of libraries may miss what is gone
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(TERMINATED)
