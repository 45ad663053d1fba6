"""What our evictor costs in V0's allocator: allocating and freeing a prompt of 1,024 tokens in a full cache, processor time.

PYTHONPATH=data/vllm/0.7.3:. .venv-engine/bin/python tests/engine_v0/cost.py        # after `make test-vllm-v0`
"""

import random
import statistics
import time

from tests.engine_v0.outdated import bring_back

bring_back()

from vllm.core.block.block_table import BlockTable  # noqa: E402
from vllm.core.block.cpu_gpu_block_allocator import CpuGpuBlockAllocator  # noqa: E402
from vllm.utils import Device  # noqa: E402

from eviction_client.curve import KNOTS  # noqa: E402
from eviction_client.ended import Ended, Run  # noqa: E402
from eviction_client.engines.vllm_v0.evictor import LearnedEvictor  # noqa: E402

PROMPTS = 400
TABLES = [[value / (1.0 + age) for age in KNOTS] for value in (1e-6, 1e-3, 1.0)]


def microseconds(blocks: int, value_enabled: bool | None) -> float:
    """Return the median of a prompt; None: with the stock evictor."""
    both = CpuGpuBlockAllocator.create(allocator_type="prefix_caching", num_gpu_blocks=blocks, num_cpu_blocks=64, block_size=16)
    gpu = both._allocators[Device.GPU]
    if value_enabled is not None:
        gpu.evictor = LearnedEvictor(gpu.evictor, len(TABLES), block_size=16)
        gpu.evictor.queue.set_tables(TABLES)
        gpu.evictor.queue.value_enabled = value_enabled
    rng = random.Random(1)
    times = []
    for number in range(blocks // 64 + PROMPTS):
        tokens = [rng.randrange(50_000) for _ in range(1024)]
        started = time.thread_time()
        table = BlockTable(block_size=16, block_allocator=both)
        table.allocate(token_ids=tokens, device=Device.GPU)
        gpu.mark_blocks_as_accessed(table.physical_block_ids, 1e9 + number)
        if value_enabled is None:
            table.free()
        else:
            runs = [Run(16, rng.randrange(3)), Run(64, rng.randrange(3))]
            gpu.evictor.placing(Ended(None, None, (), 0, 0.0, 0, runs), table.free)
        times.append(time.thread_time() - started)
    return 1e6 * statistics.median(times[-PROMPTS:])


if __name__ == "__main__":
    for blocks in (1024, 20_480):
        for name, value_enabled in (("stock", None), ("ours, LRU in force", False), ("ours, value in force", True)):
            print(f"{blocks} blocks, {name}: {microseconds(blocks, value_enabled):.0f} us", flush=True)
