"""The queue under two rules: exactly LRU while nothing is trusted, and after a change as if the rule had always been so."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eviction_client.credit import CreditGrid, Lifetime
from eviction_client.credit_queue import BUCKETS, Chain, CreditQueue
from eviction_client.queue import Block, rounded
from eviction_client.score import Keys

NOW = 1.8e9
NUM_BLOCKS = 48


def make_queue(
    clock: Callable[[], float] = lambda: NOW, num_blocks: int = NUM_BLOCKS, trusting: bool = True
) -> tuple[CreditQueue[Block], list[Block]]:
    queue = CreditQueue(Block(-1), Block(-1), lifetime=Lifetime(num_blocks), clock=clock)
    queue.trusting = trusting
    return queue, [Block(i) for i in range(num_blocks)]


def ids(blocks: list[Block]) -> list[int]:
    return [block.block_id for block in blocks]


class NaiveRule:
    """One rule, in force all along: a list sorted by rounded key, equals by the number of their free."""

    def __init__(self, *, trusting: bool) -> None:
        self.trusting = trusting
        self.entries: dict[int, tuple[float, int, int]] = {}  # block id -> (rounded key, number, place in the chain)

    def insert(self, chain: list[int], keys: Keys, number: int) -> None:
        key = rounded(keys.key if self.trusting else keys.t_last)
        self.entries |= {block: (key, number, place) for place, block in enumerate(chain)}

    def order(self) -> list[int]:
        return sorted(self.entries, key=lambda block: self.entries[block])


class QueueAgainstBothRules(RuleBasedStateMachine):
    """Random frees, touches, evictions, late credit and changes of rule, the re-sorting in random steps between them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.queue, self.blocks = make_queue(lambda: self.now, trusting=False)
        self.in_use = list(range(NUM_BLOCKS))
        self.rules = {trusting: NaiveRule(trusting=trusting) for trusting in (False, True)}
        self.contentless: list[int] = []
        self.chains: list[tuple[Chain, list[int], Keys, int]] = []
        self.freed_in: dict[int, int] = {}
        self.number = 0

    def take(self, data: st.DataObject) -> list[int]:
        n = data.draw(st.integers(1, min(8, len(self.in_use))))
        start = data.draw(st.integers(0, len(self.in_use) - n))
        taken = self.in_use[start : start + n]
        del self.in_use[start : start + n]
        return taken

    def forget(self, gone: list[int]) -> None:
        for naive in self.rules.values():
            for block in gone:
                naive.entries.pop(block, None)
        self.contentless = [block for block in self.contentless if block not in gone]
        self.in_use += gone

    @precondition(lambda self: self.in_use)
    @rule(data=st.data(), wait=st.sampled_from([0.0, 0.2, 3.0, 40.0]), credit=st.sampled_from([0.0, 0.4, -5.0, 30.0, -100.0]))
    def free(self, data: st.DataObject, wait: float, credit: float) -> None:
        self.now += wait
        chain = self.take(data)
        self.number += 1
        keys = Keys(self.now, self.now + credit)
        freed = self.queue.insert_keyed([self.blocks[i] for i in chain], keys)
        assert freed is not None
        for naive in self.rules.values():
            naive.insert(chain, keys, self.number)
        self.freed_in.update(dict.fromkeys(chain, self.number))
        self.chains.append((freed, chain, keys, self.number))

    @precondition(lambda self: self.in_use)
    @rule(data=st.data())
    def free_without_content(self, data: st.DataObject) -> None:
        chain = self.take(data)
        self.queue.prepend_n([self.blocks[i] for i in chain])
        self.contentless[0:0] = chain

    @precondition(lambda self: self.rules[True].entries)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        order = self.rules[True].order()
        end = data.draw(st.integers(1, len(order)))
        gone = order[max(0, end - data.draw(st.integers(1, 8))) : end][::-1]
        for block in gone:
            self.queue.remove(self.blocks[block])
        self.forget(gone)

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        n = data.draw(st.integers(0, min(8, len(self.queue))))
        settled = not self.queue.unsettled
        gone = ids(self.queue.popleft_n(n))
        if settled:
            assert gone == self.order()[:n]
        self.forget(gone)

    @precondition(lambda self: self.chains)
    @rule(data=st.data(), credit=st.sampled_from([0.0, 7.0, 60.0, -60.0]))
    def credit_comes_late(self, data: st.DataObject, credit: float) -> None:
        chain, blocks, keys, number = data.draw(st.sampled_from(self.chains))
        key = keys.t_last + credit
        self.queue.lay(chain, credit)
        for place, block in enumerate(blocks):
            if self.freed_in[block] == number and block in self.rules[True].entries:
                self.rules[True].entries[block] = (rounded(key), number, place)

    @rule(trusting=st.booleans())
    def change_the_rule(self, trusting: bool) -> None:
        self.queue.trusting = trusting

    @rule(budget=st.sampled_from([1, 2, 5, 1000]))
    def resort(self, budget: int) -> None:
        self.queue.resort(budget)

    def order(self) -> list[int]:
        return self.contentless + self.rules[self.queue.trusting].order()

    @invariant()
    def no_block_is_lost_and_none_is_there_twice(self) -> None:
        assert sorted(ids(list(self.queue))) == sorted(self.order())
        assert len(self.queue) == len(self.order())
        assert ids(list(self.queue))[: len(self.contentless)] == self.contentless

    @invariant()
    def settled_it_is_the_order_of_a_queue_that_was_under_this_rule_all_along(self) -> None:
        if not self.queue.unsettled:
            assert ids(list(self.queue)) == self.order()

    def teardown(self) -> None:
        for _ in range(10_000):
            if not self.queue.resort(3):
                break
        self.settled_it_is_the_order_of_a_queue_that_was_under_this_rule_all_along()
        assert not self.queue.unsettled


