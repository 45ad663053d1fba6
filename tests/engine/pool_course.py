"""A random course through a block pool, with the queue that it comes with and with ours under the hooks.

While nothing is known of reuse all that can be seen must be equal, block by block, under either rule. With values known, chains
and the parts of one leave the pool in the order of their classes' values, also after changes of the rule.
"""

import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

from eviction_client.curve import KNOTS
from eviction_client.ended import Ended, Run
from eviction_client.engines.vllm.hooks import Hooks
from eviction_client.hints import Retained
from eviction_client.value_queue import Table, ValueQueue
from tests.engine.pools import pool_of

BLOCKS: Final = 48
OPERATIONS: Final = 240
STEP_S: Final = 0.3
"""Between two operations of a course: some frees fall into one second, some do not. Longer than the hooks' `STEP_S`."""
LOW, MIDDLE, HIGH = range(3)
TABLES: Final[list[Table]] = [[value / (1.0 + age) for age in KNOTS] for value in (1e-6, 1e-3, 1.0)]


class Ending:
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


class Plugin:
    """A plug-in as the hooks use it. Its clock is the course's."""

    classes = len(TABLES)
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


class PoolEngine:
    """The part of a scheduler that the hooks touch, around a small block pool; with or without them."""

    def __init__(self, *, learned: bool, value_enabled: bool = False) -> None:
        self.block_pool = pool_of(BLOCKS)
        self.plugin = cast(Any, Plugin())
        self.plugin.value_enabled = value_enabled
        self.block_size = self.hash_block_size = self.block_pool.hash_block_size
        self.single_type_managers = (self,)
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


def course(engine: PoolEngine, seed: int) -> Iterator[tuple[str, object]]:
    """Run a random course through a pool, the same for all; yield after each operation its name and all that can be seen."""
    rng = random.Random(seed)
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
            engine.free(Ending(f"{number}", blocks, finished=kind == "free"))
        elif kind == "defer":
            blocks = running.pop(rng.randrange(len(running)))
            deferred.append(engine.pop_blocks_for_free(Ending(f"{number}", blocks)))
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
