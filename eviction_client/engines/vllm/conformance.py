"""Proof, at start, that our free queue does in this very vLLM what its own does.

Three things are tried, in milliseconds, on pools made for the purpose; the engine's own is only looked at:

1. *Interface.* Every name by which any loaded part of vLLM uses the pool's queue is one that ours has of its own, and what is
   wrapped takes the arguments that the wrapper passes on.
2. *Order.* One random course of allocations, hits, frees, deferred frees, unpinnings, evictions and a reset is run through two
   block pools of the engine's class: with the queue that it comes with, and with ours and the hooks. While nothing is known of
   reuse everything that can be seen must be equal, block by block, under either rule.
3. *Value.* Chains, and the parts of one, leave the pool in the order of their classes' values, also after changes of the rule.

So a release that changes something else works the day it comes out, and one that changes what the plug-in relies on keeps its
own order.
"""

import contextlib
import gc
import inspect
import logging
import random
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, SimpleNamespace
from typing import Any, Final, cast

from eviction_client.curve import KNOTS
from eviction_client.ended import Ended, Run
from eviction_client.engines.vllm.hooks import Hooks
from eviction_client.engines.vllm.queue import LearnedFreeQueue
from eviction_client.hints import Retained
from eviction_client.value_queue import Table, ValueQueue

BLOCKS: Final = 48
OPERATIONS: Final = 240
STEP_S: Final = 0.3
"""Between two operations of a course: some frees fall into one second, some do not. Longer than the hooks' `STEP_S`."""

_WRAPPED: Final = {
    "kv_cache_manager.free": ["request"],
    "kv_cache_manager.pop_blocks_for_free": ["request"],
    "kv_cache_manager.block_pool.free_blocks": ["ordered_blocks"],
    "kv_cache_manager.coordinator.find_longest_cache_hit": ["block_hashes", "max_cache_hit_length"],
}
_LOW, _MIDDLE, _HIGH = range(3)
_TABLES: Final[list[Table]] = [[value / (1.0 + age) for age in KNOTS] for value in (1e-6, 1e-3, 1.0)]


def why_not(scheduler: Any) -> str | None:
    """Return what of this engine the plug-in would not get right; None where it passed. Raises nothing."""
    try:
        pool = scheduler.kv_cache_manager.block_pool
        managers = scheduler.kv_cache_manager.coordinator.single_type_managers
        if any(manager.block_pool is not pool for manager in managers):
            return "this model's KV cache lies in several block pools, which frees cross"
        with _undisturbed(type(pool)):
            return _interface(scheduler) or _order(pool) or _value(pool)
    except Exception as error:
        return f"the check of its block pool failed: {type(error).__name__}: {error}"


def _interface(scheduler: Any) -> str | None:
    pool = scheduler.kv_cache_manager.block_pool
    stock = pool.free_block_queue
    if not issubclass(LearnedFreeQueue, type(stock)):
        return f"its free queue is a {type(stock).__name__}, which ours cannot stand in for"
    ours = LearnedFreeQueue()
    for name in sorted(_names_used_on_queues(type(pool))):
        if not hasattr(stock, name) or name.startswith("__"):
            continue
        is_method = callable(getattr(stock, name))
        if not hasattr(ours, name) or (is_method and getattr(type(ours), name) is getattr(type(stock), name)):
            return f"it uses `{name}` of its free queue, which ours does not have"
    for path, expected in _WRAPPED.items():
        found: Any = scheduler
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is None or list(inspect.signature(found).parameters) != expected:
            return f"its {path}({', '.join(expected)}) is gone or takes other arguments"
    return None


def _names_used_on_queues(pool: type) -> set[str]:
    """Return every name in the functions, of the pool and of all of vLLM that is loaded, that take up a pool's free queue."""
    classes = {*pool.__mro__}
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("vllm.v1.") and module is not None:
            classes |= {x for x in vars(module).values() if isinstance(x, type) and x.__module__ == module_name}
    names: set[str] = set()
    for cls in classes:
        for function in vars(cls).values():
            plain = getattr(function, "fget", None) or getattr(function, "__func__", function)
            code = getattr(plain, "__code__", None)
            if code is not None and "free_block_queue" in code.co_names:
                names.update(_names_in(code))
    return names


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


