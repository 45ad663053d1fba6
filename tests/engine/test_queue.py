"""The queue in vLLM's real block pool: a drop-in that never loses, doubles or misorders a block."""

import random
from bisect import insort
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from eviction_client.engines.vllm.queue import KeyedBlocks, LearnedFreeQueue
from eviction_client.queue import RUN_WIDTH, rounded
from eviction_client.score import Keys
from tests.engine.pools import SHORT, adopt, give_hash, ids, order, pool_of

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="its block pool, random operations")
BLOCKS = 60
KEYS = st.none() | st.floats(-20, 20) | st.integers(-3, 3).map(lambda n: n * RUN_WIDTH) | st.sampled_from([1e7, -1e7])


Place = tuple[float, int, int, int, int]


class Model:
    """What the queue must hold, as a sorted list: blocks without content first, then by run, then by insertion."""

    def __init__(self, blocks: list[int]) -> None:
        self.front = list(blocks)
        self.scored: list[Place] = []
        self.places: dict[int, Place] = {}
        self.frees = self.raises = 0

    def order(self) -> list[int]:
        return self.front + [place[-1] for place in self.scored]

    def insert(self, blocks: list[int], score: float) -> None:
        self.frees += 1
        for depth, block in enumerate(blocks):
            self.places[block] = place = (rounded(score), self.frees, 0, depth, block)
            insort(self.scored, place)

    def raise_or_lower(self, block: int, score: float) -> None:
        """Its free stays what it was; of the blocks of one free and one key those raised come last, in that order."""
        _, free, *_ = self.places[block]
        self.remove(block)
        self.raises += 1
        self.places[block] = place = (rounded(score), free, self.raises, 0, block)
        insort(self.scored, place)

    def remove(self, block: int) -> None:
        if block in self.places:
            self.scored.remove(self.places.pop(block))
        else:
            self.front.remove(block)

    def pop(self, n: int) -> list[int]:
        popped = self.order()[:n]
        self.front, rest = self.front[n:], max(n - len(self.front), 0)
        for place in self.scored[:rest]:
            del self.places[place[-1]]
        del self.scored[:rest]
        return popped


