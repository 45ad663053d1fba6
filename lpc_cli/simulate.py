"""`lpc simulate`: hit rates of eviction policies on a log."""

import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from eviction_client.policy.rules import RuleName
from lpc.distribution import install
from lpc.errors import UsageError
from lpc_cli.options import Jobs, JsonOutput, LogFormat, Output, Rate, Seed
from lpc_cli.outcome import fail, report

LOG, CLOSED, CACHE, FLEET, MEMORY, COST, RESULT = (
    *("The log or workload", "Closed loop: agents that wait for answers", "Cache and policies"),
    *("Fleet: several engines behind a router", "Cache in GiB", "Cost", "Results"),
)
"""Headings of --help."""


def _option(panel: str, help: str, *names: str, **rest: Any) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, rich_help_panel=panel, **rest)


def simulate(
    log: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="LOG",
            help="A log of any format below: files, also .gz or .zst, or their folder; -: standard input. Default: a sample of "
            "ShareGPT, drawn.",
        ),
    ] = None,
    trace: Annotated[Path | None, _option(LOG, "The same as LOG.")] = None,
    log_format: LogFormat = None,
    rate: Rate = None,
    count_from: Annotated[
        float | None,
        _option(LOG, "Count hits from this second of a log on; default: 1800, or its middle if it has less than 57 minutes."),
    ] = None,
    workload: Annotated[
        str | None,
        _option(
            LOG,
            "Generated workloads in place of a log, names with commas, or all: chat-exponential, chat-lognormal, "
            "chat-bimodal, documents, few-shot, agents, cliff, batch-scan, day, adversary, loop, users, users-alike, "
            "tenants, tenants-alike, applications.",
        ),
    ] = None,
    think_time: Annotated[float, _option(LOG, "Mean think time of conversations without times, seconds.", min=0)] = 100.0,
    law: Annotated[Literal["exponential", "lognormal"], _option(LOG, "Distribution of these think times.")] = "exponential",
    active: Annotated[int | None, _option(LOG, "Conversations without times (200) or agent sessions (20) at a time.")] = None,
    head: Annotated[
        Path | None, _option(LOG, "Head of `lpc train` that predicts whether users of --format conversations return.")
    ] = None,
    held_out: Annotated[
        bool, _option(LOG, "Replay only the half of --format conversations that `lpc train` holds out.", "--held-out")
    ] = False,
    sample: Annotated[
        int | None,
        _option(LOG, "Simulate 1 in so many conversations of a log; default: as many as leave a million requests.", min=1),
    ] = None,
    seeds: Annotated[int, _option(LOG, "Repetitions with different seeds.", min=1)] = 1,
    seed: Seed = 0,
    describe: Annotated[bool, _option(LOG, "Describe the log or workload without a simulation.", "--describe")] = False,
    models: Annotated[
        Path | None,
        _option(LOG, "Model repository with e5-small, by which --describe compares questions; default: models, if there."),
    ] = None,
    closed: Annotated[
        bool, _option(CLOSED, "Send each request of a conversation after the previous answer.", "--closed")
    ] = False,
    sessions: Annotated[str, _option(CLOSED, "Sessions at a time: 32,48,64.")] = "20",
    requests: Annotated[
        int, _option(CLOSED, "Requests after which the run ends; hits are counted after a quarter.", min=2)
    ] = 4_000,
    schedule: Annotated[
        Literal["fcfs", "warm-first", "lpm", "hrrn", "shortest-prefill-first"],
        _option(CLOSED, "Next waiting request: the first, a warm one within the bound, or by a schedule of SGLang."),
    ] = "fcfs",
    overtake_s: Annotated[
        float | None, _option(CLOSED, "Bound of --schedule warm-first, seconds of prefill (LPC_OVERTAKE_S); default: 3.", min=0)
    ] = None,
    keep_waiting: Annotated[
        bool, _option(CLOSED, "Evict last the blocks that waiting requests will hit.", "--keep-waiting")
    ] = False,
    in_turn: Annotated[
        bool,
        _option(CLOSED, "Open traffic: a request takes its blocks when its prefill starts, not on arrival.", "--in-turn"),
    ] = False,
    batch_tokens: Annotated[
        int | None,
        _option(CLOSED, "Tokens per engine step, prompts and replies together: vLLM's --max-num-batched-tokens.", min=1),
    ] = None,
    policies: Annotated[
        str | None,
        _option(
            CACHE,
            "Names with commas, or all: lru, fifo, mru, lfu, gdsf, mq, arc, s3-fifo, turn-ttl, lpc, wa, plugin, "
            "plugin-sidecar, oracle, belady; default: lru,mq,plugin,plugin-sidecar,belady.",
        ),
    ] = None,
    capacity: Annotated[
        str | None,
        _option(CACHE, "Tokens or shares of the working set; default: 1%,2%,3%,5%,8%,20%,50%, of ShareGPT 80K,160K,320K."),
    ] = None,
    cache: Annotated[str | None, _option(CACHE, "Size of your cache, for the summary; default: the middle --capacity.")] = None,
    engines: Annotated[
        int | None,
        _option(FLEET, "Simulate a fleet of so many engines, each with a cache of --capacity.", min=1, max=256),
    ] = None,
    router: Annotated[
        str | None,
        _option(
            FLEET,
            "Names with commas: round-robin, least-loaded, session-hash, fewest-sessions, prefix[:SHARE], cost:W (seconds of "
            "wait + W x seconds of missing prefill); default: session-hash,cost:1,cost:11.",
        ),
    ] = None,
    router_knows: Annotated[
        str | None,
        _option(
            FLEET,
            "What routers know of the caches, names with commas. all: everything. sent: what they have sent; corrected: also "
            "cached tokens of answers; text: as sent, by the text of messages. lru:SHARE: an LRU cache of their own, of this "
            "share of each engine's. events:SECONDS: KV events so late; numbered-events:SECONDS: as Dynamo reads them. "
            "Default: all.",
        ),
    ] = None,
    router_restart: Annotated[
        float | None, _option(FLEET, "Second at which the router restarts and has forgotten everything.", min=0)
    ] = None,
    router_queue: Annotated[
        str,
        _option(
            FLEET,
            "Requests that the router holds, names with commas: none, it hands all on at once; fcfs; warm-first, by what it "
            "believes to be cached.",
        ),
    ] = "none",
    requests_ahead: Annotated[
        int | None,
        _option(FLEET, "Requests that may wait in an engine while the router holds others; default: 0.", min=0),
    ] = None,
    engine_down: Annotated[
        str | None,
        _option(FLEET, "Seconds at which engine 1 fails and is back with an empty cache: 600-660; 600-600: a restart."),
    ] = None,
    model: Annotated[
        str | None,
        _option(
            MEMORY,
            "Model of --gpu-gib, and of the compute saved (default there: Llama 3.1 8B): its config.json, a folder with it, or "
            "a name on the Hub.",
        ),
    ] = None,
    gpu_gib: Annotated[float | None, _option(MEMORY, "GiB for KV blocks on each GPU, in place of --cache.", min=0.001)] = None,
    cpu_gib: Annotated[float, _option(MEMORY, "GiB of a CPU tier, of all GPUs together.", min=0)] = 0.0,
    tensor_parallel: Annotated[int, _option(MEMORY, "GPUs that share the layers: vLLM's --tensor-parallel-size.", min=1)] = 1,
    kv_dtype: Annotated[
        Literal["auto", "float16", "bfloat16", "float32", "fp8"], _option(MEMORY, "Numbers of the KV cache; auto: 2 bytes.")
    ] = "auto",
    gpu_hour_price: Annotated[
        float | None, _option(MEMORY, "Price of one GPU for an hour, to see what more memory returns.", min=0)
    ] = None,
    invert: Annotated[bool, _option(CACHE, "Invert the predictions, to test the guard.")] = False,
    rule: Annotated[
        RuleName,
        _option(CACHE, "Rule of the plug-in; auto: its guard chooses."),
    ] = "auto",
    prefill_rate: Annotated[float, _option(COST, "Prompt tokens computed per second.", min=0.001)] = 20_000,
    output_token_ms: Annotated[float, _option(COST, "Milliseconds per output token.", min=0)] = 10,
    jobs: Jobs = None,
    dask: Annotated[
        str | None,
        _option(RESULT, "Address of a Dask scheduler whose workers run the simulations: host:8786; in place of --jobs."),
    ] = None,
    picture: Annotated[Path | None, _option(RESULT, "PNG to write: hit rate by cache size.")] = None,
    html: Annotated[
        Path | None, _option(RESULT, "Page to write, one file to send around: curve, sources, causes of misses.")
    ] = None,
    output: Output = None,
    as_json: JsonOutput = False,
) -> None:
    """Replay a log, generated workloads or ShareGPT under eviction policies, and compare their hit rates.

    ShareGPT is a bundled sample of it.
    """
    try:
        from lpc_apps.logs.formats import CONVERSATIONS, SAMPLED
        from lpc_apps.logs.log import open_log
        from lpc_apps.logs.traces.sample import every_for
        from lpc_cli import simulation
        from lpc_cli.fleet import simulate_fleets
        from lpc_cli.why import causes_of
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed: {install('sim')}")
    from eviction_client.schedule.warm_first import OVERTAKE_S
    from lpc_apps.simulator.compute import DEFAULT, compute_of
    from lpc_apps.simulator.kv_memory import GIB, Memory, kv_memory
    from lpc_apps.simulator.policies import PolicySettings
    from lpc_apps.simulator.run import Run, WorkloadSpec
    from lpc_apps.simulator.waiting import Queueing
    from lpc_apps.simulator.workload import Cost

    if log and trace is not None:
        raise UsageError("give one log: LOG or --trace")
    source = log or ([trace] if trace is not None else None)
    if source is not None and workload is not None:
        raise UsageError("replay either a log or a generated workload: give LOG or --workload, not both")
    for name, file in (("--picture", picture), ("--html", html)):
        if describe and file is not None:
            raise UsageError(f"--describe prints tables: leave out {name}")

    if dask is not None and jobs is not None:
        raise UsageError("the workers of --dask replace the processes of --jobs: give one of them")
    if model is None and gpu_gib is not None:
        raise UsageError("a cache in GiB needs --model as well as --gpu-gib")
    if gpu_gib is None and (cpu_gib or gpu_hour_price is not None):
        raise UsageError("--cpu-gib and --gpu-hour-price need --model and --gpu-gib")
    if gpu_gib is not None and cache is not None:
        raise UsageError("give the size of the cache in tokens or in GiB: --cache or --gpu-gib")
    if gpu_hour_price is not None and closed:
        raise UsageError("the load of a closed loop depends on the cache: leave out --gpu-hour-price")
    compute = DEFAULT if model is None else compute_of(model)
    memory = None
    if model is not None and gpu_gib is not None:
        kv = kv_memory(model, tensor_parallel=tensor_parallel, kv_dtype=kv_dtype)
        memory = Memory(kv, gpu_gib * GIB, cpu_gib * GIB, gpu_hour_price)

    of_fleets: tuple[tuple[str, object], ...] = (
        ("--router", router),
        ("--router-knows", router_knows),
        ("--router-restart", router_restart),
        ("--router-queue", None if router_queue == "none" else router_queue),
        ("--requests-ahead", requests_ahead),
        ("--engine-down", engine_down),
    )
    of_one: tuple[tuple[str, object], ...] = (
        ("--cache", cache),
        ("--gpu-gib", gpu_gib),
        ("--picture", picture),
        ("--html", html),
    )
    for name, given in of_fleets:
        if given is not None and engines is None:
            raise UsageError(f"{name} is for a fleet: add --engines, the number of engines")
    for name, given in of_one:
        if given is not None and engines is not None:
            raise UsageError(f"a fleet has one table, for caches of --capacity: leave out {name}, or --engines")
    if requests_ahead is not None and router_queue == "none":
        raise UsageError("--requests-ahead is for requests that the router holds: add --router-queue warm-first")
    if describe and engines is not None:
        raise UsageError("--describe describes a log without a simulation: leave out --engines")

    if overtake_s is not None and schedule != "warm-first":
        raise UsageError("--overtake-s bounds warm first: add --schedule warm-first")

    def measure() -> dict[str, Any]:
        with open_log(source, log_format, rate=rate) if source is not None else nullcontext() as opened:
            if (head is not None or held_out) and (opened is None or opened.format != CONVERSATIONS):
                raise UsageError("--head and --held-out read text: give them with a log of the format conversations")
            recognised = opened is not None and opened.recognised
            sampled = opened is not None and opened.format in SAMPLED and not (closed or in_turn or engines)
            if sample is not None and not sampled:
                raise UsageError(f"--sample is for logs of {', '.join(SAMPLED)}, without --closed, --in-turn and --engines")
            every = sample or (every_for(opened.path) if opened is not None and sampled else 1)
            spec = WorkloadSpec(
                trace=None if opened is None else opened.path,
                format="" if opened is None else opened.format,
                workload=workload,
                think_time=think_time,
                law=law,
                active=active,
                seed=seed,
                sample=every,
                count_from=count_from,
                requests=requests,
            )
            if describe:
                return simulation.describe(spec, recognised=recognised, log=opened, models=models)
            template = Run(
                spec,
                policy="lru",  # simulation.simulate sets policy and capacity
                capacity=0,
                queueing=Queueing(schedule, keep_waiting, in_turn, overtake_s=OVERTAKE_S if overtake_s is None else overtake_s),
                settings=PolicySettings(
                    invert=invert,
                    rule=rule,
                    cost=Cost(
                        prefill_tokens_s=prefill_rate,
                        output_token_s=output_token_ms / 1000,
                        batch_tokens=batch_tokens,
                        compute=compute,
                    ),
                ),
            )
            if engines is not None:
                return simulate_fleets(
                    template,
                    head=head,
                    held_out=held_out,
                    engines=engines,
                    routers=router,
                    knows=router_knows or "all",
                    down=engine_down,
                    router_restart=router_restart,
                    queues=router_queue,
                    ahead=requests_ahead or 0,
                    policies=policies,
                    sessions=sessions if closed else None,
                    capacity=capacity,
                    seeds=seeds,
                    jobs=jobs,
                    cluster=dask,
                    recognised=recognised,
                )
            return simulation.simulate(
                template,
                head=head,
                held_out=held_out,
                policies=policies,
                sessions=sessions if closed else None,
                capacity=capacity,
                cache=cache,
                memory=memory,
                seeds=seeds,
                jobs=jobs,
                cluster=dask,
                picture=picture,
                html=html,
                causes=lambda: None if opened is None else causes_of(opened),
                command=shlex.join(["lpc", *sys.argv[1:]]),
                recognised=recognised,
            )

    report(measure, output, picture, html, as_json=as_json)
