"""The free queue against a model: a list kept sorted by run, insertion order within."""

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eviction_client.queue import RUN_WIDTH, Block, FreeBlockQueue, rounded
from eviction_client.score import FIRST_OUT

NUM_BLOCKS = 64


def make_queue(num_blocks: int = NUM_BLOCKS) -> tuple[FreeBlockQueue[Block], list[Block]]:
    return FreeBlockQueue(Block(-1), Block(-1)), [Block(i) for i in range(num_blocks)]


def ids(blocks: list[Block]) -> list[int]:
    return [block.block_id for block in blocks]


def test_the_smallest_score_leaves_first() -> None:
    queue, b = make_queue()
    queue.insert(b[0:3], 5.0)
    queue.insert(b[3:5], 1.0)
    queue.insert(b[5:6], 3.0)
    assert ids(queue.popleft_n(6)) == [3, 4, 5, 0, 1, 2]


def test_by_the_time_of_the_last_use_the_order_is_lru() -> None:
    queue, b = make_queue()
    for turn in range(16):
        queue.insert(b[4 * turn : 4 * turn + 4], 1_800_000_000.0 + 0.37 * turn)
    assert ids(list(queue)) == list(range(64))


def test_scores_closer_than_a_run_is_wide_keep_the_order_of_insertion() -> None:
    queue, b = make_queue()
    queue.insert(b[0:1], 10.4 * RUN_WIDTH)
    queue.insert(b[1:2], 9.6 * RUN_WIDTH)
    queue.insert(b[2:3], 9.4 * RUN_WIDTH)
    assert ids(list(queue)) == [2, 0, 1]


def test_blocks_without_content_leave_before_all_others_in_the_given_order() -> None:
    queue, b = make_queue()
    queue.insert(b[0:2], -1e9)
    queue.prepend_n(b[2:4])
    queue.prepend_n(b[4:5])
    assert ids(queue.popleft_n(5)) == [4, 2, 3, 0, 1]


def test_the_highest_score_is_that_of_the_block_evicted_last() -> None:
    queue, b = make_queue()
    assert queue.highest_score == FIRST_OUT
    queue.prepend_n(b[3:4])
    assert queue.highest_score == FIRST_OUT
    queue.insert(b[0:2], 2.01 * RUN_WIDTH)
    queue.insert(b[2:3], 1.0)
    assert queue.highest_score == rounded(2.01 * RUN_WIDTH) and abs(queue.highest_score - 2.01 * RUN_WIDTH) < queue.tolerance
    assert [score for _, score in queue.candidates(4)] == [FIRST_OUT, 1.0, queue.highest_score, queue.highest_score]


def test_infinite_scores_stand_at_the_ends() -> None:
    queue, b = make_queue()
    queue.insert(b[0:1], math.inf)
    queue.insert(b[1:2], 0.0)
    queue.insert(b[2:3], FIRST_OUT)
    queue.insert(b[3:4], math.inf)
    assert ids(list(queue)) == [2, 1, 0, 3]


def test_a_nan_score_is_refused_and_changes_nothing() -> None:
    queue, b = make_queue()
    queue.insert(b[0:1], 1.0)
    with pytest.raises(ValueError, match="not NaN"):
        queue.insert(b[1:2], math.nan)
    assert (ids(list(queue)), len(queue), b[1].prev_free_block) == ([0], 1, None)


def test_asking_for_more_than_is_free_is_refused_and_changes_nothing() -> None:
    queue, b = make_queue()
    queue.insert(b[0:2], 1.0)
    with pytest.raises(ValueError, match="3 blocks asked for, 2 are free"):
        queue.popleft_n(3)
    assert ids(list(queue)) == [0, 1]


def test_a_block_in_use_cannot_be_removed() -> None:
    queue, b = make_queue()
    with pytest.raises(ValueError, match="block 7 is not free"):
        queue.remove(b[7])


def test_the_list_of_blocks_that_a_caller_passes_stays_his() -> None:
    queue, b = make_queue()
    chain = b[0:3]
    queue.insert(chain, 1.0)
    chain.clear()
    assert ids(list(queue)) == [0, 1, 2]


def test_the_index_does_not_grow_with_time() -> None:
    queue, b = make_queue()
    for turn in range(20_000):
        queue.insert(b[0:1], float(turn))
        queue.popleft()
    assert queue.num_runs == 0
    assert len(queue._keys) < 200