class _Request:
    """A request as the hooks read it, that has finished with these blocks."""

    sampling_params = session_id = cache_salt = None
    status: object = None

    def __init__(
        self,
        request_id: str,
        blocks: list[Any],
        finished: bool = True,
        *,
        hashes: Sequence[bytes] = (),
        block_size: int = 0,
    ) -> None:
        self.request_id = request_id
        self.blocks = blocks
        self.block_hashes = hashes
        self.num_computed_tokens = self.num_prompt_tokens = len(hashes) * block_size
        self._finished = finished

    def is_finished(self) -> bool:
        return self._finished


class _Plugin:
    """A plug-in as the hooks use it. Its clock is the course's."""

    classes = len(_TABLES)
    settings = SimpleNamespace(keep_waiting=True)

    def __init__(self) -> None:
        self.time = 1e9
        self.retained: Retained[Any] = Retained(0)
        self.seconds = 0.0
        self.clock = SimpleNamespace(source=self.now)
        self.value_enabled = False
        self.tables: list[Table] | None = None
        self.runs: dict[str, list[Run]] = {}

    def now(self) -> float:
        return self.time

    def finished(self, request_id: str, *, blocks: Sequence[Any], **_: object) -> Ended:
        return Ended(request_id, None, blocks, 0, self.time, 0, self.runs.get(request_id, [Run(len(blocks), 0)]))

    def follow(self, queue: ValueQueue[Any]) -> None:
        queue.value_enabled = self.value_enabled
        queue.set_tables(self.tables)

    def in_use(self, blocks: int) -> None:
        pass

    def failed(self, error: Exception) -> None:
        raise error

    def close(self) -> None:
        pass


class _Engine:
    """The part of a scheduler that the hooks touch, around a small pool of the engine's class; with or without them."""

    def __init__(self, pool: Any, *, learned: bool, value_enabled: bool = False) -> None:
        parameters = inspect.signature(type(pool)).parameters.values()
        required = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        given = {name: getattr(pool, name) for name in required}  # pools keep what they were built from
        self.block_pool: Any = type(pool)(**{**given, "num_gpu_blocks": BLOCKS, "enable_caching": True})
        self.plugin = cast(Any, _Plugin())
        self.plugin.value_enabled = value_enabled
        self.block_size: int = self.block_pool.hash_block_size
        self.kv_cache_manager = self.coordinator = self
        self._contents = 0
        if learned:
            Hooks(self, self.plugin, adopt=True)

    def add_request(self, request: object) -> None: ...

    def schedule(self) -> None: ...

    def shutdown(self) -> None: ...

    def find_longest_cache_hit(self, hashes: Sequence[bytes], most: int) -> None: ...

    def free(self, request: Any) -> None:
        self.block_pool.free_blocks(reversed(request.blocks))

    def pop_blocks_for_free(self, request: Any) -> list[Any]:
        blocks: list[Any] = request.blocks
        return blocks

    def allocate(self, blocks: int, with_content: int) -> tuple[list[Any], list[bytes]]:
        """Return new blocks, and the hashes of the first of them, which are in the prefix cache from now on."""
        taken = self.block_pool.get_new_blocks(blocks)
        hashes = [(self._contents + place).to_bytes(32, "big") for place in range(with_content)]
        self._contents += with_content
        self.block_pool.cache_full_blocks(
            request=SimpleNamespace(block_hashes=hashes),
            blocks=taken,
            num_cached_blocks=0,
            num_full_blocks=with_content,
            block_size=self.block_size,
            kv_cache_group_id=0,
        )
        return taken, hashes

    def order(self) -> list[int]:
        """Ids of the free blocks in eviction order."""
        return [block.block_id for block in self.block_pool.free_block_queue.get_all_free_blocks()]


def _order(pool: Any) -> str | None:
    stock = list(_course(_Engine(pool, learned=False)))
    for value_enabled in (False, True):
        ours = _course(_Engine(pool, learned=True, value_enabled=value_enabled))
        for number, expected in enumerate(stock):
            found = next(ours, None)
            if found != expected:
                return f"with our queue its block pool is not as it was after operation {number} ({expected[0]}) of the check"
    return None


