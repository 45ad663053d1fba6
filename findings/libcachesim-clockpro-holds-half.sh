#!/usr/bin/env bash
# libcachesim 0.3.5 (Python), seen on 2026-11-29: `ClockPro(N)` never holds more than N // 2 objects of size 1. `LRU(N)` holds N.
#
# So a comparison of ClockPro with other policies "at the same size" gives it half of their cache. 40,000 requests to 1,000
# objects with Zipf popularity (exponent 0.8): with room for 100 LRU holds 100 objects and hits 37.6%, ClockPro holds 50 and hits
# 28.8%; with room for 1,000 ClockPro holds 500 and hits 75.8%, LRU 97.5%.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check libcachesim==0.3.5
"$folder/env/bin/python" - <<'PY'
import random

import libcachesim

draw = random.Random(1)
trace = draw.choices(range(1, 1001), [1 / rank**0.8 for rank in range(1, 1001)], k=40_000)
held = {}
for policy in (libcachesim.LRU, libcachesim.ClockPro):
    for room in (100, 101, 1000):
        cache, request, hits, most = policy(room), libcachesim.Request(), 0, 0
        for object_id in trace:
            request.obj_id, request.obj_size = object_id, 1
            hits += bool(cache.get(request))
            most = max(most, cache.get_n_obj())
        held[policy.__name__, room] = most
        print(f"{policy.__name__} room {room}: at most {most} objects, {hits / len(trace):.1%} hits")
assert [held["LRU", room] for room in (100, 101, 1000)] == [100, 101, 1000]
assert [held["ClockPro", room] for room in (100, 101, 1000)] == [50, 50, 500], "the behaviour has changed"
PY