class QueueAgainstModel(RuleBasedStateMachine):
    """Random operations on the queue and on a plain sorted list; both must agree after each."""

    scores = st.one_of(
        st.sampled_from([0.0, 1.0, 1.0 + RUN_WIDTH, -3.0, math.inf, FIRST_OUT]), st.floats(-20, 20, allow_nan=False)
    )

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.blocks = make_queue()
        self.in_use = list(range(NUM_BLOCKS))
        self.model: list[tuple[float, int]] = []  # (score of the run, block id), in eviction order
        self.contentless: list[int] = []

    def take(self, data: st.DataObject) -> list[int]:
        n = data.draw(st.integers(1, min(8, len(self.in_use))))
        start = data.draw(st.integers(0, len(self.in_use) - n))
        taken = self.in_use[start : start + n]
        del self.in_use[start : start + n]
        return taken

    @precondition(lambda self: self.in_use)
    @rule(data=st.data(), score=scores)
    def insert(self, data: st.DataObject, score: float) -> None:
        chain = self.take(data)
        self.queue.insert([self.blocks[i] for i in chain], score)
        low = round(score / RUN_WIDTH) * RUN_WIDTH if math.isfinite(score) else score
        place = sum(1 for other, _ in self.model if other <= low)
        self.model[place:place] = [(low, i) for i in chain]

    @precondition(lambda self: self.in_use)
    @rule(data=st.data())
    def prepend(self, data: st.DataObject) -> None:
        chain = self.take(data)
        self.queue.prepend_n([self.blocks[i] for i in chain])
        self.contentless[0:0] = chain

    @precondition(lambda self: self.model or self.contentless)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        order = self.order()
        gone = data.draw(st.sampled_from(order))
        self.queue.remove(self.blocks[gone])
        self.forget([gone])

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def touch_a_prefix_root_first(self, data: st.DataObject) -> None:
        end = data.draw(st.integers(0, len(self.model) - 1))
        n = data.draw(st.integers(1, 8))
        gone = [i for _, i in self.model[max(0, end - n + 1) : end + 1]][::-1]
        for i in gone:
            self.queue.remove(self.blocks[i])
        self.forget(gone)

    @rule(data=st.data())
    def pop(self, data: st.DataObject) -> None:
        order = self.order()
        n = data.draw(st.integers(0, len(order)))
        assert ids(self.queue.popleft_n(n)) == order[:n]
        self.forget(order[:n])

    @precondition(lambda self: self.model)
    @rule(data=st.data(), score=scores)
    def rescore(self, data: st.DataObject, score: float) -> None:
        moved = data.draw(st.sampled_from([i for _, i in self.model]))
        self.queue.rescore(self.blocks[moved], score)
        self.model = [(low, i) for low, i in self.model if i != moved]
        low = round(score / RUN_WIDTH) * RUN_WIDTH if math.isfinite(score) else score
        place = sum(1 for other, _ in self.model if other <= low)
        self.model.insert(place, (low, moved))

    def order(self) -> list[int]:
        return self.contentless + [i for _, i in self.model]

    def forget(self, gone: list[int]) -> None:
        self.model = [(low, i) for low, i in self.model if i not in gone]
        self.contentless = [i for i in self.contentless if i not in gone]
        self.in_use += gone

    @invariant()
    def the_orders_agree(self) -> None:
        expected = self.order()
        assert ids(list(self.queue)) == expected
        assert len(self.queue) == len(expected)
        scored = [(block.block_id, low) for block, low in self.queue.iter_scored()]
        assert scored == [(i, FIRST_OUT) for i in self.contentless] + [(i, low) for low, i in self.model]

    @invariant()
    def the_links_back_mirror_the_links_forth(self) -> None:
        backwards = []
        block = self.queue.tail.prev_free_block
        while block is not self.queue.head:
            assert block is not None
            backwards.append(block.block_id)
            block = block.prev_free_block
        assert backwards[::-1] == self.order()

    @invariant()
    def used_blocks_have_no_links_and_start_no_run(self) -> None:
        for i in self.in_use:
            assert self.blocks[i].prev_free_block is None
            assert self.blocks[i].next_free_block is None
            assert i not in self.queue._run_starting_at

    @invariant()
    def every_run_is_alive_and_counted_once(self) -> None:
        assert self.queue.num_runs == len({low for low, _ in self.model})


TestQueueAgainstModel = QueueAgainstModel.TestCase
TestQueueAgainstModel.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
