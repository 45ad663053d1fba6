"""Times of benchmark `engine`: scheduler steps, frees, allocations and admissions, ours over stock vLLM's."""

import gc
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from vllm.v1.core.block_pool import BlockPool

from eviction_client.engines.vllm.free_queue import LearnedFreeQueue
from eviction_client.policy.request import Span, Spans, TrackedRequest
from eviction_client.transport.client import PredictorClient
from eviction_client.transport.scripted_predictor import CONTINUES
from lpc.model.curve import EDGES, values
from lpc_apps.tiny_llama import BLOCK
from testing import bare_scheduler
from testing.bare_scheduler import Engine, conversations

STEP_BLOCKS: Final = 1500
"""Blocks of 16 tokens in the measurement of scheduler steps: enough that no request waits."""
TABLES: Final[Sequence[Sequence[float]]] = [
    values([min((high - low) / (mean + low), 0.9) for low, high in itertools.pairwise(EDGES)]) for mean in range(20, 660, 10)
]
"""Value tables of classes whose blocks return after 20 to 650 seconds, the later ones less often."""
CLASSES: Final = len(TABLES)
WAITING: Final = 256
WAITING_TOKENS: Final = 100_000
COUNTED_STEPS: Final = 400


def step_ratio(rounds: int) -> dict[str, Any]:
    """Return the scheduler time per step, ours over stock, without a model.

    Two engines with the same workload step in turns, so that other load affects both. LRU stays enabled, so that both do the
    same work in each step. About fifteen requests run with replies of usual length, none waits, and every allocation evicts a
    block. As in production, the plug-in's background and the store's thread run.
    """
    made = conversations(11, 200, spread_s=100.0, reply=(100, 300))
    ratios, means, stock_us = [], [], []
    for _ in range(rounds):
        engines = {
            learned: Engine(STEP_BLOCKS, learned=learned, script=lambda _: CONTINUES, max_seqs=64, rule="lru", pooling="shared")
            for learned in (False, True)
        }
        spent: dict[bool, list[float]] = {False: [], True: []}
        for learned, engine in engines.items():
            for name in ("schedule", "update_from_output", "add_request"):
                setattr(engine.scheduler, name, _timed(getattr(engine.scheduler, name), name, spent[learned]))
        runs = {learned: engine.steps(made) for learned, engine in engines.items()}
        gc.collect()
        gc.disable()
        for number in itertools.count():
            order = (False, True) if number % 2 else (True, False)
            if [next(runs[learned], "over") for learned in order] == ["over", "over"]:
                break
        gc.enable()
        pairs = list(zip(spent[True], spent[False], strict=True))
        ratios.append(statistics.median(ours / stock for ours, stock in pairs))
        means.append(sum(spent[True]) / sum(spent[False]))
        stock_us.append(1e6 * statistics.median(spent[False]))
        for engine in engines.values():
            engine.scheduler.shutdown()
    return {
        "step_time_ratio": round(statistics.median(ratios), 3),
        "step_time_ratio_mean": round(statistics.median(means), 3),
        "step_us": round(statistics.median(stock_us), 1),
    }


def waiting_ratio(rounds: int) -> dict[str, Any]:
    """Return the scheduler time per step, ours over stock, while WAITING requests of WAITING_TOKENS wait, cached and kept.

    Sixteen requests decode. ``joining_ms`` is the time of our hooks in a step in which another request begins to count.
    """
    ratios, joining = [], []
    for _ in range(rounds):
        engines = {learned: _crowded(learned) for learned in (False, True)}
        spent: dict[bool, list[float]] = {False: [], True: []}
        plugin = engines[True].scheduler.lpc.plugin
        for number in range(WAITING + COUNTED_STEPS):
            if number == WAITING:
                gc.collect()
                gc.disable()
                for learned, engine in engines.items():
                    for name in ("schedule", "update_from_output"):
                        setattr(engine.scheduler, name, _timed(getattr(engine.scheduler, name), name, spent[learned]))
            before = plugin.seconds
            for learned in (False, True) if number % 2 else (True, False):
                engines[learned].step()
            if number < WAITING:
                joining.append(1e3 * (plugin.seconds - before))
        gc.enable()
        assert engines[True].scheduler.lpc.queue.waiting == WAITING, "not all of those that wait count"
        ratios.append(statistics.median(ours / stock for ours, stock in zip(spent[True], spent[False], strict=True)))
        for engine in engines.values():
            engine.scheduler.shutdown()
    return {
        "waiting_step_time_ratio": round(statistics.median(ratios), 3),
        "joining_ms": round(statistics.median(joining), 2),
    }


def _crowded(learned: bool) -> Engine:
    """Return an engine in which sixteen requests decode and WAITING others wait for the same cached prompt."""
    long = WAITING_TOKENS // bare_scheduler.BLOCK
    engine = Engine(STEP_BLOCKS + 4 * long, learned=learned, max_seqs=16, rule="auto", pooling="off")
    for number in range(16):
        engine.add(f"decodes {number}", [6 + number] * 64, 4 * (WAITING + COUNTED_STEPS))
    for _ in range(4):
        engine.step()
    tokens = [6 + place % 250 for place in range(WAITING_TOKENS)]
    waiting = [engine.add(f"waits {number}", tokens, 8) for number in range(WAITING)]
    blocks = engine.pool.get_new_blocks(long)
    for block, block_hash in zip(blocks, waiting[0].block_hashes, strict=True):
        key: Any = bytes(block_hash) + bytes(4)
        block.set_block_hash(key, num_tokens=bare_scheduler.BLOCK)
        engine.pool.cached_block_hash_to_block.insert(key, block)
    engine.pool.free_blocks(reversed(blocks))
    return engine


