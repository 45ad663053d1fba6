"""`python -m benchmarks NAME`, run from the root of the repository: measurements against a plain alternative."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from lpc.errors import LpcError, UsageError
from lpc_apps.logs.formats import FormatName
from lpc_cli.options import ModelName, Models, Output, Quick
from lpc_cli.outcome import end_with, report

app = typer.Typer(
    help="Measurements against a plain alternative.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


STORED = Path("out/rules")
"""Folder of the finished runs of `rules-...`."""
OwnLog = Annotated[Path | None, typer.Option("--trace", help="A log with times. [default: a generated hour of chat]")]
Format = Annotated[FormatName, typer.Option("--format", help="Format of the log.")]


@app.command("predict")
def bench_predict(
    quick: Quick = False,
    output: Output = None,
    models: Models = Path("models"),
    model: ModelName = "default",
    against: Annotated[str | None, typer.Option(help="Another model, such as e5-small, measured in the same way.")] = None,
) -> None:
    """The sidecar over gRPC against the bare ONNX Runtime session, on the same conversations."""
    from benchmarks import predict as predict_bench

    report(lambda: predict_bench.run(models, model, against=against, quick=quick), output)


@app.command("engine")
def bench_engine(
    trace: Annotated[Path | None, typer.Option(help="A log with times: measure hits instead of times.")] = None,
    trace_format: Format = "mooncake",
    closed: Annotated[
        bool, typer.Option("--closed", help="Serve agents in a closed loop: the sessions of a log, or of workload cliff.")
    ] = False,
    sessions: Annotated[int | None, typer.Option(min=2, help="Concurrent sessions, with --closed. [default: 96]")] = None,
    requests: Annotated[int | None, typer.Option(min=20, help="Answers of each run, with --closed. [default: 800]")] = None,
    prefill: Annotated[
        float | None, typer.Option(min=1, help="Prompt tokens per virtual second, with --closed. [default: 30,000]")
    ] = None,
    live: Annotated[
        str,
        typer.Option(help="Contexts of the sessions, multiples of the cache, with commas, with --closed. [default: 0.5,1,2]"),
    ] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer requests, one capacity.")] = False,
    output: Output = None,
    models: Models = Path("models"),
    model: ModelName = "default",
) -> None:
    """The plug-in in real vLLM (`make engine`) against stock vLLM: time of scheduler steps, frees and admissions.

    With a trace: hits at 2, 5 and 8% of its working set, while the sidecar learns.
    With --closed: throughput and latency of agents whose contexts fill half of the cache, all of it, and twice its size.
    """
    from benchmarks import engine, engine_closed, engine_trace

    if closed:
        report(
            lambda: engine_closed.run(
                *(trace, trace_format, models, model),
                at_once=sessions,
                requests=requests,
                prefill_tokens_s=prefill or engine_closed.PREFILL_TOKENS_S,
                quick=quick,
                live=_multiples(live),
            ),
            output,
        )
        return
    if live or any(option is not None for option in (sessions, requests, prefill)):
        raise UsageError("--sessions, --requests, --prefill and --live need --closed")
    if trace is None:
        report(lambda: engine.run(models, model, quick=quick), output)
    else:
        report(lambda: engine_trace.run(trace, trace_format, models, model, quick=quick), output)


@app.command("tiers")
def bench_tiers(
    trace: OwnLog = None,
    trace_format: Format = "mooncake",
    pool: Annotated[
        float, typer.Option(min=0.001, max=1, help="Size of the GPU's pool, share of the log's working set.")
    ] = 0.01,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of requests to replay. [default: all]")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One size of the tier, a pool of 3%.")] = False,
    output: Output = None,
    models: Models = Path("models"),
    model: ModelName = "default",
) -> None:
    """Real vLLM (`make engine`) with its CPU offload tier: LRU in both, ours in the GPU's pool, ours in both, an oracle."""
    from benchmarks import tiers

    report(lambda: tiers.run(trace, trace_format, models, model, pool=pool, limit=limit, quick=quick), output)


