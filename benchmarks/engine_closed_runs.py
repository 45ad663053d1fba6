"""One run of benchmark `engine --closed`, where vLLM is installed: `python -m benchmarks.engine_closed_runs`."""

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
    parser.add_argument("--side", choices=("stock", "plugin"), required=True)
    parser.add_argument("--settings", type=json.loads, default={}, help="of the plug-in, a JSON object")
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--at-once", type=int, required=True)
    parser.add_argument("--answers", type=int, required=True)
    parser.add_argument("--prefill", type=float, required=True)
    parser.add_argument("--predictor")
    options = parser.parse_args()
    settle()
    from benchmarks.closed_serve import Load, serve
    from benchmarks.trace_predictors import predictor_of

    replay = Replay.read(options.requests)
    predictor = predictor_of(options.side, replay, options.predictor)
    load = Load(options.at_once, options.answers, options.prefill)
    clock = VirtualClock(options.clock)
    print(json.dumps(serve(options.model, replay, options.blocks, clock, load, predictor=predictor, **options.settings)))


if __name__ == "__main__":
    main()
