"""The free queue ordered by retention value or by least recent use."""

import math
import random
from collections.abc import Callable
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from eviction_client.policy.queue import free_queue
from eviction_client.policy.queue.free_list import Block
from eviction_client.policy.queue.free_queue import COPY, DONE, PREEMPTED, RENEWED_S, FreeQueue
from eviction_client.policy.rules.lpc import LOG_ODDS_STEP, lpc_tables
from lpc.model.curve import EDGES, INTERVALS, KNOTS, interval_of, value_at, values
from tests.clock import Clock

CLASSES = 4


def queue_of(clock: Clock, classes: int = CLASSES) -> FreeQueue[Block]:
    """Return an empty queue."""
    return FreeQueue(Block(-1), Block(-1), classes, copies=True, clock=clock)


def decreasing(rate: float) -> list[float]:
    """Return the table of a curve whose rate falls with age."""
    return values([min(rate * (high - low) / (1.0 + low), 0.9) for low, high in pairwise(EDGES)])


def peaked(age: float) -> list[float]:
    """Return the table of a curve that returns about an age."""
    hazards = [0.0] * INTERVALS
    hazards[interval_of(age)] = 0.8
    return values(hazards)


def ids(blocks: list[Block]) -> list[int]:
    """Return the blocks' ids."""
    return [block.block_id for block in blocks]


def test_blocks_without_content_go_before_everything() -> None:
    queue = queue_of(Clock())
    queue.insert([Block(1), Block(2)], 0, 10.0)
    queue.prepend_n([Block(7), Block(8)])
    assert ids(queue.popleft_n(3)) == [7, 8, 1]
    assert len(queue) == 1


def test_the_deepest_block_of_a_chain_goes_first_from_either_end() -> None:
    clock = Clock()
    queue = queue_of(clock)
    queue.set_tables([peaked(200.0)] * CLASSES)
    queue.insert([Block(1), Block(2)], 0, clock.now - 100.0)
    queue.insert([Block(3), Block(4)], 0, clock.now)
    # The older chain is nearer to its return.
    assert ids(queue.popleft_n(4)) == [3, 4, 1, 2]


def test_a_chain_goes_from_its_deepest_block_whatever_the_classes_of_its_parts() -> None:
    clock = Clock()
    queue = queue_of(clock)
    queue.set_tables([decreasing(1e-4), decreasing(1e-2), decreasing(1e-3), decreasing(1e-5)])
    queue.insert_chain([([Block(1), Block(2)], 1), ([Block(3)], 2), ([Block(4), Block(5)], 0)], clock.now)
    queue.insert([Block(6)], 3, clock.now)
    clock.now += 100.0
    assert ids(list(queue.eviction_order())) == [6, 1, 2, 3, 4, 5]
    used = next(block for block in queue if block.block_id == 3)
    queue.remove(used)
    assert ids(queue.popleft_n(5)) == [6, 1, 2, 4, 5]


def test_a_copy_goes_before_other_blocks_of_less_value_but_not_of_far_less_and_under_lru_in_turn() -> None:
    queue = queue_of(clock := Clock(), 3)
    queue.insert([Block(1)], 1, clock.now)
    queue.insert([Block(2)], 2, clock.now)
    queue.insert([Block(3)], 3 + 0, clock.now)
    assert ids(list(queue.eviction_order())) == [1, 2, 3]
    queue.set_tables([decreasing(0.1 * share) for share in (1.0, 2.0 * COPY, 0.5 * COPY)])
    assert ids(list(queue.eviction_order())) == [2, 3, 1]


@pytest.mark.parametrize("by_value", [True, False])
def test_done_goes_first_and_retained_last_under_either_rule(by_value: bool) -> None:
    clock = Clock()
    queue = queue_of(clock)
    queue.set_tables([decreasing(0.3)] * CLASSES if by_value else None)
    queue.retain([Block(1)], 0, clock.now + 60.0)
    queue.insert([Block(2)], 0, clock.now)
    queue.insert([Block(3)], DONE, clock.now)
    queue.prepend_n([Block(4)])
    assert ids(list(queue.eviction_order())) == ids(queue.popleft_n(4)) == [4, 3, 2, 1]