@app.command("loads")
def bench_loads(
    trace: Annotated[Path, typer.Option("--trace", help="A log with times.")],
    trace_format: Format = "mooncake",
    pool: Annotated[float, typer.Option(min=0.001, max=1, help="Size of the pool, share of the log's working set.")] = 0.02,
    prefill: Annotated[str, typer.Option(help="Prompt tokens computed per second, numbers with commas.")] = "20000,40000,80000",
    rates: Annotated[str, typer.Option(help="GB/s of the tier, numbers with commas.")] = "2,5,10,25,50",
    seed: Annotated[int, typer.Option(help="Of agent sessions.")] = 0,
    hindsight: Annotated[float, typer.Option(help="Seconds to search for the best choices at each setting.")] = 0.0,
    output: Output = None,
) -> None:
    """Load or compute, simulated: the time to the first token with a CPU tier that is not used, always, or if it pays."""
    from benchmarks import loads

    speeds, gb_s = ([float(each) for each in text.split(",")] for text in (prefill, rates))
    report(lambda: loads.run(trace, trace_format, pool=pool, prefill=speeds, rates=gb_s, seed=seed, search_s=hindsight), output)


@app.command("prefetch")
def bench_prefetch(
    counted: Annotated[bool, typer.Option("--counted", help="On a virtual clock, also loading ahead of the return.")] = False,
    quick: Quick = False,
    output: Output = None,
) -> None:
    """LMCache (`make lmcache`) loads prompts while they wait: vLLM with few seats, with and without the controller.

    In real time: 40 minutes, of which the processors are idle for more than half.
    """
    from benchmarks import prefetch, prefetch_counted

    report(lambda: prefetch_counted.run(quick=quick) if counted else prefetch.run(quick=quick), output)


@app.command("sglang")
def bench_sglang(
    trace: OwnLog = None,
    trace_format: Format = "mooncake",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer requests, one capacity.")] = False,
    output: Output = None,
    models: Models = Path("models"),
    model: ModelName = "default",
) -> None:
    """The plug-in in SGLang's real radix cache (`make sglang`) against its own LRU and an oracle: hits on a log with times."""
    from benchmarks import sglang

    report(lambda: sglang.run(trace, trace_format, models, model, quick=quick), output)


@app.command("fleet")
def bench_fleet(
    archive: Annotated[Path, typer.Option(help="Recorded sessions of agents.")] = Path("data/agent_sessions_2026.tar.gz"),
    engines: Annotated[int, typer.Option(min=1, help="Number of engines, each a process.")] = 4,
    sessions: Annotated[int, typer.Option(min=1, help="Concurrent sessions of all engines.")] = 200,
    requests: Annotated[int, typer.Option(min=20, help="Answers of each run, of which the last three quarters count.")] = 3000,
    capacity: Annotated[str, typer.Option(help="Tokens of each engine's cache.")] = "2M",
    prefill_rate: Annotated[float, typer.Option(min=1, help="Prompt tokens per second of an engine.")] = 30_000.0,
    output_token_ms: Annotated[float, typer.Option(min=0.1, help="Milliseconds per token of a reply.")] = 12.0,
    scale: Annotated[int, typer.Option(min=1, help="Tokens that a word of the prompts stands for.")] = 32,
    time_scale: Annotated[float, typer.Option(min=0.01, help="Seconds that a second of the log lasts.")] = 0.2,
    seeds: Annotated[str, typer.Option(help="Seeds of the order of the sessions.")] = "0",
    routers: Annotated[
        str,
        typer.Option(
            help="Names with commas: hash, cost, cost+queue; of others smg, smg-sticky, round-robin, sglang-router, "
            "vllm-router, vllm-router-hash, vllm-router-events, vllm-router-events-sticky."
        ),
    ] = "hash,cost,cost+queue",
    gateways: Annotated[
        int,
        typer.Option(
            min=1, help="Processes of each router, between which turns alternate; this project's without and with a Redis."
        ),
    ] = 1,
    schedules: Annotated[
        str,
        typer.Option(help="Engines: vLLM stock or learned (keep, warm first), sglang (first come, first served), sglang-lpm."),
    ] = "stock",
    unnamed: Annotated[bool, typer.Option("--unnamed", help="Clients do not name their session.")] = False,
    output: Output = None,
) -> None:
    """Routers before engines without a model, vLLM's scheduler (`make engine`) or SGLang's cache, over HTTP and in scaled time.

    Recorded agents in a closed loop: hits, prompt tokens/s, p99 latency, turns that stay at their engine, imbalance.
    """
    from benchmarks import fleet
    from benchmarks.fleet_load import Load
    from lpc_apps.simulator.amounts import in_tokens, parse_capacity

    load = Load(
        *(engines, sessions, requests, in_tokens(parse_capacity(capacity), 0), prefill_rate, output_token_ms),
        scale=scale,
        time_scale=time_scale,
        named=not unnamed,
    )
    report(
        lambda: fleet.run(
            *(archive, load),
            routers=routers.split(","),
            schedules=schedules.split(","),
            seeds=_seeds(seeds),
            gateways=gateways,
        ),
        output,
    )


