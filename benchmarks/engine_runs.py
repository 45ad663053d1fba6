"""The part of benchmark `engine` that runs where vLLM is installed: `python -m benchmarks.engine_runs`."""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.engine_environment import settle


def main() -> None:
    """Run what the flags ask for; print the figures as one JSON object on the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--conversations", type=Path, required=True)
    parser.add_argument("--capacities", type=int, nargs="*", default=[])
    parser.add_argument("--predictor")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    settle()
    from benchmarks.engine_hits import hit_runs
    from benchmarks.engine_times import admission_us, pool_ratios, step_ratio

    texts = json.loads(options.conversations.read_text())
    figures: dict[str, Any] = {}
    if options.rounds:
        figures |= {"pool": pool_ratios(options.rounds), **step_ratio(2 * options.rounds), **admission_us(options.predictor)}
        figures["free_ratio"] = max(row["free_ratio"] for row in figures["pool"])
        figures["allocate_ratio"] = max(row["allocate_ratio"] for row in figures["pool"])
    if options.capacities:
        figures |= hit_runs(options.model, texts, options.capacities, options.predictor)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