@pytest.mark.parametrize("by_value", [True, False])
def test_a_retained_run_lies_in_its_class_as_just_used_when_its_time_is_over(by_value: bool) -> None:
    clock = Clock()
    queue = queue_of(clock)
    queue.set_tables([decreasing(0.3)] * CLASSES if by_value else None)
    blocks = [Block(1), Block(2), Block(3)]
    queue.retain(blocks[:2], 0, clock.now + 60.0)
    queue.retain(blocks[2:], 1, clock.now + 20.0)
    clock.now += 30.0
    queue.expire(1)
    clock.now += 30.0
    queue.insert([Block(4)], 2, clock.now - 1.0)
    queue.expire(0)
    assert ids(list(queue.eviction_order())) == [3, 4, 1, 2]
    queue.expire(5)
    clock.now += 1.0
    queue.insert([Block(5)], 3, clock.now)
    assert ids(queue.popleft_n(5)) == [3, 4, 1, 2, 5]


def test_a_request_that_goes_on_goes_last_and_sinks_if_it_never_resumes() -> None:
    clock = Clock()
    queue = queue_of(clock)
    queue.set_tables([decreasing(0.3)] * CLASSES)
    queue.insert([Block(1)], PREEMPTED, clock.now)
    queue.insert([Block(2)], 0, clock.now)
    assert ids(list(queue.eviction_order())) == [2, 1]
    clock.now += 600.0
    queue.insert([Block(3)], 0, clock.now)
    assert ids(list(queue.eviction_order())) == [2, 1, 3]


@pytest.mark.parametrize("by_value", [True, False])
def test_needed_blocks_go_last_and_those_of_the_first_waiting_request_at_the_very_end(by_value: bool) -> None:
    clock = Clock()
    queue = queue_of(clock)
    queue.set_tables([decreasing(0.3)] * CLASSES if by_value else None)
    blocks = [Block(n) for n in range(8)]
    for first in range(0, 8, 2):
        queue.insert(blocks[first : first + 2], 0, clock.now)
        clock.now += 5.0
    queue.retain([Block(9)], 0, clock.now + 60.0)
    queue.wait("first", [3, 2])
    queue.wait("second", [1, 0])
    assert ids(list(queue.eviction_order())) == [4, 5, 6, 7, 9, 0, 1, 2, 3]
    assert ids(queue.popleft_n(6)) == [4, 5, 6, 7, 9, 0]
    assert ids(list(queue.eviction_order())) == [1, 2, 3]
    assert ids(queue.popleft_n(3)) == [1, 2, 3]


def test_blocks_no_longer_needed_return_to_their_eviction_order() -> None:
    clock = Clock()
    queue = queue_of(clock)
    for number in range(4):
        queue.insert([Block(number)], 0, clock.now)
        clock.now += 5.0
    queue.wait("aborted", [2, 0])
    assert ids(queue.popleft_n(1)) == [1]
    queue.release("aborted")
    queue.insert([Block(1)], 0, clock.now)
    assert ids(queue.popleft_n(4)) == [0, 2, 3, 1]


def test_a_request_that_waits_twice_needs_only_its_later_blocks_and_releases_them_all() -> None:
    queue = queue_of(Clock())
    queue.insert([Block(1), Block(2), Block(3), Block(4)], 0, 10.0)
    queue.wait("r", [1, 2])
    queue.wait("r", [2, 3])
    assert queue.waiting == 1 and ids(queue.popleft_n(2)) == [1, 4]
    queue.release("r")
    assert not queue.keeps and not queue.waiting and len(queue) == 2


