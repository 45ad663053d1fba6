"""Floors of tenants: what others cannot evict, and for how long."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eviction_client.policy.queue.floors import LAPSE_S, FlooredQueue
from eviction_client.policy.queue.free_list import Block
from eviction_client.tenants import digest_of
from tests.clock import Clock

BLOCKS = 40
SHARES = {"a": 0.25, "b": 0.5, "never comes": 0.2}
FLOORS = {salt: int(share * BLOCKS) for salt, share in SHARES.items()}
FLOODS = "floods"


def queue_of(clock: Clock) -> FlooredQueue[Block]:
    """Return a queue with nothing but blocks without content."""
    queue: FlooredQueue[Block] = FlooredQueue(Block(-1), Block(-1), 2, clock=clock)
    queue.set_floors({digest_of(salt): share for salt, share in SHARES.items()}, BLOCKS)
    queue.prepend_n([Block(number) for number in range(BLOCKS)])
    return queue


def leave(queue: FlooredQueue[Block], clock: Clock, salt: str, count: int) -> list[int]:
    """Let a request of a tenant take blocks and leave them; return their ids."""
    taken = queue.popleft_n(count)
    queue.own(taken, digest_of(salt))
    queue.insert(taken, 0, clock.now)
    clock.now += 1.0
    return [block.block_id for block in taken]


class Tenants(RuleBasedStateMachine):
    """Requests of tenants that take, use again and leave blocks, while least recent use orders."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.queue = queue_of(self.clock)
        self.owner: dict[int, str] = {}
        self.free: dict[int, int] = {}
        """With content: the order of frees."""
        self.running: list[tuple[str, list[Block]]] = []
        self.blank = BLOCKS
        self.frees = 0

    def protected(self, salt: str) -> bool:
        return Counter(self.owner.values())[salt] <= FLOORS.get(salt, -1)

    @precondition(lambda self: len(self.queue))
    @rule(n=st.integers(1, 12), salt=st.sampled_from([*("ab"), FLOODS, "", "x"]))
    def allocate(self, n: int, salt: str) -> None:
        n = min(n, len(self.queue))
        taken = self.queue.popleft_n(n)
        evicted = taken[min(self.blank, n) :]
        self.blank -= n - len(evicted)
        for block in evicted:
            tenant = self.owner[block.block_id]
            rest = [other for other in self.free if not self.protected(self.owner[other])]
            if self.protected(tenant):
                assert not rest, "a protected block went before one that is not"
            alike = [other for other in self.free if self.owner[other] == tenant]
            assert min(alike, key=self.free.__getitem__) == block.block_id, "not the first of its tenant"
            del self.owner[block.block_id], self.free[block.block_id]
        self.running.append((salt, taken))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), seconds=st.floats(0.1, 20.0))
    def end(self, data: st.DataObject, seconds: float) -> None:
        salt, blocks = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.clock.now += seconds
        self.queue.own(blocks, digest_of(salt))
        self.queue.insert(blocks, 0, self.clock.now)
        for block in blocks:
            self.frees += 1
            self.owner[block.block_id], self.free[block.block_id] = salt, self.frees

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.free)))
        block = next(block for block in self.queue.eviction_order() if block.block_id == number)
        self.queue.remove(block)
        del self.free[number]
        self.running.append((self.owner[number], [block]))

    @rule()
    def step(self) -> None:
        self.queue.step()

    @invariant()
    def every_free_block_is_there_once(self) -> None:
        found = Counter(block.block_id for block in self.queue.eviction_order())
        assert len(found) == found.total() == len(self.queue) == len(self.free) + self.blank
        held = Counter(self.owner.values())
        assert {digest: floor.held for digest, floor in self.queue.floors.items()} == {
            digest_of(salt): held[salt] for salt in SHARES
        }


TestTenants = Tenants.TestCase
TestTenants.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)


def flood(queue: FlooredQueue[Block], clock: Clock, salts: Sequence[str]) -> None:
    for number in range(20 * BLOCKS):
        leave(queue, clock, salts[number % len(salts)], 3)
        queue.step()


@pytest.mark.parametrize("salts", [1, 1000])
def test_a_flood_takes_all_but_the_floor_with_one_salt_or_many(salts: int) -> None:
    clock = Clock()
    queue = queue_of(clock)
    mine = leave(queue, clock, "a", 30)
    flood(queue, clock, [f"salt {number}" for number in range(salts)])
    left = queue.floors[digest_of("a")].aside
    assert sorted(left) == sorted(mine)[-FLOORS["a"] :], "the deepest go first, until the floor"


def test_an_absent_tenant_pins_nothing_until_it_returns() -> None:
    clock = Clock()
    queue = queue_of(clock)
    floor = queue.floors[digest_of("a")]
    leave(queue, clock, "a", 10)
    flood(queue, clock, [FLOODS])
    assert floor.held == FLOORS["a"]
    clock.now += LAPSE_S
    flood(queue, clock, [FLOODS])
    assert floor.held == 0
    leave(queue, clock, "a", 10)
    flood(queue, clock, [FLOODS])
    assert floor.held == FLOORS["a"]


def test_blocks_above_a_tenants_floor_go_first_of_those_set_aside() -> None:
    clock = Clock()
    queue = queue_of(clock)
    first = leave(queue, clock, "a", 10)
    flood(queue, clock, [FLOODS])
    leave(queue, clock, "a", 4)
    assert [block.block_id for block in queue.popleft_n(4)] == first[:4]
