"""One run of `lpc bench sglang`, where SGLang is installed: `python -m lpc.bench.sglang_replay`.

SGLang's real radix cache serves the requests of a trace one after the other, at the times of the trace, without a model: a
prompt is matched, what is missing of it gets room, a reply of one token ends it. The sidecar is told the prompt at its length,
it reads the same virtual clock, and the clock stands while it is asked.
"""

import argparse
import json
import time
from array import array
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final

from eviction_client.predictor_client import PredictorClient
from eviction_client.scorer import Predictor
from lpc.bench.sglang_environment import settle
from lpc.bench.told import ENDED_S, Told
from lpc.bench.trace_replay import Replay
from lpc.bench.virtual_clock import VirtualClock

SERVED: Final = "tiny"
ANSWER_WITHIN_S: Final = 60.0
"""Real time that the sidecar has for an answer."""
CORES: Final = ("rust", "python")
BLOCK: Final = 64
"""Tokens that the cache holds of each block of the trace."""


class Asked(PredictorClient):
    """The plug-in's own client, which waits for each answer while the virtual clock stands."""

    def __init__(self, address: str, replay: Replay) -> None:
        super().__init__(address, served_model=SERVED, timeout_s=ANSWER_WITHIN_S)
        self._replay = replay
        until = time.monotonic() + ANSWER_WITHIN_S
        while not self.healthy and time.monotonic() < until:
            time.sleep(0.05)

    def ask(self, request_id: Hashable, **known: Any) -> None:
        """As the plug-in asks, and until the answer is there."""
        known["token_ids"] = self._replay.told(int(str(request_id)))
        super().ask(request_id, **known)
        until = time.monotonic() + ANSWER_WITHIN_S
        while self.waiting and time.monotonic() < until:
            if not self.healthy:
                raise SystemExit("the sidecar went away")
            time.sleep(0.0002)


def predictor_of(side: str, replay: Replay, address: str | None) -> Predictor | None:
    """Return what a side asks: stock nothing, even one who says the same of all, oracle the trace, plugin a sidecar."""
    if side == "stock":
        return None
    if side == "even":
        return Told(lambda _: 0.0)
    if side == "oracle":
        return Told(lambda request: 0.0 if replay.goes_on[int(request)] else ENDED_S)
    assert address is not None
    return Asked(address, replay)


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
    from lpc.bench.sglang_cache import Cache

    longest = max(-(-request.input_tokens // replay.block_tokens) for request in replay.requests) * BLOCK + 2
    cache = Cache(
        tokens,
        policy="lru" if predictor is None else "priority",
        backend=core,
        predictor=predictor,
        clock=clock,
        longest=longest,
        guard=side in ("plugin", "even"),  # as shipped: without a gain least recent use stays in force
    )
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
        scorer = cache.scorer
        figures["failures"] = scorer.failures
        figures["answered_share"] = scorer.scored["prediction"] / len(cached)
        figures["lifetime_s"] = scorer.lifetime.seconds
        figures["switches"] = scorer.switches
    return figures


def main() -> None:
    """Run one side at one size; print its figures as one JSON object on the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=Path, required=True)
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--side", choices=("stock", "even", "oracle", "plugin"), required=True)
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
