"""The part of `lpc bench engine` that runs where vLLM is installed: `python -m lpc.bench.engine_runs`.

Time is virtual in the runs that are compared: a step takes STEP_S, think times pass at once. So all sides see the same
arrivals, whatever the machine is doing.
"""

import argparse
import gc
import heapq
import itertools
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
# Two layers of 64 are nothing to share out, and threads that wait for each other at every layer stop where cores are busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

import numpy as np
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt
from vllm.v1.core.block_pool import BlockPool

from eviction_client.engines.vllm import LearnedScheduler
from eviction_client.engines.vllm.metrics import values_of
from eviction_client.engines.vllm.queue import LearnedFreeQueue
from eviction_client.messages import Prediction
from eviction_client.offer import TokenizerState
from eviction_client.predictor_client import PredictorClient
from eviction_client.score import Keys
from eviction_client.scorer import Predictor
from eviction_client.settings import ClientSettings
from lpc.bench.bare_scheduler import ENDED_S, Engine, Told, conversations
from lpc.bench.tiny_llama import SPECIAL

STEP_S: Final = 0.05
REPLY: Final = 24
"""Tokens of a reply."""
BLOCK: Final = 32
THINK_S: Final = 100.0
BUSY_S: Final = 1.0
"""Mean think time, seconds, of the run in which requests are so many at a time that some are preempted."""
ACTIVE: Final = 48
"""Conversations that are under way at a time."""
STEP_BLOCKS: Final = 1500
"""Blocks of 16 tokens where the scheduler's steps are timed: hardly more than what is running needs."""
CREDIT_SPREAD_S: Final = 90.0
"""Standard deviation of credits where frees are timed, seconds: of the shipped head's log-odds at a think time of 100 s."""
ANSWER_WITHIN_S: Final = 30.0
"""Real time that a virtual request waits for the sidecar at its end: in virtual time requests take milliseconds."""


class Patient:
    """The real sidecar's answers, waited for: what they are worth, not how fast they come."""

    def __init__(self, client: PredictorClient) -> None:
        self._client = client
        self.told: dict[Hashable, float] = {}
        self.ask = client.ask
        self.forget = client.forget
        self.leave = client.leave
        self.late_answers = client.late_answers
        self.close = client.close

    def take(self, request_id: Hashable) -> Prediction | None:
        """Wait for the answer."""
        until = time.monotonic() + ANSWER_WITHIN_S
        while (answer := self._client.take(request_id)) is None and self._client.waiting and time.monotonic() < until:
            if not self._client.healthy:
                raise SystemExit("the sidecar went away")
            time.sleep(0.002)
        if answer is not None:
            self.told[request_id] = answer.probability
        return answer

    @property
    def healthy(self) -> bool:
        """The client's."""
        return self._client.healthy

    @property
    def counters(self) -> Any:
        """The client's."""
        return self._client.counters

    @property
    def tokenizer_state(self) -> TokenizerState:
        """The client's."""
        return self._client.tokenizer_state


@dataclass
class Served:
    """What one engine did with the workload."""

    outputs: dict[str, list[int]] = field(default_factory=dict)
    evicted: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    prompt_tokens: int = 0
    preemptions: int = 0
    seconds: float = 0.0
    counters: dict[str, float] = field(default_factory=dict)


