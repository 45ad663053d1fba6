#!/usr/bin/env bash
# libcachesim 0.3.5 (Python), seen on 2026-11-29: `WTinyLFU(N)` for N < 100 objects of size 1 stores no object and hits nothing,
# without an error. From 100 on it works. (Its window is 1% of the cache, which is no whole object below 100.)
#
# Hit rates on 20,000 Zipf requests: 99 objects 0.0% (LRU about 37%), 100 objects above LRU's.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check libcachesim==0.3.5
"$folder/env/bin/python" - <<'PY'
import random

import libcachesim

draw = random.Random(1)
trace = draw.choices(range(1, 1001), [1 / rank**0.8 for rank in range(1, 1001)], k=20_000)
rates = {}
for policy in (libcachesim.LRU, libcachesim.WTinyLFU):
    for room in (50, 99, 100):
        cache, request, hits = policy(room), libcachesim.Request(), 0
        for object_id in trace:
            request.obj_id, request.obj_size = object_id, 1
            hits += bool(cache.get(request))
        rates[policy.__name__, room] = hits / len(trace), cache.get_n_obj()
        print(f"{policy.__name__} room {room}: {hits / len(trace):.1%} hits, {cache.get_n_obj()} objects at the end")
assert rates["LRU", 99][0] > 0.3
assert rates["WTinyLFU", 50] == rates["WTinyLFU", 99] == (0, 0), "the behaviour has changed"
assert rates["WTinyLFU", 100][0] > rates["LRU", 100][0] and rates["WTinyLFU", 100][1] == 100
PY