@app.command("load")
def bench_load(
    minutes: Annotated[float, typer.Option(help="Duration of the load, minutes.")] = 10.0,
    clients: Annotated[int, typer.Option(help="Number of clients, each with its own connection.")] = 64,
    factor: Annotated[float, typer.Option(help="Load, as a multiple of saturation.")] = 1.5,
    output: Output = None,
    models: Models = Path("models"),
    model: ModelName = "default",
) -> None:
    """The sidecar under overload: it must refuse requests and not collapse. Exits with 1 if it collapses."""
    from benchmarks import load

    figures = report(lambda: load.run(models, model, minutes=minutes, clients=clients, factor=factor), output)
    raise SystemExit(not figures["passed"])


@app.command("growth")
def bench_growth(
    engines: Annotated[str, typer.Option(help="Numbers of engines, with commas.")] = "1,4,16,64",
    rates: Annotated[str, typer.Option(help="Requests per second of each engine, with commas.")] = "1,10,100",
    most: Annotated[float, typer.Option(min=0.1, help="Leave out more requests per second of all engines.")] = 1000.0,
    seconds: Annotated[float, typer.Option(min=1, help="Measured seconds of each load.")] = 15.0,
    processes: Annotated[int, typer.Option(min=1, help="Processes of the engines' clients, at most.")] = 4,
    cluster: Annotated[bool, typer.Option("--cluster", help="A Redis Cluster of three primaries.")] = False,
    rule: Annotated[
        str, typer.Option(help="Rule of the plug-ins: under lpc they also ask for their free blocks again.")
    ] = "auto",
    output: Output = None,
    models: Models = Path("models"),
    model: ModelName = "default",
) -> None:
    """One sidecar and one Redis under more and more engines: predictions, Redis commands, bytes, memory, processor time.

    The engines are the plug-in's code without an engine around it, and share this machine's processors.
    """
    from benchmarks import growth

    counts, each = _numbers(engines), [float(rate) for rate in _numbers(rates)]
    report(
        lambda: growth.run(
            *(models, model),
            engines=counts,
            rates=each,
            most=most,
            seconds=seconds,
            processes=processes,
            cluster=cluster,
            rule=rule,
        ),
        output,
    )


@app.command("gateway")
def bench_gateway(
    quick: Quick = False, output: Output = None, models: Models = Path("models"), model: ModelName = "e5-small"
) -> None:
    """Latency that the gateway adds: a miss, a hit and a silent sidecar against the same proxy without a cache."""
    from benchmarks import gateway

    report(lambda: gateway.run(models, model, quick=quick), output)


@app.command("costs")
def bench_costs(quick: Quick = False, output: Output = None) -> None:
    """What a hit saves in real vLLM (`make engine`) on a CPU: time to the first token, and prompt tokens/s by hit rate."""
    from benchmarks import costs

    report(lambda: costs.run(quick=quick), output)


@app.command("choice")
def bench_choice(
    conversations: Annotated[int, typer.Option(min=1, help="Live conversations.")] = 10_000,
    engines: Annotated[int, typer.Option(min=1, help="Engines behind the gateway.")] = 64,
    requests: Annotated[int, typer.Option(min=100, help="Measured requests of each router.")] = 20_000,
    output: Output = None,
) -> None:
    """Time that the gateway's choice of an engine and its queue add to a request that is not held, and their memory."""
    from benchmarks import choice

    report(lambda: choice.run(conversations=conversations, engines=engines, requests=requests), output)


