"""One run in SGLang's environment: `python -m benchmarks.sglang_run JOB`. The last line of its output is the figures, as JSON.

JOB is a JSON object with the name of a function in `RUNS` (``run``) and the function's arguments. SGLang's real radix cache
serves requests on a virtual clock, without a model.
"""

import heapq
import json
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from benchmarks.closed_loop import ClosedLoop
from benchmarks.sglang_settle import settle
from benchmarks.told import Told
from benchmarks.trace_replay import Replay, predictor_of
from benchmarks.virtual_clock import VirtualClock
from eviction_client.plugin import MOST_FAILURES

BLOCK: Final = 64
"""Tokens of the cache per block of the trace."""
DECODE_S: Final = 0.012
"""Virtual seconds per decoded token of the log, in a closed loop."""
COUNT_FROM: Final = 0.25
"""Share of a closed loop's answers that is warm-up and does not count."""


def tokens_of(replay: Replay, number: int) -> "array[int]":
    """Return the token ids of a prompt: BLOCK tokens per block of the trace, determined by its content id."""
    request = replay.requests[number]
    full, rest = divmod(request.input_tokens, replay.block_tokens)
    ids: array[int] = array("q")
    for block in request.blocks[:full]:
        ids.extend(range(block * BLOCK, (block + 1) * BLOCK))
    last = request.blocks[full] if len(request.blocks) > full else -1 - number
    ids.extend(range(last * BLOCK, last * BLOCK + max(-(-rest * BLOCK // replay.block_tokens), int(not full))))
    return ids


def trace(*, requests: str, side: str, tokens: int, core: str, clock: str, predictor: str | None = None) -> dict[str, Any]:
    """Benchmark `sglang`: one side with a cache of this many tokens. Replies are one token.

    The sidecar gets the prompt at its length in the log. It reads the same virtual clock, which stops during calls.

    Args:
        requests: file written by `sglang.run`.
        core: one of the radix cache's two tree cores.
        predictor: address of a sidecar.
    """
    from benchmarks.sglang_cache import Cache

    replay = Replay.read(Path(requests))
    seconds = VirtualClock(Path(clock))
    asked = predictor_of(side, replay, predictor)
    longest = max(-(-request.input_tokens // replay.block_tokens) for request in replay.requests) * BLOCK + 2
    cache = Cache(
        tokens,
        policy="lru" if asked is None else "priority",
        backend=core,
        predictor=asked,
        clock=seconds,
        longest=longest,
        scale=replay.block_tokens // BLOCK,
        guard=side != "oracle",  # as by default: without a gain the order stays LRU
    )
    if side == "lru":
        cache.plugin.guard_failures = MOST_FAILURES
    start = seconds()
    prompt: list[int] = []
    cached: list[int] = []
    started = time.perf_counter()
    for number, request in enumerate(replay.requests):
        seconds.set(start + request.arrival)
        arguments = {"session_id": request.conversation}
        ids = tokens_of(replay, number)
        prompt.append(len(ids))
        cached.append(cache.serve(str(number), ids, reply=[7], custom_params=arguments))
    figures: dict[str, Any] = {"cached": cached, "prompt": prompt, "seconds": round(time.perf_counter() - started, 1)}
    figures["evicted_nodes"] = len(cache.evicted)
    if asked is not None:
        plugin = cache.plugin
        figures["failures"] = plugin.failures
        figures["answered_share"] = plugin.ended["prediction"] / len(cached)
        figures["reuses"] = plugin.reuses
        figures["switches"] = plugin.ghosts.guard.switches
    return figures


def closed(*, requests: str, tokens: int, load: dict[str, Any], learned: bool, schedule: str) -> dict[str, Any]:
    """Benchmark `sglang --closed`: serve sessions until this many requests are answered; return the figures.

    SGLang's real `SchedulePolicy` orders waiting requests. One prompt is computed at a time. Running replies hold their nodes,
    and their speed is constant.

    Args:
        requests: file written by `sglang.run_closed`.
        tokens: capacity, in the cache's tokens.
        load: ``at_once``, ``requests``, ``prefill_tokens_s`` (of the log's tokens).
        learned: attach the plug-in, without a sidecar; otherwise SGLang's LRU.
        schedule: SGLang's `--schedule-policy`.
    """
    from sglang.srt.managers.schedule_policy import SchedulePolicy

    from benchmarks.sglang_cache import Cache

    replay = Replay.read(Path(requests))
    scale = replay.block_tokens / BLOCK  # tokens of the log per token of the cache
    longest = max(-(-(r.input_tokens + r.output_tokens) // replay.block_tokens) for r in replay.requests) * BLOCK + 2 * BLOCK
    now = [1.8e9]
    cache = Cache(
        tokens,
        policy="priority" if learned else "lru",
        backend="python",
        predictor=Told(lambda _: None) if learned else None,
        clock=lambda: now[0],
        longest=longest,
        scale=replay.block_tokens // BLOCK,
    )
    order = SchedulePolicy(schedule, cache.tree, False, False, False)
    sessions = [[n for n, _ in rows] for _, rows in groupby(enumerate(replay.requests), key=lambda row: row[1].conversation)]
    loop = ClosedLoop(sessions, [r.gap_s for r in replay.requests], at_once=load["at_once"], start=now[0])
    waiting: list[Any] = []
    replies: list[tuple[float, int, Any, list[int]]] = []
    answered, since = 0, now[0]
    cached = prompt = 0
    latencies: list[float] = []
    while answered < load["requests"]:
        while replies and replies[0][0] <= now[0]:
            _, number, req, reply = heapq.heappop(replies)
            cache.end(req, reply)
            answered += 1
            latency = loop.answer(number, now[0])
            if answered > COUNT_FROM * load["requests"]:
                latencies.append(latency)
                cached += req.lpc_bench_cached
                prompt += len(req.origin_input_ids)
            else:
                since = now[0]
        for number in loop.arrive(now[0]):
            request = replay.requests[number]
            waiting.append(cache.arrive(str(number), tokens_of(replay, number), session_id=request.conversation))
        started = False
        if waiting:
            order.calc_priority(waiting)
            req = waiting[0]
            matched = cache.match(req)
            missing = len(req.origin_input_ids) - matched
            number = int(req.rid)
            reply = [7] * max(-(-replay.requests[number].output_tokens * BLOCK // replay.block_tokens), 1)
            lock = cache.tree.lock(req.last_node)
            promised = sum(len(reply) for *_, reply in replies)
            started = cache.pool.available_size() + cache.tree.evictable_size() >= missing + len(reply) + promised
            if started:
                req.lock = lock
                req.lpc_bench_cached = matched
                waiting.pop(0)
                cache.compute(req)
                now[0] += missing * scale / load["prefill_tokens_s"]
                ends = now[0] + replay.requests[number].output_tokens * DECODE_S
                heapq.heappush(replies, (ends, number, req, reply))
            else:
                cache.tree.unlock(lock)
        if not started:
            upcoming = [at for at in (loop.next_arrival, replies[0][0] if replies else None) if at is not None]
            now[0] = max(now[0], min(upcoming))
    return {
        "hit_rate": cached / prompt,
        "prompt_tokens_per_s": prompt * scale / (now[0] - since),
        "latency_mean_s": statistics.fmean(latencies),
        "latency_p99_s": sorted(latencies)[int(0.99 * len(latencies))],
        "evicted_nodes": len(cache.evicted),
    }


RUNS: Final[Mapping[str, Callable[..., dict[str, Any]]]] = {"trace": trace, "closed": closed}


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    settle()
    print(json.dumps(RUNS[job.pop("run")](**job)))
