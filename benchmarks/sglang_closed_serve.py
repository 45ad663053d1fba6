"""One run of benchmark `sglang --closed`, where SGLang is installed: `python -m benchmarks.sglang_closed_serve`.

SGLang's real radix cache and its real `SchedulePolicy` serve sessions in a closed loop on a virtual clock, without a model. One
prompt is computed at a time; replies under way hold their nodes and are not slowed down.
"""

import argparse
import heapq
import json
import statistics
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from benchmarks.closed_loop import ClosedLoop
from benchmarks.sglang_replay import BLOCK, tokens_of
from benchmarks.sglang_settle import settle
from benchmarks.told import Told
from benchmarks.trace_replay import Replay

DECODE_S: Final = 0.012
"""Virtual seconds for a token of the log's replies."""
COUNT_FROM: Final = 0.25
"""Share of the answers after which they count."""


def serve(replay: Replay, tokens: int, load: dict[str, Any], *, learned: bool, schedule: str) -> dict[str, Any]:
    """Serve until so many requests are answered; return figures.

    Args:
        tokens: room, of the cache's tokens.
        load: ``at_once``, ``requests``, ``prefill_tokens_s`` (of the log's tokens).
        learned: the plug-in without a sidecar orders evictions; else SGLang's LRU.
        schedule: SGLang's `--schedule-policy`.
    """
    from sglang.srt.managers.schedule_policy import SchedulePolicy

    from benchmarks.sglang_cache import Cache

    scale = replay.block_tokens / BLOCK  # tokens of the log for each of the cache
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


def main() -> None:
    """Run one side at one size; print its figures as one JSON object on the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=Path, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--load", type=json.loads, required=True)
    parser.add_argument("--learned", action="store_true")
    parser.add_argument("--schedule", required=True)
    options = parser.parse_args()
    settle()
    replay = Replay.read(options.requests)
    print(json.dumps(serve(replay, options.tokens, options.load, learned=options.learned, schedule=options.schedule)))


if __name__ == "__main__":
    main()