@app.command("repair")
def bench_repair(quick: Quick = False, output: Output = None) -> None:
    """Time that repair rules add to a request in the gateway."""
    from benchmarks import repair

    report(lambda: repair.run(quick=quick), output)


@app.command("as-read")
def bench_as_read(quick: Quick = False, output: Output = None) -> None:
    """Time that the gateway spends on what engines read of a request, next to reading its JSON."""
    from benchmarks import as_read

    report(lambda: as_read.run(quick=quick), output)


@app.command("gpu")
def bench_gpu(
    device: Annotated[Literal["cuda", "cpu"], typer.Option(help="cpu: the same steps on a small scale, to try them.")] = "cuda",
    minutes: Annotated[float, typer.Option(min=0, help="Time for all steps, minutes.")] = 20.0,
    engine_model: Annotated[
        Path | None,
        typer.Option(help="Folder of the engine's model. [default: from the Hugging Face cache, or made]"),
    ] = None,
    engine_python: Annotated[Path | None, typer.Option(help="Python that has vLLM. [default: searched]")] = None,
    sidecar_python: Annotated[Path | None, typer.Option(help="Python with extra gpu. [default: searched]")] = None,
    output: Output = None,
) -> None:
    """Predictions, image, engine and AIPerf's agentic-code on an NVIDIA GPU, with time limits; JSON to standard output.

    What cannot run is skipped with its reason. Exits with 1 if a step failed.
    """
    from benchmarks import gpu

    if engine_model is not None and not (engine_model / "config.json").exists():
        raise UsageError(f"{engine_model} has no config.json: name the folder of a model")
    bench = gpu.Bench(device, gpu.FOLDER, engine_model, engine_python, sidecar_python)
    figures = report(lambda: gpu.run(bench, minutes), output, as_json=True)
    raise SystemExit(any(step["state"] == "failed" for step in figures["steps"]))


@app.command("standard")
def bench_standard(
    parts: Annotated[
        str,
        typer.Option(help="Names with commas: simulated; engine, real vLLM in virtual time; client, AIPerf and vllm serve."),
    ] = "simulated,engine,client",
    seeds: Annotated[str, typer.Option(help="Seeds of AIPerf and of the order of the sessions.")] = "42,1201,1202,1203,1204",
    traces: Annotated[
        list[Path] | None,
        typer.Option("--traces", help="Archive of recorded agents, such as the traces of kv-cache-tester; repeatable."),
    ] = None,
    configs: Annotated[
        str, typer.Option(help="Configs of `aiperf synthesize`, with commas: built-in, default, or a path.")
    ] = "built-in",
    live: Annotated[str, typer.Option(help="Contexts of the sessions at a time, multiples of the cache, with commas.")] = "2,4",
    sessions: Annotated[int, typer.Option(min=2, help="Sessions at a time, simulated.")] = 64,
    requests: Annotated[int, typer.Option(min=20, help="Answers of each run of part engine.")] = 3200,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes at once.")] = 1,
    resume: Annotated[Path, typer.Option("--resume", help="File of finished simulations, which are not repeated.")] = Path(
        "out/standard/simulated.jsonl"
    ),
    output: Output = None,
    models: Models = Path("models"),
    model: ModelName = "default",
) -> None:
    """Workloads of other projects in a closed loop: AIPerf's agentic-code (`make aiperf`), and recorded agents.

    LRU, classic rules, and the plug-in with and without a sidecar, first come and warm first.
    """
    from benchmarks import standard

    report(
        lambda: standard.run(
            standard.FOLDER,
            _seeds(seeds),
            parts=parts.split(","),
            recorded=traces or (),
            configs=configs.split(","),
            live=_multiples(live),
            at_once=sessions,
            requests=requests,
            models=models,
            model=model,
            jobs=jobs,
            stored=resume,
        ),
        output,
    )


SimulatorJobs = Annotated[int, typer.Option("--jobs", min=1, help="Processes at once.")]
Stored = Annotated[
    Path | None,
    typer.Option("--resume", help="File of finished runs, which are not repeated. [default: out/rules/COMMAND.jsonl]"),
]


@app.command("prior")
def bench_prior(logs: Annotated[list[str], typer.Argument(help="Open logs, as FORMAT:FILE.")], output: Output = None) -> None:
    """Learn the shipped prior from open logs, and write eviction_client/policy/prior.json."""
    from benchmarks import prior

    report(lambda: prior.run(logs), output)