class Machine(RuleBasedStateMachine):
    """Operations in any order, compared with a list of all free blocks and, under value, with a search over every block."""

    @initialize(seed=st.integers(0, 2**16), shape=st.sampled_from(["equal", "unimodal"]))
    def begin(self, seed: int, shape: str) -> None:
        self.random = random.Random(seed)
        self.clock = Clock()
        self.queue = queue_of(self.clock)
        self.tables = (
            [decreasing(0.3)] * CLASSES if shape == "equal" else [decreasing(0.1), peaked(20.0), peaked(130.0), decreasing(0.5)]
        )
        self.equal = shape == "equal"
        self.queue.set_tables(self.tables)
        self.free: dict[int, tuple[Block, int, float, int]] = {}  # id -> block, class, last use, number of its free
        self.waiting: dict[int, list[int]] = {}  # number of the request -> ids, the shallowest first; no block is needed twice
        self.requests = 0
        self.chains = 0
        self.ids = 0

    @property
    def needed(self) -> dict[int, int]:
        return {name: request for request, names in self.waiting.items() for name in names}

    def value(self, number: int, used: float) -> float:
        return (COPY if number >= CLASSES else 1.0) * value_at(self.tables[number % CLASSES], self.clock.now - used)

    @precondition(lambda self: len(self.free) > 1)
    @rule()
    def join(self) -> None:
        chains = {chain for name, (_, _, _, chain) in self.free.items() if name not in self.needed}
        if not chains:
            return
        chosen = self.random.choice(sorted(chains))
        names = sorted(
            (name for name, (_, _, _, chain) in self.free.items() if chain == chosen and name not in self.needed), reverse=True
        )
        self.requests += 1
        self.waiting[self.requests] = names
        self.queue.wait(self.requests, names)

    @precondition(lambda self: self.waiting)
    @rule()
    def serve(self) -> None:
        request = self.random.choice(list(self.waiting))
        for name in self.waiting[request]:
            if name in self.free:
                self.queue.remove(self.free.pop(name)[0])
        self.queue.release(request)
        del self.waiting[request]

    @rule(seconds=st.floats(0.3, 60.0))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(count=st.integers(1, 6), number=st.integers(0, 2 * CLASSES - 1))
    def insert(self, count: int, number: int) -> None:
        number %= CLASSES if self.equal else 2 * CLASSES
        self.clock.now += RENEWED_S  # no two ends have a value of the same instant
        self.chains += 1
        blocks = [Block(self.ids + i) for i in range(count)]
        self.ids += count
        for block in blocks:
            self.free[block.block_id] = block, number, self.clock.now, self.chains
        self.queue.insert(blocks, number, self.clock.now)

    @rule(count=st.integers(1, 8))
    def walk(self, count: int) -> None:
        order = ids(list(self.queue.eviction_order()))
        kept: list[Block] = []
        walked = ids(list(islice(self.queue.eviction_order(kept), count)))
        self.queue.set_aside(kept)
        assert ids(list(self.queue.eviction_order())) == order
        assert walked == order[:count]
        again: list[Block] = []
        list(islice(self.queue.eviction_order(again), count))
        assert not again or not set(ids(again)) & set(ids(kept))

    @rule(enabled=st.booleans())
    def switch(self, enabled: bool) -> None:
        self.queue.set_tables(self.tables if enabled else None)

    @precondition(lambda self: self.free)
    @rule()
    def touch(self) -> None:
        name = self.random.choice(list(self.free))
        self.queue.remove(self.free.pop(name)[0])

    @precondition(lambda self: self.free)
    @rule(count=st.integers(1, 8))
    def evict(self, count: int) -> None:
        self.clock.now += RENEWED_S
        expected = ids(list(self.queue.eviction_order()))
        assert not expected or self.queue.first().block_id == expected[0]
        for place in range(min(count, len(self.free))):
            block = self.queue.popleft()
            assert block.block_id == expected[place]
            _, number, used, chain = self.free.pop(block.block_id)
            needed = self.needed
            request = needed.get(block.block_id)
            if request is not None:
                # Only when nothing else is free; of the request that came last the deepest.
                assert all(needed.get(name, 0) for name in self.free)
                assert all(needed[name] <= request for name in self.free)
                assert all(name > block.block_id for name in self.free if needed[name] == request)
                self.waiting[request].remove(block.block_id)
                continue
            others = [other for name, other in self.free.items() if name not in needed]
            if self.equal or self.queue.tables is None:
                # Decreasing curves that are equal give least recent use, as does the other rule.
                assert chain == min([chain, *(c for _, _, _, c in others)])
            else:
                value = self.value(number, used)
                least = min((self.value(n, u) for _, n, u, _ in others), default=math.inf)
                assert value <= least * (1 + 1e-9)

    @invariant()
    def every_block_is_there_once(self) -> None:
        if hasattr(self, "queue"):
            assert sorted(ids(list(self.queue))) == sorted(self.free)
            assert len(self.queue) == len(self.free)


TestMachine = Machine.TestCase
TestMachine.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)


