"""One side of benchmark `engine --closed`: real vLLM with a model serves sessions in a closed loop.

Time is virtual: a step takes the time for its planned prompt tokens plus that for one decoded token. The clock stops during
calls to the sidecar. So results do not depend on the machine's load, and runs are repeatable.
"""

import hashlib
import json
import statistics
import time
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from benchmarks.closed_loop import LONGEST_REPLY, ClosedLoop, Prompts
from benchmarks.engine_replay import admit, clocked_engine
from benchmarks.trace_replay import Replay, number_of
from benchmarks.virtual_clock import VirtualClock
from eviction_client.transport.predictor import Predictor
from lpc_apps.tiny_llama import BLOCK

DECODE_S: Final = 0.012
"""Virtual seconds per decoded token of the log."""
BATCH_TOKENS: Final = 2048
"""Most tokens that a step computes."""
TOGETHER: Final = 256
"""Most requests that run at a time. In practice the number of blocks limits them."""
COUNT_FROM: Final = 0.25
"""Share of the answers that is warm-up and does not count."""


@dataclass(frozen=True)
class Load:
    """The load of a run.

    Attributes:
        at_once: number of concurrent sessions.
        requests: number of answers after which the run ends.
        prefill_tokens_s: prefill speed, prompt tokens of the log per virtual second.
    """

    at_once: int
    requests: int
    prefill_tokens_s: float


@dataclass
class Counts:
    """Counts in tokens of the engine, and latencies in virtual seconds."""

    since: float
    cached: int = 0
    prompt: int = 0
    latencies: list[float] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)


def serve(
    model: Path,
    replay: Replay,
    blocks: int,
    clock: VirtualClock,
    load: Load,
    *,
    predictor: Predictor | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Serve sessions on real vLLM with this many blocks; return the figures and a digest of each request's output.

    Args:
        replay: the requests of one session after the other, each with its gap.
        predictor: of our scheduler; None: stock vLLM.
        settings: of the plug-in.
    """
    scale = replay.block_tokens / BLOCK  # tokens of the log per token of the engine
    sessions = [[n for n, _ in rows] for _, rows in groupby(enumerate(replay.requests), key=lambda row: row[1].conversation)]
    tiny = clocked_engine(
        *(model, replay, blocks, clock, predictor, settings),
        max_model_len=replay.longest + LONGEST_REPLY,
        max_num_seqs=TOGETHER,
        max_num_batched_tokens=BATCH_TOKENS,
    )
    engine = tiny.engine
    _take_time(tiny.scheduler, clock, prefill_s=scale / load.prefill_tokens_s, decode_s=scale * DECODE_S)
    prompts = Prompts(replay)
    gaps = [request.gap_s for request in replay.requests]
    loop = ClosedLoop(sessions, gaps, at_once=load.at_once, start=clock())
    texts: dict[int, list[int]] = {}
    outputs: dict[int, str] = {}
    admitted: dict[int, float] = {}
    """Times at which requests without a first token were admitted."""
    counts = Counts(clock())
    started = time.perf_counter()
    while len(outputs) < load.requests:
        if not engine.has_unfinished_requests():
            assert loop.next_arrival is not None
            clock.set(max(clock(), loop.next_arrival))
        for number in loop.arrive(clock()):
            texts[number], admitted[number] = prompts.prompt(number), clock()
            reply = prompts.reply_tokens(number)
            admit(engine, number, replay.requests[number].conversation, texts[number], reply=reply)
        for output in engine.step():
            number = number_of(output.request_id)
            if number in admitted:
                counts.first_tokens.append(clock() - admitted.pop(number))
            if not output.finished:
                continue
            tokens = list(output.outputs[0].token_ids)
            prompt = texts.pop(number)
            prompts.answered(number, prompt, tokens)
            outputs[number] = hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16]
            latency = loop.answer(number, clock())
            if len(outputs) > COUNT_FROM * load.requests:
                counts.cached += output.num_cached_tokens or 0
                counts.prompt += len(prompt)
                counts.latencies.append(latency)
            else:
                counts.since = clock()
                counts.first_tokens.clear()
    figures: dict[str, Any] = {
        "requests": len(outputs),
        "counted": len(counts.latencies),
        "cached_tokens": counts.cached,
        "prompt_tokens": counts.prompt,
        "virtual_seconds": clock() - counts.since,
        "prompt_tokens_per_s": counts.prompt * scale / (clock() - counts.since),
        "latency_mean_s": statistics.fmean(counts.latencies),
        "latency_p99_s": sorted(counts.latencies)[int(0.99 * len(counts.latencies))],
        "first_token_longest_s": max(*counts.first_tokens, *(clock() - at for at in admitted.values())),
        "evictions": len(tiny.evicted),
        "outputs": outputs,
        "seconds": round(time.perf_counter() - started, 1),
    }
    if predictor is not None:
        figures["counters"] = tiny.counters()
    del engine
    tiny.close()
    return figures


def _take_time(scheduler: Any, clock: VirtualClock, *, prefill_s: float, decode_s: float) -> None:
    """Advance the virtual clock in each step of a scheduler, before it gets the step's results.

    Args:
        prefill_s: seconds per prompt token of the engine.
        decode_s: seconds per step.
    """
    stock = scheduler.schedule

    def schedule(*args: Any, **kwargs: Any) -> Any:
        planned = stock(*args, **kwargs)
        prefilled = 0
        for name, tokens in planned.num_scheduled_tokens.items():
            request = scheduler.requests[name]
            # vLLM already counts the planned tokens as computed.
            left = request.num_prompt_tokens - (request.num_computed_tokens - tokens)
            prefilled += min(max(left, 0), tokens)
        clock.set(clock() + prefilled * prefill_s + decode_s)
        return planned

    scheduler.schedule = schedule
