"""Proof, at start, that the waiting queue *cached first* does in this very vLLM what its own does, but for the choice.

1. *Interface.* The scheduler's queue is vLLM's first-come queue, with the methods and parameters that ours has, and no others.
2. *Order.* With equal missing prefill a random course of arrivals, starts, skips, preemptions and removals, as a scheduler
   makes them, leaves our queue with vLLM's requests in vLLM's order after every operation.
3. *Choice.* Over a block pool of the engine's class a warm request goes before a cold one that came earlier; when the pool has
   lost its blocks, it does not. Looking changes nothing in the pool.
"""

import inspect
import random
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

from vllm.v1.core.sched.request_queue import FCFSRequestQueue, RequestQueue

from eviction_client.engines.vllm.conformance import _Engine, _undisturbed
from eviction_client.engines.vllm.waiting import METHODS, CachedFirstQueue, CachedPrompts

OPERATIONS: Final = 300


def why_fcfs(scheduler: Any) -> str | None:
    """Return why this engine stays first come, first served; None if it passed. Raises nothing."""
    try:
        pool = scheduler.kv_cache_manager.block_pool
        CachedPrompts.of(scheduler)
        with _undisturbed(type(pool)):
            return _interface(scheduler.waiting) or _order() or _choice(pool)
    except Exception as error:
        return f"the check of its waiting queue failed: {type(error).__name__}: {error}"


def _interface(stock: Any) -> str | None:
    if type(stock) is not FCFSRequestQueue:
        return f"its waiting queue is a {type(stock).__name__}"
    own = {name for cls in (RequestQueue, FCFSRequestQueue) for name in vars(cls) if not name.startswith("_")}
    if own != METHODS.keys():
        return f"its waiting queue has other methods: {', '.join(sorted(own ^ METHODS.keys()))}"
    for name, expected in METHODS.items():
        if list(inspect.signature(getattr(stock, name)).parameters) != expected:
            return f"its waiting queue's {name}({', '.join(expected)}) takes other arguments"
    return None


class _Request:
    """A request as the queue reads it."""

    skip_reading_prefix_cache = False
    num_computed_tokens = 0

    def __init__(self, number: int, tokens: int = 1, hashes: Sequence[bytes] = ()) -> None:
        self.number = number
        self.num_tokens = tokens
        self.block_hashes = hashes


def _raise(error: Exception) -> None:
    raise error


def _order() -> str | None:
    nothing = CachedPrompts(lambda *_: None, 0, 1, 1)
    courses = zip(
        _course(FCFSRequestQueue()), _course(CachedFirstQueue(nothing, iter(range(10**9)).__next__, _raise)), strict=True
    )
    for number, (stock, ours) in enumerate(courses):
        if stock != ours:
            return f"our waiting queue is not as its own after operation {number} ({stock[0]}) of the check"
    return None


def _course(queue: Any) -> Iterator[tuple[str, object]]:
    """Run a random course through a queue, the same for all; yield after each operation its name and all that can be seen."""
    rng = random.Random(14)
    running: list[Any] = []
    numbers = iter(range(10**6))
    for _ in range(OPERATIONS):
        kind = rng.choice(["add", "add", "step", "step", "preempt", "remove", "remove some"])
        if kind == "add":
            queue.add_request(_Request(next(numbers)))
        elif kind == "preempt":
            while running and rng.random() < 0.7:
                queue.prepend_request(running.pop())
        elif kind == "step":
            skipped: list[Any] = []
            getattr(queue, "step_begins", lambda: None)()
            while queue and rng.random() < 0.7:
                request = queue.peek_request()
                if queue.peek_request() is not request or queue.pop_request() is not request:
                    yield "pop", None
                if rng.random() < 0.4:
                    skipped.insert(0, request)
                else:
                    running.append(request)
            if skipped:
                queue.prepend_requests(skipped)
            getattr(queue, "step_ends", lambda _: None)(_Scheduled)
        elif queue:
            removed = rng.sample(list(queue), rng.randint(1, min(len(queue), 3)))
            if kind == "remove":
                queue.remove_request(removed[0])
            else:
                queue.remove_requests([*removed, _Request(-1)])
        head = queue.peek_request().number if queue else None
        yield kind, (head, len(queue), bool(queue), [each.number for each in queue], [each.number for each in running])


class _Scheduled:
    """What a step of a course gives out."""

    scheduled_spec_decode_tokens: Final[dict[str, list[int]]] = {}
    num_scheduled_tokens: Final[dict[str, int]] = {}
    total_num_scheduled_tokens = 0


def _choice(pool: Any) -> str | None:
    engine = _Engine(pool, learned=False)
    blocks, hashes = engine.allocate(4, 4)
    size = engine.block_size
    prompts = CachedPrompts(engine.block_pool.get_cached_block, 0, size, size)
    queue: Any = CachedFirstQueue(prompts, lambda: 0.0, _raise)
    cold = _Request(0, 4 * size, [b"\xff" * 32] * 4)
    warm = _Request(1, 4 * size + 1, hashes)
    before = engine.order(), [block.ref_cnt for block in blocks]
    for request in (cold, warm):
        queue.add_request(request)
    chosen = queue.peek_request()
    if (engine.order(), [block.ref_cnt for block in blocks]) != before:
        return "looking for the cached prefix of a prompt changes its block pool"
    if chosen is not warm:
        return "its block pool does not show which prompts are cached"
    engine.free(cast(Any, _Freed(blocks)))
    engine.block_pool.evict_blocks({block.block_id for block in blocks})
    queue.step_begins()
    if queue.peek_request() is not cold:
        return "its block pool shows prompts as cached that are not"
    return None


class _Freed:
    """A request whose blocks are freed."""

    def __init__(self, blocks: list[Any]) -> None:
        self.blocks = blocks