def serve(
    model: Path,
    texts: dict[str, list[list[int]]],
    blocks: int,
    *,
    predictor: Predictor | None = None,
    learned: bool = True,
    think_s: float = THINK_S,
    connector: dict[str, Any] | None = None,
    **settings: Any,
) -> Served:
    """Serve conversations (token ids of each user turn) on real vLLM with so many blocks.

    Args:
        connector: configuration of a KV connector, as of vLLM's ``--kv-transfer-config``.
        settings: of the plug-in.
    """
    now = [1e9]
    scheduler_cls = type(
        "Injected",
        (LearnedScheduler,),
        {
            "settings": ClientSettings(**{"pooling": "off", **settings}),
            "clock": staticmethod(lambda: now[0]),
            "open_predictor": staticmethod(lambda *_: predictor or Told(lambda _: None)),
        },
    )
    llm = LLM(
        str(model),
        enforce_eager=True,
        block_size=BLOCK,
        num_gpu_blocks_override=blocks,
        max_model_len=7168,
        max_num_seqs=16,
        dtype="float32",
        kv_cache_memory_bytes=2**28,
        enable_prefix_caching=True,
        disable_log_stats=True,
        **({"scheduler_cls": scheduler_cls} if learned else {}),
        **({"kv_transfer_config": connector} if connector else {}),
    )
    engine: Any = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    served = Served()
    pool = scheduler.kv_cache_manager.block_pool
    stock_evict = pool._maybe_evict_cached_block

    def evict(block: Any) -> bool:
        if block.block_hash is not None:
            served.evicted.append(block.block_id)
        result: bool = stock_evict(block)
        return result

    pool._maybe_evict_cached_block = evict
    stock_preempt = scheduler._preempt_request

    def preempt(*args: Any, **kwargs: Any) -> None:
        served.preemptions += 1
        stock_preempt(*args, **kwargs)

    scheduler._preempt_request = preempt
    # A special token in a reply would look like the start of a message to whoever reads the token ids.
    plain = dict.fromkeys(range(len(SPECIAL)), -100.0)
    parameters = SamplingParams(temperature=0, max_tokens=REPLY, ignore_eos=True, detokenize=False, logit_bias=plain)
    history: dict[str, list[int]] = {name: [] for name in texts}
    rng = random.Random(3)
    waits = {name: [rng.expovariate(1 / think_s) for _ in turns] for name, turns in texts.items()}
    queue, numbers = list(texts), itertools.count()
    arrivals: list[tuple[float, int, str, int]] = []

    def begin() -> None:
        if queue:
            name = queue.pop(0)
            heapq.heappush(arrivals, (now[0] + waits[name][0], next(numbers), name, 0))

    for _ in range(ACTIVE):
        begin()
    started = time.perf_counter()
    while arrivals or engine.has_unfinished_requests():
        if not engine.has_unfinished_requests():
            now[0] = max(now[0], arrivals[0][0])
        while arrivals and arrivals[0][0] <= now[0]:
            _, _, name, i = heapq.heappop(arrivals)
            history[name] += texts[name][i]
            engine.add_request(f"{name}/{i}", TokensPrompt(prompt_token_ids=list(history[name])), parameters)
        now[0] += STEP_S
        for output in engine.step():
            if not output.finished:
                continue
            # vLLM may append a random part to the id; ours has a slash before the turn.
            name, _, i = output.request_id.partition("-")[0].rpartition("/")
            tokens = list(output.outputs[0].token_ids)
            served.outputs[f"{name}/{i}"] = tokens
            served.cached_tokens += output.num_cached_tokens or 0
            served.prompt_tokens += len(output.prompt_token_ids)
            history[name] += tokens
            if int(i) + 1 < len(texts[name]):
                heapq.heappush(arrivals, (now[0] + waits[name][int(i) + 1], next(numbers), name, int(i) + 1))
            else:
                begin()
    served.seconds = time.perf_counter() - started
    if learned:
        scheduler.lpc.scorer.settle()
        served.counters = {
            f"{name}:{label}" if label else name: value for (name, label), value in values_of(scheduler.lpc).items()
        }
    engine.engine_core.shutdown()
    del llm, engine, scheduler, pool
    gc.collect()
    return served


def goes_on(texts: dict[str, list[list[int]]], request: str) -> bool:
    """Return whether the conversation of a request has a further turn."""
    # vLLM may append a random part to the id; ours has a slash before the turn.
    name, _, i = request.partition("-")[0].rpartition("/")
    return int(i) + 1 < len(texts[name])


def oracle(texts: dict[str, list[list[int]]]) -> Callable[[str], float]:
    """The credit that a predictor would give that knows whether a request's conversation goes on, seconds."""
    return lambda request: 0.0 if goes_on(texts, request) else ENDED_S


def hit_runs(model: Path, texts: dict[str, list[list[int]]], capacities: Sequence[int], address: str | None) -> dict[str, Any]:
    """Serve the same conversations with stock vLLM, a constant prior, an oracle and the sidecar, at several capacities.

    Once more with the fewest blocks and hardly any think time, for the preemptions that this brings.
    """
    rows = []
    identical, same_order = True, True
    for blocks, think_s in [(capacities[0], BUSY_S), *((blocks, THINK_S) for blocks in capacities)]:
        stock = serve(model, texts, blocks, learned=False, think_s=think_s)
        constant = serve(model, texts, blocks, think_s=think_s)
        told = serve(model, texts, blocks, predictor=Told(oracle(texts)), think_s=think_s)
        sides = {"stock": stock, "constant_prior": constant, "oracle": told}
        row: dict[str, Any] = {"blocks": blocks, "think_s": think_s, "requests": len(stock.outputs)}
        row |= {"prompt_tokens": stock.prompt_tokens, "evictions": len(stock.evicted), "preemptions": stock.preemptions}
        if address is not None:
            client = PredictorClient(address, served_model="tiny", timeout_s=120)
            patient = Patient(client)
            while not client.healthy:
                time.sleep(0.1)
            sides["predictor"] = serve(model, texts, blocks, predictor=patient, think_s=think_s)
            row["predictor_auc"] = _auc(patient.told, lambda request: goes_on(texts, request))
            row["counters"] = sides["predictor"].counters
        identical = identical and all(side.outputs == stock.outputs for side in sides.values())
        same_order = same_order and constant.evicted == stock.evicted
        row["cached_tokens"] = {name: side.cached_tokens for name, side in sides.items()}
        row["seconds"] = {name: round(side.seconds, 1) for name, side in sides.items()}
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return {"tokens_identical": identical, "eviction_order_identical": same_order, "rows": rows}


