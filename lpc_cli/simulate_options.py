"""Options of `lpc simulate`, as one record from the command line to the runs."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eviction_client.policy.rules import RuleName
from lpc.errors import UsageError
from lpc_cli.options import Jobs, JsonOutput, LogFormat, Output, Rate, Seed

if TYPE_CHECKING:
    from lpc_apps.logs.log import Log
    from lpc_apps.simulator.kv_memory import KvMemory, Memory
    from lpc_apps.simulator.policies import PolicySettings
    from lpc_apps.simulator.run import WorkloadSpec
    from lpc_apps.simulator.waiting import Queueing

LOG, CLOSED, CACHE, TIER, FLEET, MEMORY, COST, RESULT = (
    *("The log or workload", "Closed loop: agents that wait for answers", "Cache and policies", "CPU tier below the cache"),
    *("Fleet: several engines behind a router", "Cache in GiB", "Cost", "Results"),
)
"""Headings of --help."""


def _option(panel: str, help: str, *names: str, **rest: Any) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, rich_help_panel=panel, **rest)


@dataclass(frozen=True)
class SimulateOptions:
    """The options, each with its help. Methods make of them what the simulator takes."""

    log: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="LOG",
            help="A log of any format below: files, also .gz or .zst, or their folder; -: standard input. Default: a sample of "
            "ShareGPT, drawn.",
        ),
    ] = None
    trace: Annotated[Path | None, _option(LOG, "The same as LOG.")] = None
    log_format: LogFormat = None
    rate: Rate = None
    count_from: Annotated[
        float | None,
        _option(LOG, "Count hits from this second of a log on; default: 1800, or its middle if it has less than 57 minutes."),
    ] = None
    workload: Annotated[
        str | None,
        _option(
            LOG,
            "Generated workloads in place of a log, names with commas, or all: chat-exponential, chat-lognormal, "
            "chat-bimodal, documents, few-shot, agents, cliff, batch-scan, day, adversary, loop, users, users-alike, "
            "tenants, tenants-alike, applications.",
        ),
    ] = None
    think_time: Annotated[float, _option(LOG, "Mean think time of conversations without times, seconds.", min=0)] = 100.0
    law: Annotated[Literal["exponential", "lognormal"], _option(LOG, "Distribution of these think times.")] = "exponential"
    active: Annotated[int | None, _option(LOG, "Conversations without times (200) or agent sessions (20) at a time.")] = None
    head: Annotated[
        Path | None, _option(LOG, "Head of `lpc train` that predicts whether users of --format conversations return.")
    ] = None
    held_out: Annotated[
        bool, _option(LOG, "Replay only the half of --format conversations that `lpc train` holds out.", "--held-out")
    ] = False
    sample: Annotated[
        int | None,
        _option(LOG, "Simulate 1 in so many conversations of a log; default: as many as leave a million requests.", min=1),
    ] = None
    seeds: Annotated[int, _option(LOG, "Repetitions with different seeds.", min=1)] = 1
    seed: Seed = 0
    describe: Annotated[bool, _option(LOG, "Describe the log or workload without a simulation.", "--describe")] = False
    models: Annotated[
        Path | None,
        _option(LOG, "Model repository with e5-small, by which --describe compares questions; default: models, if there."),
    ] = None
    closed: Annotated[bool, _option(CLOSED, "Send each request of a conversation after the previous answer.", "--closed")] = (
        False
    )
    sessions: Annotated[str, _option(CLOSED, "Sessions at a time: 32,48,64.")] = "20"
    requests: Annotated[int, _option(CLOSED, "Requests after which the run ends; hits are counted after a quarter.", min=2)] = (
        4_000
    )
    schedule: Annotated[
        Literal["fcfs", "warm-first", "lpm", "hrrn", "shortest-prefill-first"],
        _option(CLOSED, "Next waiting request: the first, a warm one within the bound, or by a schedule of SGLang."),
    ] = "fcfs"
    overtake_s: Annotated[
        float | None, _option(CLOSED, "Bound of --schedule warm-first, seconds of prefill (LPC_OVERTAKE_S); default: 3.", min=0)
    ] = None
    keep_waiting: Annotated[
        bool, _option(CLOSED, "Evict last the blocks that waiting requests will hit.", "--keep-waiting")
    ] = False
    in_turn: Annotated[
        bool,
        _option(CLOSED, "Open traffic: a request takes its blocks when its prefill starts, not on arrival.", "--in-turn"),
    ] = False
    batch_tokens: Annotated[
        int | None,
        _option(CLOSED, "Tokens per engine step, prompts and replies together: vLLM's --max-num-batched-tokens.", min=1),
    ] = None
    policies: Annotated[
        str | None,
        _option(
            CACHE,
            "Names with commas, or all: lru, fifo, mru, lfu, gdsf, mq, arc, s3-fifo, turn-ttl, lpc, wa, wa-no-life, "
            "wa-no-distribution, plugin, plugin-sidecar, oracle, belady; default: lru,mq,plugin,plugin-sidecar,belady.",
        ),
    ] = None
    capacity: Annotated[
        str | None,
        _option(CACHE, "Tokens or shares of the working set; default: 1%,2%,3%,5%,8%,20%,50%, of ShareGPT 80K,160K,320K."),
    ] = None
    cache: Annotated[str | None, _option(CACHE, "Size of your cache, for the summary; default: the middle --capacity.")] = None
    cpu: Annotated[
        str | None,
        _option(
            TIER,
            "Add a tier of this size to each cache of --capacity: 200GiB, tokens or a share of the working set. Compares the "
            "time to the first token without it, if all is loaded, and if each request loads or computes.",
        ),
    ] = None
    load_rate: Annotated[
        float | None, _option(TIER, "GB per second that the tier loads to each GPU; default: 25.", min=0.001)
    ] = None
    store: Annotated[
        Literal["prompts", "all"], _option(TIER, "What the tier stores: prompts, as vLLM does by default, or also replies.")
    ] = "prompts"
    engines: Annotated[
        int | None,
        _option(FLEET, "Simulate a fleet of so many engines, each with a cache of --capacity.", min=1, max=256),
    ] = None
    router: Annotated[
        str | None,
        _option(
            FLEET,
            "Names with commas: round-robin, least-loaded, session-hash, fewest-sessions, prefix[:SHARE], cost:W (seconds of "
            "wait + W x seconds of missing prefill); default: session-hash,cost:1,cost:11.",
        ),
    ] = None
    router_knows: Annotated[
        str | None,
        _option(
            FLEET,
            "What routers know of the caches, names with commas. all: everything. sent: what they have sent; corrected: also "
            "cached tokens of answers; text: as sent, by the text of messages. lru:SHARE: an LRU cache of their own, of this "
            "share of each engine's. gateway[:SHARE]: as lpc gateway, which at first takes caches to have this share of their "
            "size. events:SECONDS: KV events so late; numbered-events:SECONDS: as Dynamo reads them. Default: all.",
        ),
    ] = None
    router_restart: Annotated[
        float | None, _option(FLEET, "Second at which the router restarts and has forgotten everything.", min=0)
    ] = None
    router_queue: Annotated[
        str,
        _option(
            FLEET,
            "Requests that the router holds, names with commas: none, it hands all on at once; fcfs; warm-first, by what it "
            "believes to be cached.",
        ),
    ] = "none"
    requests_ahead: Annotated[
        int | None,
        _option(FLEET, "Requests that may wait in an engine while the router holds others; default: 0.", min=0),
    ] = None
    first_tokens: Annotated[
        Literal["seen", "counted", "estimated"],
        _option(
            FLEET,
            "First tokens of answers for the router gateway: seen, in streams; without streams counted by the engines, as vLLM "
            "does for --router-queue, or estimated.",
        ),
    ] = "seen"
    engine_down: Annotated[
        str | None,
        _option(FLEET, "Seconds at which engine 1 fails and is back with an empty cache: 600-660; 600-600: a restart."),
    ] = None
    routers: Annotated[
        int,
        _option(
            FLEET,
            "Routers side by side; requests reach them in turn, and none knows what the others do.",
            min=1,
            max=16,
        ),
    ] = 1
    pool: Annotated[
        bool,
        _option(
            FLEET,
            "Also with plug-ins that pool conversations' claims on blocks, as through Redis (LPC_REDIS_URL), but at once.",
            "--pool",
        ),
    ] = False
    model: Annotated[
        str | None,
        _option(
            MEMORY,
            "Model of --gpu-gib, and of the compute saved (default there: Llama 3.1 8B): its config.json, a folder with it, or "
            "a name on the Hub.",
        ),
    ] = None
    gpu_gib: Annotated[float | None, _option(MEMORY, "GiB for KV blocks on each GPU, in place of --cache.", min=0.001)] = None
    cpu_gib: Annotated[float, _option(MEMORY, "GiB of a CPU tier, of all GPUs together.", min=0)] = 0.0
    predictor_gib: Annotated[
        float,
        _option(
            MEMORY,
            "GiB that the sidecar's model takes from --gpu-gib on each GPU, to see what smaller caches cost: 0, 1, 2 and 4 "
            "times that.",
            min=0,
        ),
    ] = 0.0
    tensor_parallel: Annotated[int, _option(MEMORY, "GPUs that share the layers: vLLM's --tensor-parallel-size.", min=1)] = 1
    kv_dtype: Annotated[
        Literal["auto", "float16", "bfloat16", "float32", "fp8"], _option(MEMORY, "Numbers of the KV cache; auto: 2 bytes.")
    ] = "auto"
    gpu_hour_price: Annotated[
        float | None, _option(MEMORY, "Price of one GPU for an hour, to see what more memory returns.", min=0)
    ] = None
    invert: Annotated[bool, _option(CACHE, "Invert the predictions, to test the guard.")] = False
    rule: Annotated[
        RuleName,
        _option(CACHE, "Rule of the plug-in; auto: its guard chooses."),
    ] = "auto"
    categories: Annotated[
        bool,
        _option(CACHE, "Let callers name the categories of the log, as with lpc_category in vllm_xargs.", "--categories"),
    ] = False
    prefill_rate: Annotated[float, _option(COST, "Prompt tokens computed per second.", min=0.001)] = 20_000
    output_token_ms: Annotated[float, _option(COST, "Milliseconds per output token.", min=0)] = 10
    jobs: Jobs = None
    dask: Annotated[
        str | None,
        _option(RESULT, "Address of a Dask scheduler whose workers run the simulations: host:8786; in place of --jobs."),
    ] = None
    picture: Annotated[Path | None, _option(RESULT, "PNG to write: hit rate by cache size.")] = None
    html: Annotated[
        Path | None,
        _option(
            RESULT, "Page to write, one file to send around: curve, sources, causes of misses; with --describe its charts."
        ),
    ] = None
    output: Output = None
    as_json: JsonOutput = False

    def refuse_conflicts(self) -> None:
        """Raise UsageError if an option needs or excludes another one."""
        if self.log and self.trace is not None:
            raise UsageError("give one log: LOG or --trace")
        if self.logs is not None and self.workload is not None:
            raise UsageError("replay either a log or a generated workload: give LOG or --workload, not both")
        if self.describe and self.picture is not None:
            raise UsageError("--describe draws no picture: give --html, which writes a page with all of its charts")
        if self.dask is not None and self.jobs is not None:
            raise UsageError("the workers of --dask replace the processes of --jobs: give one of them")
        if self.model is None and self.gpu_gib is not None:
            raise UsageError("a cache in GiB needs --model as well as --gpu-gib")
        if self.gpu_gib is None and (self.cpu_gib or self.gpu_hour_price is not None):
            raise UsageError("--cpu-gib and --gpu-hour-price need --model and --gpu-gib")
        if self.predictor_gib and (self.gpu_gib is None or self.predictor_gib >= self.gpu_gib):
            raise UsageError("--predictor-gib is a part of --gpu-gib: give both, the smaller one for the predictor")
        if self.gpu_gib is not None and self.cache is not None:
            raise UsageError("give the size of the cache in tokens or in GiB: --cache or --gpu-gib")
        if self.gpu_hour_price is not None and self.closed:
            raise UsageError("the load of a closed loop depends on the cache: leave out --gpu-hour-price")
        of_fleets: tuple[tuple[str, object], ...] = (
            ("--router", self.router),
            ("--router-knows", self.router_knows),
            ("--router-restart", self.router_restart),
            ("--router-queue", None if self.router_queue == "none" else self.router_queue),
            ("--requests-ahead", self.requests_ahead),
            ("--first-tokens", None if self.first_tokens == "seen" else self.first_tokens),
            ("--engine-down", self.engine_down),
            ("--routers", None if self.routers == 1 else self.routers),
            ("--pool", self.pool or None),
        )
        of_one: tuple[tuple[str, object], ...] = (
            ("--cache", self.cache),
            ("--gpu-gib", self.gpu_gib),
            ("--picture", self.picture),
            ("--html", self.html),
        )
        if self.cpu is None and (self.load_rate is not None or self.store != "prompts"):
            raise UsageError("--load-rate and --store are for a tier: add --cpu, its size")
        of_caches: tuple[tuple[str, object], ...] = (
            *of_one,
            ("--engines", self.engines),
            ("--describe", self.describe or None),
        )
        for name, given in of_caches:
            if given is not None and self.cpu is not None:
                raise UsageError(f"--cpu compares times for caches of --capacity in one table: leave out {name}")
        for name, given in of_fleets:
            if given is not None and self.engines is None:
                raise UsageError(f"{name} is for a fleet: add --engines, the number of engines")
        for name, given in of_one:
            if given is not None and self.engines is not None:
                raise UsageError(f"a fleet has one table, for caches of --capacity: leave out {name}, or --engines")
        if self.requests_ahead is not None and self.router_queue == "none":
            raise UsageError("--requests-ahead is for requests that the router holds: add --router-queue warm-first")
        if self.describe and self.engines is not None:
            raise UsageError("--describe describes a log without a simulation: leave out --engines")
        if self.overtake_s is not None and self.schedule != "warm-first":
            raise UsageError("--overtake-s bounds warm first: add --schedule warm-first")

    @property
    def logs(self) -> list[Path] | None:
        """Places of the log; None: none was given."""
        return self.log or (None if self.trace is None else [self.trace])

    def spec(self, log: "Log | None") -> "WorkloadSpec":
        """Return what is replayed. Raises UsageError if an option does not fit the log."""
        from lpc_apps.logs.formats import CONVERSATIONS, SAMPLED
        from lpc_apps.logs.traces.sample import every_for
        from lpc_apps.simulator.run import WorkloadSpec

        if (self.head is not None or self.held_out) and (log is None or log.format != CONVERSATIONS):
            raise UsageError("--head and --held-out read text: give them with a log of the format conversations")
        sampled = log is not None and log.format in SAMPLED and not (self.closed or self.in_turn or self.engines or self.cpu)
        if self.sample is not None and not sampled:
            raise UsageError(f"--sample is for logs of {', '.join(SAMPLED)}, without --closed, --in-turn, --engines and --cpu")
        return WorkloadSpec(
            trace=None if log is None else log.path,
            format="" if log is None else log.format,
            workload=self.workload,
            think_time=self.think_time,
            law=self.law,
            active=self.active,
            seed=self.seed,
            sample=self.sample or (every_for(log.path) if log is not None and sampled else 1),
            count_from=self.count_from,
            requests=self.requests,
        )

    @property
    def queueing(self) -> "Queueing":
        """The waiting queue of an engine."""
        from eviction_client.schedule.warm_first import OVERTAKE_S
        from lpc_apps.simulator.waiting import Queueing

        overtake_s = OVERTAKE_S if self.overtake_s is None else self.overtake_s
        return Queueing(self.schedule, self.keep_waiting, self.in_turn, overtake_s=overtake_s)

    @cached_property
    def settings(self) -> "PolicySettings":
        """Settings of the policies. Reading it raises ModelConfigError or OSError if --model cannot be read."""
        from lpc_apps.simulator.compute import DEFAULT, compute_of
        from lpc_apps.simulator.policies import PolicySettings
        from lpc_apps.simulator.workload import Cost

        cost = Cost(
            prefill_tokens_s=self.prefill_rate,
            output_token_s=self.output_token_ms / 1000,
            batch_tokens=self.batch_tokens,
            compute=DEFAULT if self.model is None else compute_of(self.model),
        )
        return PolicySettings(invert=self.invert, rule=self.rule, cost=cost, categories=self.categories)

    @cached_property
    def kv(self) -> "KvMemory":
        """KV cache of --model; without it, of Llama 3.1 8B. Reading it raises ModelConfigError or OSError as `settings`."""
        from lpc_apps.simulator.kv_memory import DEFAULT, kv_memory

        if self.model is None:
            return DEFAULT
        return kv_memory(self.model, tensor_parallel=self.tensor_parallel, kv_dtype=self.kv_dtype)

    @cached_property
    def memory(self) -> "Memory | None":
        """Memory for KV blocks; None without --gpu-gib. Reading it raises ModelConfigError or OSError as `settings`."""
        from lpc_apps.simulator.kv_memory import GIB, Memory

        if self.model is None or self.gpu_gib is None:
            return None
        return Memory(self.kv, self.gpu_gib * GIB, self.cpu_gib * GIB, self.gpu_hour_price, self.predictor_gib * GIB)