def _timed(call: Callable[..., Any], name: str, spent: list[float]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        result = call(*args, **kwargs)
        took = time.perf_counter() - started
        if name == "schedule":
            spent.append(took)
        elif spent:
            spent[-1] += took
        return result

    return timed


def pool_ratios(rounds: int) -> list[dict[str, Any]]:
    """Return the time to free and to allocate a chain in the real block pool, ours over stock, by size of pool and chain."""
    rows = []
    for size, chain in itertools.product((1_000, 20_000, 200_000), (64, 512)):
        if size // chain < 2:
            continue
        frees: list[float] = []
        allocates: list[float] = []
        ours_us: list[tuple[float, float]] = []
        for seed in range(rounds):
            sides = [_Side(size, chain, learned=False), _Side(size, chain, learned=True)]
            rng = random.Random(seed)
            gc.collect()
            gc.disable()
            times: list[list[tuple[int, int]]] = [[], []]
            for step in range(max(60, 20_000 // chain)):
                value = rng.randrange(CLASSES)
                for place in (0, 1) if step % 2 else (1, 0):
                    times[place].append(sides[place].turn(step, value))
            gc.enable()
            freed, allocated = ([statistics.median(t[kind] for t in side) for side in times] for kind in (0, 1))
            frees.append(freed[1] / freed[0])
            allocates.append(allocated[1] / allocated[0])
            ours_us.append((freed[1] / 1000, allocated[1] / 1000))
        rows.append(
            {
                "blocks": size,
                "chain": chain,
                "free_ratio": round(statistics.median(frees), 3),
                "allocate_ratio": round(statistics.median(allocates), 3),
                "free_us": round(statistics.median(us for us, _ in ours_us), 1),
                "allocate_us": round(statistics.median(us for _, us in ours_us), 1),
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


class _Side:
    """A full pool of hashed chains, in which chain after chain is allocated, hashed and freed."""

    def __init__(self, size: int, chain: int, *, learned: bool) -> None:
        self.pool = BlockPool(num_gpu_blocks=size + 1, enable_caching=True, hash_block_size=BLOCK)
        self.chain = chain
        self.queue: LearnedFreeQueue | None = None
        if learned:
            free = self.pool.free_block_queue.get_all_free_blocks()
            self.queue = LearnedFreeQueue(free, CLASSES, clock=lambda: self.now)
            self.queue.set_tables(TABLES)
            self.pool.free_block_queue = self.queue
        self._contents = itertools.count()
        rng = random.Random(size)
        self.now = 1.8e9
        chains = [self._fill(self.pool.get_new_blocks(chain)) for _ in range(size // chain)]
        for blocks in chains:
            self._free(blocks, self._next(rng.randrange(CLASSES)))

    def _fill(self, blocks: list[Any]) -> list[Any]:
        for block in blocks:
            key: Any = next(self._contents).to_bytes(32, "big") + bytes(4)
            block.set_block_hash(key, num_tokens=BLOCK)
            self.pool.cached_block_hash_to_block.insert(key, block)
        return blocks

    def _next(self, reuse_class: int) -> TrackedRequest[bytes]:
        self.now += 0.5
        return TrackedRequest("", at=self.now, spans=Spans((Span(0, self.chain, reuse_class),)))

    def _free(self, blocks: list[Any], ended: TrackedRequest[bytes]) -> None:
        if self.queue is None:
            self.pool.free_blocks(reversed(blocks))
        else:
            self.queue.placing(ended, self.pool.free_blocks, reversed(blocks))

    def turn(self, step: int, reuse_class: int) -> tuple[int, int]:  # noqa: ARG002
        """Return the nanoseconds to free and to allocate a chain, after the work at the start of a scheduler step."""
        if self.queue is not None:
            self.queue.step()
        started = time.perf_counter_ns()
        blocks = self.pool.get_new_blocks(self.chain)
        allocated = time.perf_counter_ns()
        self._fill(blocks)
        ended = self._next(reuse_class)
        before = time.perf_counter_ns()
        self._free(blocks, ended)
        return time.perf_counter_ns() - before, allocated - started


def admission_us(address: str) -> dict[str, float]:
    """Return the microseconds of the scheduler's thread, and of all threads holding the GIL, per request of 8,000 tokens."""
    client = PredictorClient(address, served_model="tiny", timeout_s=5)
    time.sleep(1.0)
    tokens = [6 + i % 250 for i in range(8000)]
    count = 200
    taken = []
    before = time.process_time()
    for i in range(count):
        started = time.perf_counter()
        client.ask(i, token_ids=tokens)
        client.forget(i)
        taken.append(time.perf_counter() - started)
        time.sleep(0.002)
    spent = time.process_time() - before
    client.close()
    return {
        "admission_scheduler_us": round(1e6 * statistics.median(taken), 1),
        "admission_all_threads_us": round(1e6 * spent / count, 1),
    }