def _auc(told: dict[Hashable, float], truth: Callable[[str], bool]) -> float:
    """Return how often a turn that has a successor was given a higher probability than one that has none; ties half."""
    on, over = (np.array([p for name, p in told.items() if truth(str(name)) == kind]) for kind in (True, False))
    above = (on[:, None] > over[None, :]).mean() + (on[:, None] == over[None, :]).mean() / 2
    return round(float(above), 3)


def step_ratio(rounds: int) -> dict[str, Any]:
    """Scheduler time per step, ours over stock, without a model: two engines with the same workload, step by step in turns.

    A constant prediction leaves the order stock's, so that both do the same work in each step, and what else the machine
    does falls on both. About fifteen requests run at a time, with replies of a usual length, and every block that is taken
    evicts another. As in production, the guard's and the store's thread run beside it.
    """
    made = conversations(11, 200, spread_s=30.0, reply=(100, 300))
    ratios, means, stock_us = [], [], []
    for _ in range(rounds):
        engines = {
            learned: Engine(STEP_BLOCKS, learned=learned, tell=lambda _: 0.0, max_seqs=32, guard=True, pooling="shared")
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
    """Time to free and to allocate a chain in the real block pool, ours over stock, by size of pool and chain."""
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
                value = rng.gauss(0.0, CREDIT_SPREAD_S)
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
    """A full pool of hashed chains, whose next chain is allocated, hashed and freed."""

    def __init__(self, size: int, chain: int, *, learned: bool) -> None:
        self.pool = BlockPool(num_gpu_blocks=size + 1, enable_caching=True, hash_block_size=BLOCK)
        self.chain = chain
        self.queue: LearnedFreeQueue | None = None
        if learned:
            self.queue = LearnedFreeQueue(self.pool.free_block_queue.get_all_free_blocks(), clock=lambda: self.now)
            self.queue.trusting = True
            self.pool.free_block_queue = self.queue
        self._contents = itertools.count()
        rng = random.Random(size)
        self.now = 1.8e9
        chains = [self._fill(self.pool.get_new_blocks(chain)) for _ in range(size // chain)]
        for blocks in chains:
            self._free(blocks, self._next_keys(rng.gauss(0.0, CREDIT_SPREAD_S)))

    def _fill(self, blocks: list[Any]) -> list[Any]:
        for block in blocks:
            key: Any = next(self._contents).to_bytes(32, "big") + bytes(4)
            block.set_block_hash(key, num_tokens=BLOCK)
            self.pool.cached_block_hash_to_block.insert(key, block)
        return blocks

    def _next_keys(self, credit: float) -> Keys:
        self.now += 0.5
        return Keys(self.now, self.now + credit)

    def _free(self, blocks: list[Any], keys: Keys) -> None:
        if self.queue is None:
            self.pool.free_blocks(reversed(blocks))
        else:
            self.queue.keying(keys, self.pool.free_blocks, reversed(blocks))

    def turn(self, step: int, credit: float) -> tuple[int, int]:  # noqa: ARG002
        """Return the nanoseconds to free and to allocate a chain."""
        started = time.perf_counter_ns()
        blocks = self.pool.get_new_blocks(self.chain)
        allocated = time.perf_counter_ns()
        self._fill(blocks)
        keys = self._next_keys(credit)
        before = time.perf_counter_ns()
        self._free(blocks, keys)
        return time.perf_counter_ns() - before, allocated - started


def admission_us(address: str | None) -> dict[str, float]:
    """Microseconds of the scheduler's thread, and of all threads that hold the GIL, per request of 8,000 tokens."""
    client = PredictorClient(address or "127.0.0.1:1", served_model="tiny", timeout_s=5)
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


def main() -> None:
    """Run what the flags ask for; print the figures as one JSON object on the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--conversations", type=Path, required=True)
    parser.add_argument("--capacities", type=int, nargs="*", default=[])
    parser.add_argument("--predictor")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
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
