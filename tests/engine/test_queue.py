"""The queue in vLLM's real block pool: it never loses, duplicates or misorders a block."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from eviction_client.engines.vllm.free_queue import FreedLater, LearnedFreeQueue
from eviction_client.policy.hints import Retained
from eviction_client.policy.queue.free_queue import DONE, HINTED, PREEMPTED, RENEWED_S
from eviction_client.policy.request import TrackedRequest
from lpc.model.curve import value_at
from testing.engine_internals import set_block_hash
from tests.engine.pools import CLASSES, TABLES, adopt, give_hash, ids, order, pool_of
from tests.nightly import LONG
from tests.spans import spans_of

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="its block pool, random operations")
BLOCKS = 60


def chain_of(contents: Sequence[int]) -> list[bytes]:
    """A request with the hashes of a chain."""
    return [content.to_bytes(32, "big") for content in contents]


def ended_with(chain: Sequence[bytes], *runs: tuple[int, int], retain_s: float = 0.0) -> TrackedRequest[bytes]:
    return TrackedRequest("r", blocks=chain, spans=spans_of(*runs), retain_s=retain_s)


class QueueInTheRealPool(RuleBasedStateMachine):
    """Random operations of an engine on its pool, compared with a plain list of the freed blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.pool = pool_of(BLOCKS)
        self.queue = adopt(self.pool, lambda: self.now)
        self.queue.retained = Retained(BLOCKS)
        self.front = order(self.pool)
        self.free: dict[int, tuple[int, float, int]] = {}  # id -> class, last use, position in the order of frees
        self.chain: dict[int, int] = {}  # id -> the chain with which it was freed
        self.until: dict[int, tuple[float, int]] = {}
        self.running: list[tuple[list[KVCacheBlock], list[bytes]]] = []
        self.places = self.contents = self.chains = 0
        self.known: dict[int, int] = {}  # chain -> class of its first part
        self.mixed: set[int] = set()  # chains of several classes, whose parts wait for each other: test_continuations.py

    def note(self, blocks: Sequence[KVCacheBlock], reuse_class: int, *, same_chain: bool = False) -> None:
        self.chains += not same_chain
        if self.known.setdefault(self.chains, reuse_class) != reuse_class:
            self.mixed.add(self.chains)
        for block in blocks:
            self.places += 1
            self.free[block.block_id] = reuse_class, self.now, self.places
            self.chain[block.block_id] = self.chains

    def lowest(self, block: int) -> float:
        """Return the lowest rank of the block and of the shallower blocks of its chain, which it must not outlive."""
        chain, place = self.chain[block], self.free[block][2]
        return min(self.rank(other)[0] for other in self.free if self.chain[other] == chain and self.free[other][2] >= place)

    def rank(self, block: int) -> tuple[float, float]:
        """Return a block's rank; the lowest is evicted first."""
        reuse_class, used, place = self.free[block]
        if reuse_class in (DONE, HINTED):
            return (-math.inf if reuse_class == DONE else math.inf), place
        if self.queue.tables is None:
            return place, place
        if reuse_class == PREEMPTED:
            return 10.0 / (1.0 + self.now - used), place
        return value_at(TABLES[reuse_class], self.now - used), place

    @precondition(lambda self: self.pool.get_num_free_blocks() > 0)
    @rule(n=st.integers(1, 8), hashed=st.integers(0, 8))
    def allocate(self, n: int, hashed: int) -> None:
        self.now += RENEWED_S
        self.queue.renew()
        taken = self.pool.get_new_blocks(min(n, self.pool.get_num_free_blocks()))
        front, self.front = self.front[: len(taken)], self.front[len(taken) :]
        assert ids(taken)[: len(front)] == front
        for block in ids(taken)[len(front) :]:
            lowest, mixed = self.lowest(block), self.chain[block] in self.mixed
            del self.free[block]
            others = [other for other in self.free if self.chain[other] not in self.mixed]
            assert mixed or all(lowest <= self.rank(other)[0] * (1 + 1e-9) for other in others)
        contents = range(self.contents, self.contents + min(hashed, len(taken)))
        self.contents += len(contents)
        for block, content in zip(taken, contents, strict=False):
            give_hash(self.pool, block, content)
        self.running.append((taken, chain_of(contents)))

    @property
    def cached(self) -> list[int]:
        return [block for block in sorted(self.free) if self.pool.blocks[block].block_hash is not None]

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        """Remove a block from the prefix cache; it keeps its position in the queue."""
        self.pool.evict_blocks({data.draw(st.sampled_from(self.cached))})

    @precondition(lambda self: not self.running)
    @rule()
    def reset(self) -> None:
        assert self.pool.reset_prefix_cache() and not self.cached

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        """Use a whole chain again, unless a block of it was removed from the prefix cache."""
        chain = self.chain[data.draw(st.sampled_from(self.cached))]
        names = sorted((block for block in self.free if self.chain[block] == chain), key=lambda block: -self.free[block][2])
        blocks = [self.pool.blocks[name] for name in names]
        if any(block.block_hash is None for block in blocks):
            return
        self.pool.touch(blocks)
        for name in names:
            del self.free[name]
        self.running.append((blocks, [bytes(block.block_hash or b"")[:-4] for block in blocks]))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), goes_on=st.booleans(), retain_s=st.sampled_from([0.0, 0.0, 0.0, 20.0]), later=st.booleans())
    def end(self, data: st.DataObject, goes_on: bool, retain_s: float, later: bool) -> None:
        blocks, chain = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.now += RENEWED_S
        ends = sorted(data.draw(st.sets(st.integers(1, max(len(chain), 1)), max_size=3)) | {len(chain)})
        runs = [(end, data.draw(st.sampled_from([*range(CLASSES), DONE][: CLASSES + (end == ends[-1])]))) for end in ends]
        ended = None if goes_on else ended_with(chain, *runs, retain_s=retain_s)
        self.front[:0] = [block.block_id for block in reversed(blocks) if block.block_hash is None]
        hashed = [block for block in reversed(blocks) if block.block_hash is not None]
        if later:
            self.queue.placing(ended, self.pool.free_blocks, reversed(FreedLater(blocks, ended)))
        else:
            self.queue.placing(ended, self.pool.free_blocks, reversed(blocks))
        if goes_on:
            self.note(hashed, PREEMPTED)
            return
        spans = spans_of(*runs)
        for span in reversed(spans):
            part = hashed[::-1][span.start : span.end][::-1]
            retained = retain_s > 0.0 and span.reuse_class != DONE
            self.note(part, HINTED if retained else span.reuse_class, same_chain=span is not spans[-1])
            if retained:
                self.until |= {block.block_id: (self.now + retain_s, span.reuse_class) for block in part}

    @rule(seconds=st.floats(0.3, 30.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.queue.expire(1000)
        over = [block for block, (until, _) in self.until.items() if until <= self.now]
        held = [block for block in over if self.free.get(block, (0,))[0] == HINTED]
        for block in sorted(held, key=lambda block: (self.until[block][0], self.free[block][2])):
            chain = self.chain[block]
            self.note([self.pool.blocks[block]], self.until[block][1])
            self.chain[block] = chain
            self.mixed.add(chain)
        for block in over:
            del self.until[block]

    @rule(enabled=st.booleans())
    def switch(self, enabled: bool) -> None:
        self.queue.set_tables(TABLES if enabled else None)

    @invariant()
    def no_block_is_lost_or_doubled(self) -> None:
        listed = order(self.pool)
        assert listed[: len(self.front)] == self.front
        assert sorted(listed[len(self.front) :]) == sorted(self.free)
        running = sum(len(blocks) for blocks, _ in self.running)
        assert self.queue.num_free_blocks + running == BLOCKS - 1  # less the null block
        if self.queue.tables is None:
            assert listed[len(self.front) :] == sorted(self.free, key=lambda block: (self.lowest(block), self.free[block][2]))
        check_links(self.queue)


TestQueueInTheRealPool = QueueInTheRealPool.TestCase
# Ten thousand operations, ten times as many in `make test-nightly`.
TestQueueInTheRealPool.settings = settings(max_examples=1000 if LONG else 100, stateful_step_count=100, deadline=None)


def check_links(queue: LearnedFreeQueue) -> None:
    block, count = queue.fake_free_list_head, -1
    while block is not queue.fake_free_list_tail:
        following = block.next_free_block
        assert following is not None and following.prev_free_block is block
        block, count = following, count + 1
    assert count == queue.num_free_blocks


def test_a_queue_built_from_blocks_returns_them_in_order() -> None:
    blocks = [KVCacheBlock(block_id=i) for i in range(5)]
    queue = LearnedFreeQueue(blocks)
    assert queue.num_free_blocks == 5 and queue.get_all_free_blocks() == blocks
    assert queue.popleft() is blocks[0]
    queue.remove(blocks[2])
    queue.append(blocks[0])
    assert queue.popleft_n(0) == []
    assert ids(queue.popleft_n(4)) == [1, 3, 4, 0]
    with pytest.raises(ValueError):
        queue.popleft()


def hashed_chain(blocks: Sequence[KVCacheBlock], first: int, *, group: int = 0, scale: int = 1) -> list[bytes]:
    """Give blocks the hashes of a chain, ``scale`` hashes per block; return the chain."""
    chain = [content.to_bytes(32, "big") for content in range(first, first + scale * len(blocks))]
    for place, block in enumerate(blocks):
        set_block_hash(block, chain[(place + 1) * scale - 1] + group.to_bytes(4, "big"))
    return chain


def parts(queue: LearnedFreeQueue, blocks: Sequence[KVCacheBlock], ended: TrackedRequest[bytes]) -> list[tuple[list[int], int]]:
    return [(ids(part), reuse_class) for part, reuse_class in queue.parts(list(reversed(blocks)), ended)]


def test_a_chain_is_split_where_its_runs_end() -> None:
    blocks = [KVCacheBlock(block_id=i) for i in range(6)]
    chain = hashed_chain(blocks, 1)
    ended = ended_with(chain, (2, 1), (5, 3), (6, 0))
    assert parts(LearnedFreeQueue(), blocks, ended) == [([5], 0), ([4, 3, 2], 3), ([1, 0], 1)]
    # Others still use the shared start; the last block is not in the prefix cache yet.
    assert parts(LearnedFreeQueue(), blocks[1:5], ended) == [([4, 3, 2], 3), ([1], 1)]
    assert parts(LearnedFreeQueue(), blocks[5:], ended) == [([5], 0)]


def test_each_group_of_a_hybrid_model_is_split_at_its_own_block_size() -> None:
    small = [KVCacheBlock(block_id=i) for i in range(8)]
    large = [KVCacheBlock(block_id=10 + i) for i in range(4)]
    chain = hashed_chain(small, 1)
    assert hashed_chain(large, 1, group=1, scale=2) == chain
    queue = LearnedFreeQueue((), scales=(1, 2))
    ended = ended_with(chain, (4, 1), (8, 3))
    assert parts(queue, small, ended) == [([7, 6, 5, 4], 3), ([3, 2, 1, 0], 1)]
    assert parts(queue, large[2:], ended) == [([13, 12], 3)]
    assert parts(queue, [*small[:4], *large], ended)[-1] == ([3, 2, 1, 0], 3), "not the end of its chain"
    assert parts(queue, [*large, *small], ended) == [
        ([7, 6, 5, 4], 3),
        ([3, 2, 1, 0], 1),
        ([13, 12], 3),
        ([11, 10], 1),
    ]


def test_classes_apply_to_one_free_even_if_it_fails() -> None:
    now = 100.0
    pool = pool_of(10)
    queue = adopt(pool, lambda: now)
    blocks = pool.get_new_blocks(2)
    for number, block in enumerate(blocks):
        give_hash(pool, block, number)

    def fail(freed: list[KVCacheBlock]) -> None:
        pool.free_blocks(freed)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        queue.placing(ended_with([b"x"], (1, 3)), fail, blocks[:1])
    pool.free_blocks(blocks[1:])
    assert ids(queue.get_all_free_blocks()[-2:]) == ids(blocks)
    assert {run.reuse_class for _, run in queue.places()} == {0, 3}