@app.command("peers")
def bench_peers(trace: Annotated[Path, typer.Argument(help="A log in Mooncake's format.")], output: Output = None) -> None:
    """`lpc` beside other programs that judge a log's prefix reuse, installed from PyPI into temporary environments."""
    from benchmarks import peers

    report(lambda: peers.run(trace), output)


@app.command("speed")
def bench_speed(
    against: Annotated[str, typer.Option(help="Revision of git to compare with.")],
    rows: Annotated[str, typer.Option(help="Names with commas. [default: all]")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each side, of which the least counts.")] = 3,
    copies: Annotated[int, typer.Option(min=1, help="Copies of Mooncake's trace, 12,031 requests, in the long log.")] = 20,
    output: Output = None,
) -> None:
    """Processor time, memory and figures of `lpc simulate` against another revision, both in the same run.

    The logs are those in the folder data; rows whose log is missing are left out. Half an hour on two cores.
    """
    from benchmarks import speed

    names = [name for name in rows.split(",") if name] or list(speed.ROWS)
    report(lambda: speed.run(against, names, rounds=rounds, copies=copies), output)


Questions = Annotated[Path, typer.Argument(help="Folder of public questions; see docs/benchmarks/response-caches.md.")]


@app.command("ranking")
def bench_ranking(
    folder: Questions, output: Output = None, models: Models = Path("models"), model: ModelName = "e5-small"
) -> None:
    """Fit the semantic tier's ranking on public questions, and write response_cache/semantic/ranking.json."""
    from benchmarks import ranking

    report(lambda: ranking.run(folder, models, model), output)


@app.command("semantic")
def bench_semantic(
    folder: Questions,
    streams: Annotated[int, typer.Option(min=1, help="Shuffled streams of each set and condition.")] = 40,
    bound: Annotated[float, typer.Option(min=0.001, max=0.5, help="Bound of wrong answers among those served.")] = 0.05,
    sets: Annotated[str, typer.Option(help="Names with commas. [default: those of the page that the folder has]")] = "",
    page: Annotated[Path | None, typer.Option(help="Folder for semantic.md and semantic.png. [default: not written]")] = None,
    output: Output = None,
    models: Models = Path("models"),
    model: ModelName = "e5-small",
) -> None:
    """The semantic tier on streams of public questions against a fixed cosine threshold: served, and wrong of served."""
    from benchmarks import semantic

    names = [name for name in sets.split(",") if name]
    report(lambda: semantic.run(folder, models, model, streams=streams, bound=bound, sets=names, page=page), output)


@app.command("time-sensitive")
def bench_time_sensitive(folder: Questions, output: Output = None) -> None:
    """Share of public questions that the response caches take for time-sensitive."""
    from benchmarks import time_sensitive

    report(lambda: time_sensitive.run(folder), output)


@app.command("rules-worst")
def bench_rules_worst(
    seeds: Annotated[str, typer.Option(help="Seeds of the workloads.")] = "102,103,104",
    workloads: Annotated[str | None, typer.Option(help="Names with commas. [default: all that can refute the plug-in]")] = None,
    sizes: Annotated[str, typer.Option(help="Tokens or shares of the working set, with commas.")] = "1%,2%,3%,5%,8%,12%,20%",
    page: Annotated[Path | None, typer.Option(help="Folder for workloads.md. [default: not written]")] = None,
    jobs: SimulatorJobs = 2,
    resume: Stored = None,
    output: Output = None,
) -> None:
    """Simulate the plug-in and classic rules on generated workloads at several sizes; compare each single run with LRU.

    Hits are counted after 500 requests. Seven sizes take 75 minutes on two cores for each seed.
    """
    from benchmarks.rules import worst
    from lpc_apps.simulator.amounts import parse_capacity
    from lpc_apps.simulator.workloads import WORKLOADS

    names = list(WORKLOADS) if workloads is None else workloads.split(",")
    stored = resume or STORED / "worst.jsonl"
    written = () if page is None else (page / worst.PAGE,)
    shares = [parse_capacity(part) for part in sizes.split(",")]
    report(lambda: worst.run(names, _seeds(seeds), shares, jobs=jobs, stored=stored, folder=page), output, *written)


@app.command("rules-restart")
def bench_rules_restart(
    logs: Annotated[list[str], typer.Argument(help="Logs with times, or names of generated workloads.")],
    log_format: Format = "mooncake",
    sizes: Annotated[str, typer.Option(help="Shares of the working set, with commas.")] = "2%,5%",
    places: Annotated[str, typer.Option(help="When the engine restarts: shares of the log's time.")] = "30%,50%,70%",
    seed: Annotated[int, typer.Option(help="Seed of generated workloads.")] = 0,
    window: Annotated[float, typer.Option(help="Seconds after the restart that count.")] = 600.0,
    output: Output = None,
) -> None:
    """Simulate an engine's restart with and without what the plug-in had learned."""
    from benchmarks.rules import restart
    from lpc_apps.simulator.amounts import parse_capacity

    of_sizes, of_places = ([float(parse_capacity(part)) for part in text.split(",")] for text in (sizes, places))
    report(lambda: restart.run(logs, log_format, of_sizes, of_places, seed=seed, window_s=window), output)


@app.command("compute")
def bench_compute(
    log: Annotated[Path, typer.Argument(help="A log.")],
    log_format: Format = "mooncake",
    capacity: Annotated[str, typer.Option(help="Tokens or shares of the working set.")] = "2%,5%,8%",
    output: Output = None,
) -> None:
    """Simulate rule `value`, and the same with values weighted by the compute of a block at its depth."""
    from benchmarks import compute
    from lpc_apps.simulator.amounts import parse_capacity

    report(lambda: compute.run(log, log_format, [parse_capacity(part) for part in capacity.split(",")]), output)


@app.command("rules-trace")
def bench_rules_trace(
    trace: Annotated[Path, typer.Argument(help="A log with times.")],
    trace_format: Annotated[FormatName, typer.Option("--format", help="Format of --trace.")] = "mooncake",
    jobs: SimulatorJobs = 2,
    resume: Stored = None,
    output: Output = None,
) -> None:
    """Simulate the plug-in and the classic rules on a log at six sizes, and name the best classic rule of each size.

    Hits are counted from the first request on, and also after half an hour. Three minutes on two cores for Mooncake's trace.
    """
    from benchmarks.rules import trace as trace_rules

    if trace_format == "conversations":
        raise UsageError("conversations have no times to replay: run rules-chat")
    stored = resume or STORED / "trace.jsonl"
    report(lambda: trace_rules.run(trace, trace_format, jobs=jobs, stored=stored), output)


@app.command("rules-short")
def bench_rules_short(
    folder: Annotated[
        Path, typer.Argument(help="Folder of Mooncake's trace, agents' sessions and conversations; missing ones are left out.")
    ],
    starts: Annotated[str, typer.Option(help="First requests of the parts of Mooncake's trace.")] = "0,2000,5000,8000",
    seeds: Annotated[str, typer.Option(help="Seeds of the logs that are drawn.")] = "0",
    workloads: Annotated[str, typer.Option(help="Generated workloads as well, names with commas.")] = "",
    sizes: Annotated[str, typer.Option(help="Shares of the working set.")] = "1%,2%,3%,5%,8%,20%",
    jobs: SimulatorJobs = 1,
    output: Output = None,
) -> None:
    """Simulate the plug-in and classic rules on logs of 4,000 requests; compare each single run with LRU.

    Hits are counted after 500 requests, and from the first request on.
    """
    from benchmarks.rules import short
    from lpc_apps.simulator.amounts import parse_capacity

    parts = short.parts_of(folder, _numbers(starts), _seeds(seeds), [name for name in workloads.split(",") if name])
    report(lambda: short.run(parts, [parse_capacity(size) for size in sizes.split(",")], jobs=jobs), output)


@app.command("rules-chat")
def bench_rules_chat(
    conversations: Annotated[Path, typer.Argument(help='Conversations without times: {"messages": [...]} per line.')],
    head: Annotated[
        Path | None,
        typer.Option(help="Head of `lpc train`, trained on other conversations: predictions for lpc and the plug-in."),
    ] = None,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Draw only the half that `lpc train` holds out, for a head trained on this file.")
    ] = False,
    seeds: Annotated[str, typer.Option(help="Seeds of the think times and of the order of the conversations.")] = "0,1,2,3",
    jobs: SimulatorJobs = 2,
    resume: Stored = None,
    output: Output = None,
    models: Models = Path("models"),
) -> None:
    """Simulate the plug-in and other policies on conversations, drawn as in the LPC paper, at 20K to 160K tokens.

    On average 200 conversations are active, think times are exponential with a mean of 100 s, and 20 minutes are counted.
    """
    from benchmarks.rules import chat

    if not conversations.exists():
        typer.echo(f"{conversations} is missing: rules-chat is skipped.")
        return
    stored = resume or STORED / "chat.jsonl"
    report(
        lambda: chat.run(conversations, head, _seeds(seeds), held_out=held_out, models=models, jobs=jobs, stored=stored),
        output,
    )


