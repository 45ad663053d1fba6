"""Benchmark `queue`: our free queue against a plain doubly linked LRU list, in one process, round by round.

One operation is the queue's work for one request: a returning conversation *touches* its chain (removes it, root first), its
end *frees* the chain (tail first), and a new request *allocates* as many blocks from the front. Both sides get the same
sequence in alternating order. Half a second passes per freed chain (two requests a second), and each chain is in one of 64
reuse classes, drawn at random. *Renew* calculates the values of all classes, as an engine does four times a second.
"""

import gc
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from time import perf_counter_ns
from typing import Any, Final, NamedTuple, Protocol

from rich.progress import track
from rich.table import Table

from eviction_client.queue import Block
from eviction_client.value_queue import ValueQueue
from lpc.model.curve import EDGES, values
from lpc.wire.terminal import console

BLOCKS: Final = (1_000, 20_000, 200_000)
CHAINS: Final = (1, 64, 512)
SECONDS_PER_CHAIN: Final = 0.5
TABLES: Final[Sequence[Sequence[float]]] = [
    values([min((high - low) / (mean + low), 0.9) for low, high in pairwise(EDGES)]) for mean in range(20, 660, 10)
]
"""Value tables of classes whose blocks return after 20 to 650 seconds, the later ones less often."""


class Use(NamedTuple):
    """A chain's last use (seconds) and its reuse class."""

    last: float
    reuse_class: int


class LruList:
    """A plain doubly linked LRU list: append at the end, pop at the front, unlink anywhere."""

    def __init__(self, head: Block, tail: Block) -> None:
        self.num_free_blocks = 0
        self.head = head
        self.tail = tail
        head.next_free_block = tail
        tail.prev_free_block = head

    def insert(self, blocks: Sequence[Block], _use: Use) -> None:
        """Append blocks in order, ignoring their class."""
        if not blocks:
            return
        last: Any = self.tail.prev_free_block
        for block in blocks:
            block.prev_free_block = last
            last.next_free_block = block
            last = block
        last.next_free_block = self.tail
        self.tail.prev_free_block = last
        self.num_free_blocks += len(blocks)

    def popleft_n(self, n: int) -> list[Block]:
        """Take out the n first blocks."""
        if n > self.num_free_blocks:
            raise ValueError("fewer free blocks than requested")
        popped: list[Block] = []
        block: Any = self.head.next_free_block
        for _ in range(n):
            popped.append(block)
            following = block.next_free_block
            block.prev_free_block = None
            block.next_free_block = None
            block = following
        self.head.next_free_block = block
        block.prev_free_block = self.head
        self.num_free_blocks -= n
        return popped

    def remove(self, block: Block) -> None:
        """Unlink a block."""
        before = block.prev_free_block
        after = block.next_free_block
        if before is None or after is None:
            raise ValueError("not free")
        before.next_free_block = after
        after.prev_free_block = before
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1


class Queue(Protocol):
    """The interface of both queues."""

    def popleft_n(self, n: int) -> list[Block]:
        """Take out the n first blocks."""
        ...

    def remove(self, block: Block) -> None:
        """Take a block out."""
        ...


@dataclass
class Side:
    """One side: its queue, its chains (tail first), how it frees a chain, and its work per scheduler step."""

    queue: Queue
    chains: list[list[Block]]
    free: Callable[[list[Block], Use], object]
    renew: Callable[[], None]