TestQueueAgainstBothRules = QueueAgainstBothRules.TestCase
TestQueueAgainstBothRules.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def test_while_nothing_is_trusted_credit_orders_nothing() -> None:
    queue, b = make_queue(trusting=False)
    queue.insert_keyed(b[0:2], Keys(NOW, NOW + 1000))
    queue.insert_keyed(b[2:4], Keys(NOW + 30, NOW - 1000))
    assert ids(list(queue)) == [0, 1, 2, 3]
    queue.trusting = True
    assert queue.resort(1000) == 0
    assert ids(list(queue)) == [2, 3, 0, 1]


credits_ = st.floats(-1e4, 1e4)
frees = st.lists(st.tuples(st.floats(0, 500), credits_), min_size=1, max_size=12)


@given(st.lists(st.floats(0, 500), min_size=1, max_size=12), credits_, st.lists(st.floats(0.1, 1e4), min_size=12, max_size=12))
def test_equal_credit_for_all_is_lru_while_the_lifetime_moves(
    waits: list[float], credit: float, lifetimes: list[float]
) -> None:
    table = CreditGrid([1.0, 60.0, 3600.0]).table([credit] * 3)
    queue, b = make_queue()
    now = NOW
    for number, wait in enumerate(waits):
        now += wait
        queue.insert_keyed(b[4 * number : 4 * number + 4], Keys(now, now + table.at(lifetimes[number])))
    assert ids(list(queue)) == list(range(4 * len(waits)))


@given(frees, st.integers(-500, 500))
def test_the_order_does_not_depend_on_when_time_began(made: list[tuple[float, float]], shift: int) -> None:
    # By even seconds, since the halves of a second are rounded to even.
    orders = []
    for start in (NOW, NOW + 2 * shift):
        queue, b = make_queue()
        now = start
        for number, (wait, credit) in enumerate(made):
            now += round(wait * 4) / 4  # exact in both, so that both round alike
            queue.insert_keyed([b[number]], Keys(now, now + round(credit * 4) / 4))
        orders.append(ids(list(queue)))
    assert orders[0] == orders[1]


def test_a_nan_key_is_refused_and_changes_nothing() -> None:
    queue, b = make_queue()
    for keys in (Keys(NOW, math.nan), Keys(math.nan, NOW)):
        with pytest.raises(ValueError, match="not NaN"):
            queue.insert_keyed(b[0:1], keys)
    chain = queue.insert_keyed(b[1:2], Keys(NOW, NOW))
    assert chain is not None
    with pytest.raises(ValueError, match="not NaN"):
        queue.lay(chain, math.nan)
    assert ids(list(queue)) == [1]