class Pool:
    """A small pool of blocks for a tree of texts: requests take the cached start of a path, and compute the rest."""

    def __init__(self, seed: int, blocks: int = 40) -> None:
        self.random = random.Random(seed)
        self.clock = Clock()
        self.queue = queue_of(self.clock)
        self.queue.prepend_n([Block(n) for n in range(blocks)])
        self.cached: dict[tuple[int, ...], Block] = {}
        self.text: dict[int, tuple[int, ...]] = {}
        self.users: dict[int, int] = {}
        self.running: list[list[Block]] = []
        self.evicted = 0

    def path(self) -> list[tuple[int, ...]]:
        """Return a text's prefixes, one per block."""
        text = [self.random.choice((0, 0, 1)) for _ in range(self.random.randrange(1, 9))]
        return [tuple(text[: n + 1]) for n in range(len(text))]

    def hits(self, path: list[tuple[int, ...]]) -> list[Block]:
        """Return the cached blocks from the start of a path."""
        found = []
        for text in path:
            if text not in self.cached:
                break
            found.append(self.cached[text])
        return found

    def start(self) -> None:
        """Let a request take and allocate its blocks."""
        path = self.path()
        blocks = self.hits(path)
        taken = sum(not self.users.get(block.block_id) for block in blocks)
        if len(path) - len(blocks) > len(self.queue) - taken:
            return
        for block in blocks:
            if not self.users.get(block.block_id):
                self.queue.remove(block)
            self.users[block.block_id] = self.users.get(block.block_id, 0) + 1
        new = len(path) - len(blocks)
        if new and self.random.random() < 0.3:
            expected = ids(list(islice(self.queue.eviction_order(), new)))
            assert self.queue.first().block_id == expected[0]
        else:
            expected = None
        allocated = self.queue.popleft_n(new) if self.random.random() < 0.5 else [self.queue.popleft() for _ in range(new)]
        assert expected is None or ids(allocated) == expected
        for block in allocated:
            self.forget(block)
        for text, block in zip(path[len(blocks) :], allocated, strict=True):
            self.cached[text], self.text[block.block_id] = block, text
            self.users[block.block_id] = 1
        self.running.append([*blocks, *allocated])

    def forget(self, block: Block) -> None:
        """Evict a block."""
        text = self.text.pop(block.block_id, None)
        if text is not None:
            self.evicted += 1
            assert not any((*text, more) in self.cached for more in (0, 1)), "what continues it is cached"
            del self.cached[text]

    def end(self) -> None:
        """Let a request free its blocks, with any classes and hints."""
        blocks = self.running.pop(self.random.randrange(len(self.running)))
        for block in blocks:
            self.users[block.block_id] -= 1
        freed = [block for block in reversed(blocks) if not self.users[block.block_id]]
        if not freed:
            return
        kind, run = self.random.random(), None
        if kind < 0.15:
            run = self.queue.retain(freed, self.random.randrange(2 * CLASSES), self.clock.now + self.random.choice((1, 60)))
        elif kind < 0.25:
            run = self.queue.insert(freed, PREEMPTED, self.clock.now)
        else:
            cut = self.random.randrange(len(freed) + 1)
            first = DONE if kind < 0.4 else self.random.randrange(2 * CLASSES)
            parts = [(freed[:cut], first), (freed[cut:], self.random.randrange(2 * CLASSES))]
            run = self.queue.insert_chain(parts, self.clock.now)
        if len(freed) < len(blocks):
            assert run is not None
            self.queue.continues(blocks[len(blocks) - len(freed) - 1], run)


@pytest.mark.parametrize("limit", [math.inf, 5])
def test_a_block_is_evicted_after_all_that_continues_it(limit: float) -> None:
    tables = [None, [decreasing(0.1), peaked(20.0), peaked(130.0), decreasing(0.5)], [decreasing(0.3)] * CLASSES]
    for seed in range(40):
        pool = Pool(seed)
        rng = pool.random
        pool.queue.may_retain = lambda blocks, until: sum(1 for _ in blocks) <= limit  # type: ignore[method-assign]
        for number in range(250):
            pool.clock.now += rng.choice((0.0, 0.3, 5.0, 80.0))
            if rng.random() < 0.05:
                pool.queue.set_tables(rng.choice(tables))
            pool.queue.step()
            if rng.random() < 0.15:
                pool.queue.wait(number % 7, ids(pool.hits(pool.path())))
            if rng.random() < 0.15:
                pool.queue.release(rng.randrange(7))
            if rng.random() < 0.6:
                pool.start()
            if pool.running and rng.random() < 0.6:
                pool.end()
            if rng.random() < 0.002:
                while pool.running:
                    pool.end()
                pool.queue.clear()
                pool.cached.clear()
                pool.text.clear()
            assert len(pool.queue) == len(list(pool.queue)) == 40 - sum(map(bool, pool.users.values()))
        assert pool.evicted > 50