@dataclass(frozen=True)
class Row:
    """Median times of our queue per block, over the LRU list's and in nanoseconds; a renewal in microseconds."""

    blocks: int
    chain: int
    allocate_ratio: float
    free_ratio: float
    touch_ratio: float
    allocate_ns: float
    free_ns: float
    touch_ns: float
    renew_us: float


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure all sizes; print a table; return ``{"rows": [...]}`` with keys as in :class:`Row`."""
    screen = console()
    rows = []
    cases = [(blocks, chain) for blocks in BLOCKS for chain in CHAINS]
    for blocks, chain in track(cases, description="bench queue", console=screen, transient=True):
        rows.append(_measure(blocks, chain, rounds=3 if quick else 9, budget_s=1.0 if quick else 4.0))
    table = Table(title="free queue / plain LRU list: time per block, median of rounds")
    for column in ("blocks", "chain", "allocate", "free", "touch", "allocate ns", "free ns", "touch ns", "renew us"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            *(f"{row.blocks:,}", str(row.chain)),
            *(f"{ratio:.2f}x" for ratio in (row.allocate_ratio, row.free_ratio, row.touch_ratio)),
            *(f"{ns:.0f}" for ns in (row.allocate_ns, row.free_ns, row.touch_ns, row.renew_us)),
        )
    screen.print(table)
    return {"rows": [asdict(row) for row in rows]}


def _measure(num_blocks: int, chain: int, *, rounds: int, budget_s: float) -> Row:
    ratios: list[tuple[float, ...]] = []
    ours_ns: list[tuple[float, ...]] = []
    for seed in range(rounds):
        plain, ours = _round(num_blocks, chain, random.Random(seed), budget_s / rounds)
        ratios.append(tuple(a / b for a, b in zip(ours, plain, strict=True)))
        ours_ns.append(ours)
    middle = [round(statistics.median(column), 3) for column in zip(*ratios, strict=True)]
    times = [statistics.median(column) for column in zip(*ours_ns, strict=True)]
    per_block = [round(value / chain, 1) for value in times[:3]]
    return Row(num_blocks, chain, *(*middle[:3], *per_block, round(times[3] / 1e3, 1)))


def _round(num_blocks: int, chain: int, rng: random.Random, budget_s: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean nanoseconds per operation (allocate, free, touch, renew) of the LRU list and of our queue."""
    num_chains = num_blocks // chain
    now = 1.8e9

    def next_use() -> Use:
        nonlocal now
        now += SECONDS_PER_CHAIN
        return Use(now, rng.randrange(len(TABLES)))

    initial = [(next_use(), index) for index in range(num_chains)]
    lru, ours = _lru_side(num_blocks, chain), _our_side(num_blocks, chain, lambda: now)
    for use, index in initial:
        for side in (lru, ours):
            side.free(side.chains[index], use)
    spent = {id(lru): [0, 0, 0, 0, 0, 0], id(ours): [0, 0, 0, 0, 0, 0]}
    deadline = perf_counter_ns() + int(budget_s * 1e9)
    gc.disable()
    try:
        step = 0
        while perf_counter_ns() < deadline:
            step += 1
            wanted, after_touch, after_allocate = rng.randrange(num_chains), next_use(), next_use()
            for side in (lru, ours) if step % 2 else (ours, lru):
                _serve(side, wanted, chain, after_touch, after_allocate, spent[id(side)])
    finally:
        gc.enable()
    means = []
    for side in (lru, ours):
        allocate, free, touch, count, touched, renew = spent[id(side)]
        means.append((allocate / count, free / count, touch / max(1, touched), max(renew / count, 1.0)))
    return means[0], means[1]


def _serve(side: Side, wanted: int, chain: int, after_touch: Use, after_allocate: Use, spent: list[int]) -> None:
    queue, free = side.queue, side.free
    blocks = side.chains[wanted]
    root_first = blocks[::-1]
    if all(block.prev_free_block is not None for block in root_first):
        remove = queue.remove
        start = perf_counter_ns()
        for block in root_first:
            remove(block)
        touched = perf_counter_ns()
        free(blocks, after_touch)
        freed = perf_counter_ns()
        spent[2] += touched - start
        spent[1] += freed - touched
        spent[4] += 1
        spent[3] += 1
        renewed = perf_counter_ns()
        side.renew()
        start = perf_counter_ns()
        spent[5] += start - renewed
        allocated = queue.popleft_n(chain)
        spent[0] += perf_counter_ns() - start
        free(allocated, after_allocate)


def _lru_side(num_blocks: int, chain: int) -> Side:
    blocks = [Block(i) for i in range(num_blocks)]
    lru = LruList(Block(-1), Block(-1))
    return Side(lru, _chains(blocks, chain), lru.insert, lambda: None)


def _our_side(num_blocks: int, chain: int, clock: Callable[[], float]) -> Side:
    blocks = [Block(i) for i in range(num_blocks)]
    queue = ValueQueue(Block(-1), Block(-1), len(TABLES), clock=clock)
    queue.set_tables(TABLES)
    queue.value_enabled = True
    return Side(queue, _chains(blocks, chain), lambda freed, use: queue.insert(freed, use.reuse_class, use.last), queue.renew)


def _chains(blocks: list[Block], chain: int) -> list[list[Block]]:
    return [blocks[start : start + chain] for start in range(0, len(blocks) // chain * chain, chain)]