@app.command("paper")
def bench_paper(
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            help="FORMAT:FILE in a format of lpc embed, sharegpt, or sharegpt-segments; repeatable. [default: sharegpt]",
        ),
    ] = None,
    sample: Annotated[
        int, typer.Option(min=0, help="User turns of a random sample of conversations of each data set; 0: all.")
    ] = 12_000,
    seeds: Annotated[str, typer.Option(help="Seeds of splits, heads and think times.")] = "0,1,2,3,4",
    sizes: Annotated[str, typer.Option(help="Tokens of the caches of the figures.")] = "60K,80K,100K,120K,160K",
    figure_seeds: Annotated[str | None, typer.Option(help="Seeds of the figures' runs. [default: those of --seeds]")] = None,
    page: Annotated[Path | None, typer.Option(help="Page whose tables are replaced. [default: printed]")] = None,
    resume: Annotated[Path, typer.Option("--resume", help="Folder of embeddings and finished runs.")] = Path("out/paper"),
    jobs: SimulatorJobs = 1,
    output: Output = None,
    models: Models = Path("models"),
    model: ModelName = "e5-small",
) -> None:
    """Tables 3 to 6 and Figures 4, 5 and 9 of Learned Prefix Caching (NeurIPS 2025) on conversations at hand."""
    from benchmarks import paper
    from lpc.model.versions import served_folder
    from lpc_apps.simulator.amounts import in_tokens, parse_capacity

    report(
        lambda: paper.run(
            data or ["sharegpt"],
            sample=sample or None,
            seeds=_seeds(seeds),
            figure_seeds=_seeds(figure_seeds or seeds),
            sizes=[in_tokens(parse_capacity(size), 0) for size in sizes.split(",")],
            artifact=served_folder(models / model),
            folder=resume,
            jobs=jobs,
            written=page,
        ),
        output,
        page,
    )