class QueueInTheRealPool(RuleBasedStateMachine):
    """What an engine does with its pool, beside a sorted list that says what must come of it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pool = pool_of(BLOCKS)
        self.queue = adopt(self.pool, lambda: self.now)
        self.model = Model(order(self.pool))
        self.used: list[KVCacheBlock] = []
        self.contents = 0

    @precondition(lambda self: self.pool.get_num_free_blocks() > 0)
    @rule(n=st.integers(1, 8), hashed=st.integers(0, 8))
    def allocate(self, n: int, hashed: int) -> None:
        taken = self.pool.get_new_blocks(min(n, self.pool.get_num_free_blocks()))
        assert ids(taken) == self.model.pop(len(taken))
        for block in taken[:hashed]:
            self.contents += 1
            give_hash(self.pool, block, self.contents)
        self.used.extend(taken)

    @precondition(lambda self: self.model.places)
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        block = self.pool.blocks[data.draw(st.sampled_from(sorted(self.model.places)))]
        self.pool.touch([block])
        self.model.remove(block.block_id)
        self.used.append(block)

    @precondition(lambda self: self.used)
    @rule(data=st.data(), score=KEYS)
    def free(self, data: st.DataObject, score: float | None) -> None:
        places = data.draw(st.lists(st.sampled_from(range(len(self.used))), min_size=1, max_size=8, unique=True))
        freed = [self.used[place] for place in places]
        self.used = [block for place, block in enumerate(self.used) if place not in places]
        self.now += 0.1
        self.model.front[:0] = [block.block_id for block in freed if block.block_hash is None]
        hashed = [block.block_id for block in freed if block.block_hash is not None]
        self.model.insert(hashed, self.now if score is None else score)
        self.queue.keying(None if score is None else Keys(0.0, score), self.pool.free_blocks, freed)

    @precondition(lambda self: self.model.places)
    @rule(data=st.data(), score=st.floats(-20, 20))
    def raise_or_lower(self, data: st.DataObject, score: float) -> None:
        block = data.draw(st.sampled_from(sorted(self.model.places)))
        self.queue.rescore(self.pool.blocks[block], score)
        self.model.raise_or_lower(block, score)

    @invariant()
    def no_block_is_lost_doubled_or_out_of_order(self) -> None:
        assert order(self.pool) == self.model.order()
        assert self.queue.num_free_blocks + len(self.used) == BLOCKS - 1  # less the null block
        check_links(self.queue)


TestQueueInTheRealPool = QueueInTheRealPool.TestCase
# A hundred thousand operations; a tenth of that in the short part.
TestQueueInTheRealPool.settings = settings(max_examples=100 if SHORT else 1000, stateful_step_count=100, deadline=None)


def check_links(queue: LearnedFreeQueue) -> None:
    block, count = queue.fake_free_list_head, -1
    while block is not queue.fake_free_list_tail:
        following = block.next_free_block
        assert following is not None and following.prev_free_block is block
        block, count = following, count + 1
    assert count == queue.num_free_blocks


def test_without_credit_the_eviction_sequence_is_the_stock_queues_block_by_block() -> None:
    def evictions(learned: bool) -> Iterator[int]:
        rng = random.Random(7)
        pool = pool_of(200)
        if learned:
            now = iter(range(10**9))
            adopt(pool, lambda: next(now) * 0.01)
        running: list[list[KVCacheBlock]] = []
        contents = 0
        for _ in range(5000):
            if running and (rng.random() < 0.5 or pool.get_num_free_blocks() < 20):
                pool.free_blocks(reversed(running.pop(rng.randrange(len(running)))))
                continue
            chain = pool.get_new_blocks(rng.randint(1, 20))
            for block in chain:
                yield block.block_id
                if rng.random() < 0.9:
                    contents += 1
                    give_hash(pool, block, contents)
            free = [block for block in pool.free_block_queue.get_all_free_blocks() if block.block_hash is not None]
            hits = rng.sample(free, min(len(free), 3))
            pool.touch(hits)
            running.append(hits + chain)

    assert list(evictions(True)) == list(evictions(False))


def test_the_queue_has_the_stock_queues_methods_and_no_fewer() -> None:
    public = {name for name in vars(FreeKVCacheBlockQueue) if not name.startswith("_")}
    assert all(callable(getattr(LearnedFreeQueue, name)) for name in public)
    assert issubclass(LearnedFreeQueue, FreeKVCacheBlockQueue)


def test_built_from_blocks_the_queue_hands_them_out_in_order() -> None:
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


def test_who_walks_the_blocks_after_a_cursor_sees_those_freed_before_it() -> None:
    pool = pool_of(10)
    queue = adopt(pool, lambda: 0.0)
    first, second = (pool.get_new_blocks(1)[0] for _ in range(2))
    give_hash(pool, first, 1)
    give_hash(pool, second, 2)
    for block, score in ((first, 5.0), (second, -5.0)):
        queue.keying(Keys(0.0, score), pool.free_blocks, [block])
    cursor = queue.get_all_free_blocks()[-1]
    assert cursor is first
    assert second in list(queue.iter_blocks_after(cursor))


def test_a_batch_that_is_freed_later_keeps_its_order_and_its_keys_however_often_it_is_turned_round() -> None:
    blocks = [KVCacheBlock(block_id=i) for i in range(3)]
    batch = KeyedBlocks(blocks, Keys(4.0, 5.0), "a", made=4.0, go_last=True)
    once = reversed(batch)
    assert isinstance(once, KeyedBlocks) and (once.keys, once.made, once.go_last) == (Keys(4.0, 5.0), 4.0, True)
    assert once.request_id == "a" and ids(once) == [2, 1, 0]
    assert ids(reversed(once)) == [0, 1, 2] == ids(batch)
    assert once.keys_at(6.0) == Keys(6.0, 7.0)


def test_keys_are_in_force_for_one_free_even_when_that_fails() -> None:
    pool = pool_of(10)
    queue = adopt(pool, lambda: 0.0)
    blocks = pool.get_new_blocks(2)
    for number, block in enumerate(blocks):
        give_hash(pool, block, number)

    def fail(freed: list[KVCacheBlock]) -> None:
        pool.free_blocks(freed)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        queue.keying(Keys(0.0, 5.0), fail, blocks[:1])
    pool.free_blocks(blocks[1:])
    assert {block.block_id: score for block, score in queue.iter_scored() if block in blocks} == {
        blocks[0].block_id: 5.0,
        blocks[1].block_id: 0.0,
    }