def test_the_lifetime_is_learnt_from_blocks_with_content_only() -> None:
    clock = [NOW]
    queue, b = make_queue(lambda: clock[0], num_blocks=4)
    queue.insert_keyed(b[0:2], Keys(NOW, NOW))
    queue.prepend_n(b[2:4])
    clock[0] += 200.0
    queue.popleft_n(2)
    assert queue.lifetime.seconds == 60.0 and not sum(queue.evictions)
    queue.prepend_n(b[2:4])
    queue.popleft_n(4)
    assert queue.lifetime.seconds == pytest.approx(60.0 + (200.0 - 60.0) / 2)
    assert sum(queue.evictions) == 2


@pytest.mark.parametrize(("trusting", "age"), [(False, 200.0), (True, 150.0)])
def test_the_age_that_counts_is_that_of_the_key_in_force(trusting: bool, age: float) -> None:
    clock = [NOW]
    queue, b = make_queue(lambda: clock[0], num_blocks=2, trusting=trusting)
    queue.insert_keyed(b, Keys(NOW, NOW + 50))
    clock[0] += 200.0
    queue.popleft_n(2)
    assert queue.lifetime.seconds == pytest.approx(age)
    assert dict(zip((*BUCKETS, math.inf), queue.evictions, strict=True))[-120.0] == 2


def test_what_an_application_ended_says_nothing_of_the_price_of_room() -> None:
    queue, b = make_queue()
    queue.insert_keyed(b, Keys.done(NOW))
    queue.popleft_n(NUM_BLOCKS)
    assert queue.lifetime.seconds == 60.0


@pytest.mark.parametrize("trusting", [False, True])
@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_a_clock_that_jumps_a_day_leaves_the_order_lru(jump: float, trusting: bool) -> None:
    from eviction_client.clock import MonotoneClock

    source = [NOW]
    clock = MonotoneClock(lambda: source[0])
    queue, b = make_queue(clock.now, trusting=trusting)
    for number in range(24):
        source[0] += 7.0 if number not in (8, 16) else jump if number == 8 else -jump
        now = clock.now()
        queue.insert_keyed(b[2 * number : 2 * number + 2], Keys(now, now))
    assert ids(list(queue)) == list(range(48))
    queue.popleft_n(10)
    assert 0.0 <= queue.lifetime.seconds <= 86_400.0


def test_a_step_of_re_sorting_moves_so_many_chains_and_no_more() -> None:
    queue, b = make_queue(num_blocks=20_000)
    for start in range(0, 20_000, 50):
        queue.insert_keyed(b[start : start + 50], Keys(NOW + start, NOW + start + (start * 7919) % 1000))
    queue.trusting = False
    steps = 0
    while left := queue.unsettled:
        queue.resort(8)
        steps += 1
        assert left - queue.unsettled <= 8
    assert 50 <= steps <= 100
    assert ids(list(queue)) == list(range(20_000))


def test_a_raised_block_keeps_its_last_use() -> None:
    queue, b = make_queue()
    queue.insert_keyed(b[0:3], Keys(NOW, NOW - 50))
    queue.insert_keyed(b[3:6], Keys(NOW + 5, NOW + 5))
    queue.rescore(b[1], NOW + 90)
    assert ids(list(queue)) == [0, 2, 3, 4, 5, 1]
    queue.trusting = False
    assert queue.resort(1000) == 0
    assert sorted(ids(list(queue))[:3]) == [0, 1, 2] and ids(list(queue))[3:] == [3, 4, 5]


def test_many_chains_of_one_second_are_found_and_forgotten() -> None:
    queue, b = make_queue()
    for number in range(48):
        queue.insert_keyed(b[number : number + 1], Keys(NOW, NOW + number % 3))
    for block in (b[3], b[45], b[0]):
        queue.remove(block)
    assert ids(queue.popleft_n(13)) == [n for n in range(0, 48, 3) if n not in (0, 3, 45)]
    queue.trusting = False
    queue.resort(1000)
    assert ids(list(queue)) == [n for n in range(48) if n % 3]
    queue.popleft_n(len(queue))
    assert queue.num_runs == 0 and queue.unsettled == 0 and queue._ages[6] is queue._ages


def test_what_is_not_free_or_has_no_content_cannot_be_raised() -> None:
    queue, b = make_queue()
    queue.prepend_n(b[0:2])
    queue.insert_keyed(b[2:4], Keys(NOW, NOW))
    for block, why in ((b[1], "no content"), (b[9], "not free")):
        with pytest.raises(ValueError, match=why):
            queue.rescore(block, NOW + 5)
    assert ids(list(queue)) == [0, 1, 2, 3]
