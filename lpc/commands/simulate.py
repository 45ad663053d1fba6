"""`lpc simulate`: what eviction policies would hit on a log."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from lpc.commands.options import Cluster, Jobs, JsonOutput, Output
from lpc.commands.outcome import fail, report
from lpc.errors import UsageError


def simulate(
    trace: Annotated[Path | None, typer.Option(help="A log with times; default: ShareGPT with drawn think times.")] = None,
    trace_format: Annotated[str, typer.Option("--format", help="mooncake, qwen, chat or agents.")] = "mooncake",
    workload: Annotated[
        str | None,
        typer.Option(
            help="Generated workloads in place of a log, names with commas, or all: chat-exponential, chat-lognormal, "
            "chat-bimodal, documents, few-shot, agents, cliff, batch-scan, day, adversary, adversary-irregular, loop, "
            "herd, night."
        ),
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            help="Names with commas, or all: lru, slru, s3fifo, arc, rlt, tlru, ttl, "
            "lpc, lpc-turns, wa, reuse, value, infinite, oracle, belady."
        ),
    ] = None,
    capacity: Annotated[str | None, typer.Option(help="Tokens or shares of the working set: 160K,2%.")] = None,
    cache: Annotated[
        str | None, typer.Option(help="The size of your cache, as --capacity: what is said in words; default: the middle one.")
    ] = None,
    think_time: Annotated[str, typer.Option(help="Mean think times of ShareGPT, seconds: 25,100,400.")] = "100",
    law: Annotated[Literal["exponential", "lognormal"], typer.Option(help="Of ShareGPT's think times.")] = "exponential",
    active: Annotated[int | None, typer.Option(help="Conversations (ShareGPT: 200) or agent sessions (20) at a time.")] = None,
    closed: Annotated[
        bool,
        typer.Option(
            "--closed", help="Replay conversations in a closed loop: each request follows the answer of the one before."
        ),
    ] = False,
    sessions: Annotated[str, typer.Option(help="Sessions at a time of --closed: 32,48,64.")] = "20",
    requests: Annotated[
        int, typer.Option(min=2, help="Requests after which --closed ends; hits are counted after a quarter.")
    ] = 4_000,
    schedule: Annotated[
        Literal["fcfs", "cached-first", "priority"],
        typer.Option(
            help="Which waiting request of --closed is served next: the first, the least missing prefill, the lowest priority."
        ),
    ] = "fcfs",
    keep_waiting: Annotated[
        bool, typer.Option("--keep-waiting", help="With --closed: evict last the blocks that waiting requests will hit.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="Repetitions.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    count_from: Annotated[float | None, typer.Option(help="Count hits from this second of a trace on; default: 1800.")] = None,
    engines: Annotated[int, typer.Option(help="Engines, each with that capacity.")] = 1,
    sticky: Annotated[bool, typer.Option(help="A conversation stays with its engine.")] = True,
    tier: Annotated[
        str | None,
        typer.Option(
            help="A tier behind each engine's cache, stored and loaded as by vLLM's CPU offloading: "
            "CAPACITY[:TOKENS_PER_SECOND[:LATENCY_MS]], such as 5% or 2M:50K:5."
        ),
    ] = None,
    tier_policy: Annotated[str, typer.Option(help="Policies by which the tier evicts, with commas: lru, value.")] = "lru",
    responses: Annotated[
        str | None,
        typer.Option(
            help="A response cache before the engines: exact, or normalised (includes exact). Counts tokens computed."
        ),
    ] = None,
    ttl: Annotated[float, typer.Option(help="Seconds for which a response cache has an answer.")] = 3600,
    invert: Annotated[bool, typer.Option(help="Turn predictions around: what the guard is for.")] = False,
    guard: Annotated[
        bool, typer.Option(help="Let the plug-in's guard watch; without it predictions are always trusted.")
    ] = True,
    prefill_rate: Annotated[float, typer.Option(help="Prompt tokens computed per second.")] = 20_000,
    output_token_ms: Annotated[float, typer.Option(help="Milliseconds per output token.")] = 10,
    batch_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="With --closed: prompt tokens of a step that replies share, vLLM's --max-num-batched-tokens."),
    ] = None,
    embeddings: Annotated[
        Path | None, typer.Option(help="Folder made by `lpc embed`, for the whole of ShareGPT; default: the sample shipped.")
    ] = None,
    head: Annotated[Path | None, typer.Option(help="The predictor's head on --embeddings; default: the one shipped.")] = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    skip_limit: Annotated[float, typer.Option(help="Share of a trace's lines that may be wrong.")] = 0.01,
    describe: Annotated[
        bool, typer.Option("--describe", help="Say what the log or workload is like, and simulate nothing.")
    ] = False,
    picture: Annotated[Path | None, typer.Option(help="PNG to write: hits by the size of the cache.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Page to write, one file: what you gain, what your traffic is like.")
    ] = None,
    output: Output = None,
    as_json: JsonOutput = False,
) -> None:
    """Replay a log, generated workloads or ShareGPT under eviction policies: what each would hit."""
    try:
        from lpc.commands import simulation
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed: pip install 'learned-prefix-cache[sim]'")
    from lpc.simulator.run import WorkloadSpec
    from lpc.simulator.waiting import Queueing
    from lpc.simulator.workload import Cost
    from lpc.training.spread import workers_of

    spec = WorkloadSpec(
        trace=trace,
        format=trace_format,
        workload=workload,
        law=law,
        active=active,
        seed=seed,
        embeddings=embeddings,
        head=head,
        count_from=count_from,
        skip_limit=skip_limit,
        named=responses is not None,
        requests=requests,
    )
    if describe:
        report(lambda: simulation.describe(spec, picture), output, picture, as_json=as_json)
        return
    if prefill_rate <= 0 or output_token_ms < 0:
        raise UsageError("--prefill-rate must be above 0 and --output-token-ms not below")
    report(
        lambda: simulation.simulate(
            spec,
            policies=policies,
            sessions=sessions if closed else None,
            queueing=Queueing(schedule, keep_waiting),
            capacity=capacity,
            cache=cache,
            think_times=think_time,
            seeds=seeds,
            engines=engines,
            sticky=sticky,
            responses=responses,
            ttl=ttl,
            tier=tier,
            tier_policy=tier_policy,
            invert=invert,
            guard=guard,
            cost=Cost(prefill_tokens_s=prefill_rate, output_token_s=output_token_ms / 1000, batch_tokens=batch_tokens),
            workers=workers_of(jobs, cluster),
            picture=picture,
            html=html,
        ),
        output,
        *(picture, html),
        as_json=as_json,
    )
