"""One run in SGLang's environment: `python -m benchmarks.sglang_run JOB`. The last line of its output is the figures, as JSON.

JOB is a JSON object with the arguments of :func:`trace`. SGLang's real radix cache serves requests on a
virtual clock, without a model.
"""

import json
import sys
import time
from array import array
from pathlib import Path
from typing import Any, Final

from benchmarks.trace_replay import Replay, predictor_of, rule_of
from benchmarks.virtual_clock import VirtualClock
from testing.sglang_settle import settle

BLOCK: Final = 64
"""Tokens of the cache per block of the trace."""


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
    from testing.sglang_cache import Cache

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
        rule=rule_of(side),
    )
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
        figures["reuses"] = plugin.policy.reused
        figures["switches"] = plugin.policy.ghosts.guard.switches
    return figures


if __name__ == "__main__":
    settle()
    print(json.dumps(trace(**json.loads(sys.argv[1]))))