@app.command("rules-agents")
def bench_rules_agents(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder of claude_code_sessions.tar.gz, coding_sessions.tar.gz and agent_sessions_2026.tar.gz; "
            "missing ones are left out."
        ),
    ],
    seeds: Annotated[str, typer.Option(help="Seeds of the order of the sessions.")] = "0",
    jobs: SimulatorJobs = 2,
    resume: Stored = None,
    output: Output = None,
) -> None:
    """Simulate the plug-in and LRU on recorded agent sessions in a closed loop, with and without keep.

    4,000 requests, of which 3,000 count; 30,000 prompt tokens/s and 12 ms per output token.
    """
    from benchmarks.rules import agents

    stored = resume or STORED / "agents.jsonl"
    report(lambda: agents.run(folder, _seeds(seeds), jobs=jobs, stored=stored), output)


def _seeds(text: str) -> list[int]:
    return _numbers(text, "seeds")


def _multiples(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",") if part]
    except ValueError:
        found = [0.0]
    if not all(0 < times < float("inf") for times in found):
        raise UsageError(f"{text!r:.40} is not a list of multiples: give positive numbers with commas, such as 2,4")
    return found


def _numbers(text: str, what: str = "numbers") -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part]
    except ValueError:
        raise UsageError(f"{text!r:.40} is not a list of {what}: give whole numbers with commas, such as 100,101") from None


if __name__ == "__main__":
    try:
        app(prog_name="python -m benchmarks")
    except LpcError as error:
        end_with(error)
