"""One run of benchmark `sglang`, where SGLang is installed: `python -m benchmarks.sglang_replay`.

SGLang's real radix cache serves the requests of a trace one after the other, at the times of the trace, without a model: a
prompt is matched, what is missing of it gets room, a reply of one token ends it. The sidecar is told the prompt at its length,
it reads the same virtual clock, and the clock stands while it is asked.
"""

import argparse
import json
import time
from array import array
from pathlib import Path
from typing import Any, Final

from benchmarks.sglang_settle import settle
from benchmarks.trace_replay import Replay, predictor_of
from benchmarks.virtual_clock import VirtualClock
from eviction_client.plugin import MOST_FAILURES, Predictor

CORES: Final = ("rust", "python")
BLOCK: Final = 64
"""Tokens that the cache holds of each block of the trace."""


def tokens_of(replay: Replay, number: int) -> "array[int]":
    """Return the token ids of a prompt, BLOCK for each block of the trace: its content id numbers its own."""
    request = replay.requests[number]
    full, rest = divmod(request.input_tokens, replay.block_tokens)
    ids: array[int] = array("q")
    for block in request.blocks[:full]:
        ids.extend(range(block * BLOCK, (block + 1) * BLOCK))
    last = request.blocks[full] if len(request.blocks) > full else -1 - number
    ids.extend(range(last * BLOCK, last * BLOCK + max(-(-rest * BLOCK // replay.block_tokens), int(not full))))
    return ids


def serve(
    replay: Replay, side: str, tokens: int, core: str, clock: VirtualClock, predictor: Predictor | None
) -> dict[str, Any]:
    """Serve a trace with room for so many tokens; return figures."""
    from benchmarks.sglang_cache import Cache

    longest = max(-(-request.input_tokens // replay.block_tokens) for request in replay.requests) * BLOCK + 2
    cache = Cache(
        tokens,
        policy="lru" if predictor is None else "priority",
        backend=core,
        predictor=predictor,
        clock=clock,
        longest=longest,
        scale=replay.block_tokens // BLOCK,
        guard=side != "oracle",  # as shipped: without a gain least recent use stays in force
    )
    if side == "lru":
        cache.plugin.guard_failures = MOST_FAILURES
    start = clock()
    prompt: list[int] = []
    cached: list[int] = []
    started = time.perf_counter()
    for number, request in enumerate(replay.requests):
        clock.set(start + request.arrival)
        arguments = {"session_id": request.conversation}
        ids = tokens_of(replay, number)
        prompt.append(len(ids))
        cached.append(cache.serve(str(number), ids, reply=[7], custom_params=arguments))
    figures: dict[str, Any] = {"cached": cached, "prompt": prompt, "seconds": round(time.perf_counter() - started, 1)}
    figures["evicted_nodes"] = len(cache.evicted)
    if predictor is not None:
        plugin = cache.plugin
        figures["failures"] = plugin.failures
        figures["answered_share"] = plugin.ended["prediction"] / len(cached)
        figures["reuses"] = plugin.reuses
        figures["switches"] = plugin.ghosts.guard.switches
    return figures


def main() -> None:
    """Run one side at one size; print its figures as one JSON object on the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=Path, required=True)
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--side", choices=("stock", "lru", "oracle", "plugin"), required=True)
    parser.add_argument("--core", choices=CORES, default="rust")
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--predictor")
    options = parser.parse_args()
    settle()
    replay = Replay.read(options.requests)
    predictor = predictor_of(options.side, replay, options.predictor)
    print(json.dumps(serve(replay, options.side, options.tokens, options.core, VirtualClock(options.clock), predictor)))


if __name__ == "__main__":
    main()