def test_first_is_the_block_that_is_evicted_next_if_a_curve_has_several_peaks() -> None:
    """An eviction of a class's end may show a run in its middle that is lower than the run which the end continues."""
    table = [0.0] * len(KNOTS)
    table[:3] = 5.0, 1.0, 5.0
    queue = queue_of(clock := Clock())
    queue.set_tables([table, [2.0] * len(KNOTS), *[[9.0] * len(KNOTS)] * (CLASSES - 2)])
    start = clock.now
    deep = queue.insert([Block(1)], 0, start)
    queue.insert([Block(2)], 1, start, deep)
    queue.insert([Block(3)], 0, start + KNOTS[2] - KNOTS[1])
    queue.insert([Block(4)], 0, start + KNOTS[2] - KNOTS[0])
    clock.now = start + KNOTS[2]
    queue.wait("r", [1])
    queue.renew()
    assert queue.first() is queue.popleft()


def test_first_is_what_popleft_removes_under_any_curves() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        queue = queue_of(clock := Clock())
        queue.set_tables([[rng.random() for _ in KNOTS] for _ in range(CLASSES)])
        chains: list[list[Block]] = []
        for number in range(60):
            clock.now += rng.choice((0.3, 5.0, 80.0))
            chain = [Block(4 * number + n) for n in range(4)]
            chains.append(chain)
            queue.insert_chain([(chain[:2], rng.randrange(CLASSES)), (chain[2:], rng.randrange(CLASSES))], clock.now)
            if rng.random() < 0.3:
                queue.wait(number, ids(rng.choice(chains)))
        while len(queue):
            assert queue.first() is queue.popleft()


def test_cleared_blocks_go_first_in_their_eviction_order() -> None:
    queue = queue_of(clock := Clock())
    queue.insert([Block(1)], 0, clock.now)
    queue.retain([Block(2)], 0, clock.now + 600.0)
    queue.insert([Block(3)], 1, clock.now)
    queue.wait("r", [1])
    queue.prepend_n([Block(4)])
    queue.clear()
    queue.insert([Block(5)], DONE, clock.now)
    assert ids(list(queue.eviction_order())) == ids(queue.popleft_n(5)) == [4, 3, 2, 1, 5] and not queue.num_runs
    queue.release("r")


@pytest.mark.timeout(20)
def test_a_prefix_that_moves_within_its_class_is_valued_again() -> None:
    queue = queue_of(clock := Clock())
    queue.set_tables([peaked(400.0)] * CLASSES)
    queue.insert([Block(1)], 0, clock.now - 200.0)
    deeper = queue.insert([Block(2)], 0, clock.now - 100.0)
    prefix = Block(3)
    queue.continues(prefix, deeper)
    queue.insert([prefix], 0, clock.now)
    assert ids(list(queue.eviction_order())) == [2, 3, 1]
    assert ids(queue.popleft_n(3)) == [2, 3, 1]


def test_a_prefix_follows_the_same_retained_run_again_after_it_was_used() -> None:
    queue = queue_of(clock := Clock())
    prefix, retained = Block(0), Block(1)
    queue.continues(prefix, queue.retain([retained], 0, clock.now + 600.0))  # type: ignore[arg-type]
    for number in range(2, 5):
        queue.insert([prefix], 0, clock.now)
        queue.insert([Block(number)], 0, clock.now)
        assert ids(queue.popleft_n(1)) == [number]
        queue.remove(prefix)
    queue.insert([prefix], 0, clock.now)
    clock.now += 600.0
    assert not queue.expire(4)
    assert ids(queue.popleft_n(2)) == [1, 0]


def rising() -> list[float]:
    """Return the table of a class whose value rises with age."""
    return [1.0 + place / 100.0 for place in range(len(KNOTS))]


