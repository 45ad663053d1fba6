"""One run of benchmark `engine --trace`, where vLLM is installed: `python -m benchmarks.engine_trace_runs`."""

import argparse
import json
from pathlib import Path

from benchmarks.engine_environment import settle
from benchmarks.trace_replay import Replay
from benchmarks.virtual_clock import VirtualClock


def main() -> None:
    """Run one side at one capacity; print its figures as one JSON object on the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--requests", type=Path, required=True)
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--side", choices=("stock", "lru", "oracle", "plugin"), required=True)
    parser.add_argument("--tier", type=int, help="chunks of a CPU offload tier below the blocks")
    parser.add_argument("--tier-policy", help="its eviction_policy; without one that of the scheduler")
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--count-from", type=float, required=True)
    parser.add_argument("--predictor")
    options = parser.parse_args()
    settle()
    from benchmarks.cpu_tier import connector
    from benchmarks.engine_replay import serve
    from benchmarks.trace_predictors import predictor_of

    replay = Replay.read(options.requests)
    predictor = predictor_of(options.side, replay, options.predictor)
    guard = options.side != "oracle"
    clock = VirtualClock(options.clock)
    named = {"eviction_policy": options.tier_policy} if options.tier_policy else {}
    figures = serve(
        *(options.model, replay, options.blocks, clock),
        count_from=options.count_from,
        predictor=predictor,
        connector=connector(options.tier, **named) if options.tier else None,
        guard=guard,
        learns=options.side != "lru",
    )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