def _course(engine: _Engine) -> Iterator[tuple[str, object]]:
    """Run a random course through a pool, the same for all; yield after each operation its name and all that can be seen."""
    rng = random.Random(14)
    pool = engine.block_pool
    running: list[list[Any]] = []
    deferred: list[list[Any]] = []
    chains: list[list[bytes]] = []
    reused: list[int] = []
    for number in range(OPERATIONS):
        engine.plugin.time += STEP_S
        engine.schedule()
        kinds = ["allocate"] * 4 + ["hit"] * 2 * bool(chains) + ["free", "free", "defer", "preempt"] * bool(running)
        kinds += ["drain"] * bool(deferred) + ["evict"] * (number % 40 > 30)
        kinds += ["unpin"] * bool(running and hasattr(pool, "unpin_blocks"))
        kind = rng.choice(kinds)
        if kind in ("allocate", "hit") and pool.get_num_free_blocks() < BLOCKS // 4:
            kind = "free" if running else "drain"
        seen: object = None
        if kind == "allocate":
            count = rng.randint(1, 6)
            blocks, hashes = engine.allocate(count, rng.randint(0, count))
            running.append(blocks)
            chains.append(hashes)
        elif kind == "hit":
            hit = []
            for block_hash in rng.choice(chains[-12:]):
                found = pool.get_cached_block(block_hash, [0])
                if found is None:
                    break
                hit.append(found[0])
            pool.touch(hit)
            running.append([*hit, *pool.get_new_blocks(1)])
        elif kind in ("free", "preempt"):
            blocks = running.pop(rng.randrange(len(running)))
            engine.free(_Request(f"{number}", blocks, finished=kind == "free"))
        elif kind == "defer":
            blocks = running.pop(rng.randrange(len(running)))
            deferred.append(engine.pop_blocks_for_free(_Request(f"{number}", blocks)))
        elif kind == "drain":
            pool.free_blocks(reversed(deferred.pop(0)))
        elif kind == "unpin":
            pool.unpin_blocks(running.pop(rng.randrange(len(running))), lambda block: reused.append(block.block_id))
        else:
            pool.evict_blocks({rng.randrange(1, BLOCKS) for _ in range(3)})
        seen = [[block.block_id for block in running[-1]]] if running else []
        yield kind, (seen, engine.order(), pool.get_num_free_blocks(), list(reused))
    for blocks in [*running, *deferred]:
        pool.free_blocks(reversed(blocks))
    yield "reset", (pool.reset_prefix_cache(), engine.order(), list(reused))
    yield "all", [block.block_id for block in pool.get_new_blocks(BLOCKS - 1)]


def _value(pool: Any) -> str | None:
    engine = _Engine(pool, learned=True)
    plugin = engine.plugin
    plugin.tables = _TABLES
    names = ("high", "low", "middle", "split")
    chains = {name: engine.allocate(4, 4) for name in names}
    rest = engine.block_pool.get_new_blocks(engine.block_pool.get_num_free_blocks())
    plugin.runs = {"high": [Run(4, _HIGH)], "low": [Run(4, _LOW)], "middle": [Run(4, _MIDDLE)]}
    plugin.runs["split"] = [Run(1, _HIGH), Run(4, _LOW)]
    for name, (blocks, hashes) in chains.items():
        plugin.time += STEP_S
        engine.free(_Request(name, blocks, hashes=hashes, block_size=engine.block_size))

    def ids(name: str, start: int = 0) -> list[int]:
        return [block.block_id for block in reversed(chains[name][0][start:])]

    by_use = [number for name in names for number in ids(name)]
    by_value = [*ids("low"), *ids("split", 1), *ids("middle"), *ids("high"), ids("split")[-1]]
    for value_enabled, expected in ((True, by_value), (False, by_use), (True, by_value)):
        plugin.value_enabled = value_enabled
        plugin.time += STEP_S
        engine.schedule()
        if engine.order() != expected:
            return "blocks do not lie in its block pool in the order of their values"
    taken = [block.block_id for block in engine.block_pool.get_new_blocks(9)]
    if taken != by_value[:9] or not rest:
        return "its block pool does not evict first what our queue has first"
    return None


@contextlib.contextmanager
def _undisturbed(pool: type) -> Iterator[None]:
    """Keep what the pools of a check say out of the log, and the cycle collector, half a second with vLLM loaded, out of it."""
    loggers = [logging.getLogger(cls.__module__) for cls in pool.__mro__ if cls is not object]
    enabled = [logger for logger in loggers if not logger.disabled]
    collects = gc.isenabled()
    gc.disable()
    for logger in enabled:
        logger.disabled = True
    try:
        yield
    finally:
        for logger in enabled:
            logger.disabled = False
        if collects:
            gc.enable()
