#!/usr/bin/env bash
# kvcr 0.1.1 with nixl 1.5.0, seen on 2026-11-30 (no GPU is needed): its default policy, LRU, evicts the start of a prompt before
# its end, unless the engine calls `KVCR.align_sequence`, which gives blocks their positions. What is left cannot be hit, because a
# prefix is looked up from its start. vLLM 0.32.0's tier (kv_offload/tiering/kvcr/manager.py) calls `deposit`, `deliver` and `query`,
# and never `align_sequence`. Eight slots; a prompt of six blocks is stored, then four blocks of another:
#  - as vLLM does it, blocks 2 to 5 of the first prompt are left, which hit nothing;
#  - with `align_sequence`, blocks 0 to 3 are left, which hit four.
# A policy of one's own does not get what it needs either: under vLLM it gets no request, and -1 as each position.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check kvcr==0.1.1
"$folder/env/bin/python" - <<'PY'
import ctypes
import mmap
import socket
import time

from kvcr import KVCR, KVCRBindings
from kvcr.config import KVCRBackendConfigs, KVCRConfig, LocalDramOptions
from kvcr.policy import LRUPolicy
from kvcr.types import MemoryRef, QueryStatus, RegionDescriptor

SLOTS, SIZE, BLOCKS = 8, 4096, 10
positions = []


class Seen(LRUPolicy):
    def eviction_score(self, meta, source):
        positions.append(meta.position)
        return super().eviction_score(meta, source)


class Control:
    def send(self, endpoint, message):
        return True

    def recv(self):
        return []


def region(blocks):
    memory = mmap.mmap(-1, blocks * SIZE)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def left(name, aligned):
    (pool, room), (source, start) = region(SLOTS), region(BLOCKS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kvcr = KVCR(
        KVCRConfig(nixl_agent_name=name, pool_layouts=[("", SIZE)], nixl_listen_port=port),
        KVCRBindings(
            request_pin=lambda keys: 0,
            poll_pin_results=lambda: [],
            release_pin=lambda handle: True,
            framework_control=Control(),
            policy=Seen(),
        ),
        KVCRBackendConfigs(
            framework_regions=[RegionDescriptor(addr=start, size=SIZE, count=BLOCKS)],
            local_dram=LocalDramOptions(pools=[("", room, SLOTS * SIZE)]),
        ),
    )

    def store(keys, at):
        kvcr.deposit({key: [MemoryRef(end_point_name=name, element_index=at + n)] for n, key in enumerate(keys)})
        done = {}
        while len(done) < len(keys):
            for _, results in kvcr.poll_completed():
                done.update(results)
            time.sleep(0.005)
        assert all(result.success for result in done.values())

    prompt, other = [b"a%d" % n for n in range(6)], [b"b%d" % n for n in range(4)]
    store(prompt, 0)
    if aligned:
        kvcr.align_sequence(prompt)
    store(other, 6)
    found = [n for n, key in enumerate(prompt) if kvcr.query([key])[0][0] is QueryStatus.HIT]
    kvcr.close()
    print(f"{name}: blocks {found} of the prompt are left")
    return found


assert left("as-vllm", aligned=False) == [2, 3, 4, 5], "the behaviour has changed"
assert set(positions) == {-1}
assert left("aligned", aligned=True) == [0, 1, 2, 3]
PY