@pytest.mark.parametrize("tables", [None, [rising()] * CLASSES, [decreasing(0.1)] * CLASSES])
def test_a_chain_whose_starts_were_used_one_by_one_is_evicted_in_steps_that_grow_with_its_length(
    tables: list[list[float]] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_of(clock := Clock())
    queue.set_tables(tables)
    length, steps = 300, 0
    blocks = [Block(number) for number in range(length)]
    queue.insert(blocks[::-1], 0, clock.now)
    for used in range(length - 1, 0, -1):
        clock.now += 1.0
        for block in blocks[:used]:
            queue.remove(block)
        queue.insert(blocks[:used][::-1], 0, clock.now)
    assert queue.num_runs == length

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal steps
            steps += 1
            return method(*arguments)

        return call

    for name in ("_continuation", "_move", "_next_of", "_value_ends"):
        monkeypatch.setattr(queue, name, counted(getattr(queue, name)))
    assert [queue.popleft().block_id for _ in range(length)] == list(range(length - 1, -1, -1))
    assert length < steps < 10 * length


@pytest.mark.parametrize("count", [255, 256, 257])
def test_a_prefix_that_many_continue_costs_a_free_no_search_of_them_all(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = queue_of(clock := Clock())
    looked_at = 0
    live = free_queue.live_of

    def counted(runs: list[Any]) -> list[Any]:
        nonlocal looked_at
        looked_at += len(runs)
        return live(runs)

    monkeypatch.setattr(free_queue, "live_of", counted)
    prefix, ends = Block(0), [Block(number + 1) for number in range(count)]
    for end in ends:
        queue.continues(prefix, queue.insert([end], 0, clock.now))
    for _ in range(20):
        for end in ends:
            queue.remove(end)
            queue.continues(prefix, queue.insert([end], 0, clock.now))
    assert count < looked_at < 4 * 21 * count
    assert len(queue._branches[0]) <= 2 * count
    queue.insert([prefix], DONE, clock.now)
    assert ids(list(queue.eviction_order())) == ids(queue.popleft_n(count + 1)) == [*range(1, count + 1), 0]


def test_a_prefix_that_nobody_waits_for_any_more_goes_after_all_that_continues_it_at_once() -> None:
    queue = queue_of(clock := Clock())
    queue.set_tables([rising()] * CLASSES)
    prefix, middle, end, other = map(Block, range(4))
    queue.insert([other], 0, clock.now)
    queue.continues(middle, queue.insert([end], 1, clock.now - 3000.0))
    queue.continues(prefix, queue.insert([middle], 2, clock.now))
    queue.insert([prefix], DONE, clock.now)
    queue.wait("r", [0])
    queue.set_aside([prefix])
    queue.release("r")
    assert ids(list(queue.eviction_order())) == ids(queue.popleft_n(4)) == [2, 1, 0, 3]


def test_blocks_that_no_request_needs_any_more_stay_together_if_others_continue_one_of_them() -> None:
    queue = queue_of(Clock())
    chain = [Block(3), Block(2), Block(1)]
    queue.insert(chain, 0, 10.0)
    queue.insert([Block(9)], 0, 20.0)
    queue.wait("request", [1, 2, 3])
    assert ids(queue.popleft_n(1)) == [9]
    branch = queue.insert([Block(5)], 1, 30.0)
    queue.continues(chain[1], branch)
    queue.insert([Block(7)], 0, 40.0)
    queue.release("request")
    assert [block.block_id for block in queue.eviction_order()] == [3, 5, 2, 1, 7]
    assert ids(queue.popleft_n(5)) == [3, 5, 2, 1, 7]


@given(st.randoms(use_true_random=False), st.integers(1, 6))
def test_runs_that_get_another_place_are_evicted_by_their_values_there(random: random.Random, classes: int) -> None:
    tables, gap_s = lpc_tables(100.0), 100.0
    clock = Clock()
    queue = queue_of(clock, len(tables))
    queue.set_tables(tables)
    numbers = [random.randrange(100, 150) for _ in range(classes)]
    places: dict[int, tuple[int, float]] = {}
    runs = {}
    for name in range(20):
        clock.now += random.choice((0.5, 20.0))
        places[name] = random.choice(numbers), clock.now
        runs[name] = queue.insert([Block(name)], *places[name])
    for _ in range(20):
        clock.now += random.choice((0.5, 20.0))
        name, number = random.randrange(20), random.choice(numbers)
        if queue.place_again(runs[name], number):
            places[name] = number, clock.now
    scores = [places[block.block_id][0] * LOG_ODDS_STEP + places[block.block_id][1] / gap_s for block in queue.popleft_n(20)]
    assert scores == pytest.approx(sorted(scores)) and not queue.num_free_blocks


def test_what_has_ended_or_lies_in_no_reuse_class_gets_no_other_place() -> None:
    clock = Clock()
    queue = queue_of(clock)
    queue.set_tables([decreasing(0.3)] * CLASSES)
    gone = Block(1)
    ended, done = queue.insert([gone], 0, clock.now), queue.insert([Block(2)], DONE, clock.now)
    queue.remove(gone)
    assert not queue.place_again(ended, 1) and not queue.place_again(done, 1)
    waits = queue.insert([Block(3)], 0, clock.now)
    queue.set_tables(None)
    assert not queue.place_again(waits, 1)
