from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from eviction_client import CreditGrid, Prediction
from lpc.lmcache.events import Place
from lpc.lmcache.foretelling import Foretelling
from lpc.lmcache.service import FRESH_S, SETTLED_S, Service
from lpc.lmcache.settings import LMCacheSettings
from lpc.lmcache.tree import Conversation
from lpc.model.returns.hazards import AGES, Floats
from tests.unit.lmcache.nodes import KEYS, MIB, Prompt, event, words

MEMORY = Place("l1", "a")
DISK = Place("l2", "a")
GRID = CreditGrid([1.0, 10_000.0])


class Told(Foretelling):
    """A curve for all: back within ten seconds around the 60th, or never."""

    def __init__(self) -> None:
        super().__init__()
        self.curve: Floats = 0.9 / (1.0 + np.exp(-(AGES - 60.0) / 2.0))
        self.average = 0.98 * -np.expm1(-AGES / 15.0)
        self.learnt: list[str] = []

    def turn(self, conversation: Conversation, prediction: Prediction | None) -> Floats:
        self.learnt.append(conversation.name)
        return self.curve


class World:
    """A service, a clock, and a node with memory for ten chunks of which seven are ours to fill."""

    def __init__(self, **settings: Any) -> None:
        self.now = 1000.0
        self.told = Told()
        self.service = Service(
            LMCacheSettings(**{"watermark": 0.7, "prefetch_share": 0.5, "hints_share": 0.3, **settings}),
            clock=lambda: self.now,
            keys=KEYS,
            foretelling=self.told,
        )
        self.service.declare(MEMORY, 10 * MIB)
        self.service.declare(DISK, 0)

    def serve(self, prompt: Prompt, *, first: int = 0, on_disk: bool = True) -> None:
        """A request: its new chunks are stored in memory and copied, and it ends."""
        stored = prompt.entries(first, size=MIB)
        self.service.take(event("store", stored, self.now))
        if on_disk:
            self.service.take(event("store", stored, self.now, tier="l2"))
        self.look_up(prompt)

    def look_up(self, prompt: Prompt, last: int | None = None) -> None:
        self.service.take(event("access", prompt.entries(0, last), self.now))

    def conversation(self, prompt: Prompt) -> Conversation:
        chunk = self.service.conversations.find(prompt.objects[-1][0].chunk)
        assert chunk is not None
        return next(iter(chunk.holders))

    def credit(self, prompt: Prompt, seconds: float) -> None:
        """The sidecar answers the question about a conversation."""
        conversation = self.conversation(prompt)
        prediction = Prediction(0.5, "v", None, None, 1, GRID.table([seconds, seconds]))
        self.service.answered(conversation, conversation.turns, prediction)

    def pass_(self, seconds: float) -> None:
        self.now += seconds

    def gone(self, *prompts: Prompt) -> list[int]:
        """What is to be deleted from memory, by the seed of its words; and it is."""
        objects = self.service.plan().delete.get(MEMORY, [])
        self.service.deleted(MEMORY, objects)
        return [prompts.index(p) for object_ in objects for p in prompts if object_ in {o for os in p.objects for o in os}]


def prompts(count: int, chunks: int = 2) -> list[Prompt]:
    return [Prompt(*words(seed, chunks)) for seed in range(1, count + 1)]


def settle(world: World) -> list[Conversation]:
    world.pass_(SETTLED_S + 1)
    return world.service.plan().ask


def test_without_answers_the_order_is_least_recent_use() -> None:
    world = World(prefetch=False)
    all_ = prompts(3)
    for prompt in all_:
        world.serve(prompt)
        world.pass_(60)
    world.look_up(all_[0])
    world.pass_(60)
    world.serve(Prompt(*words(9, 2)))
    assert set(world.gone(*all_)) == {1}


def test_the_conversation_with_the_least_credit_goes_first_and_its_tail_before_its_head() -> None:
    world = World(prefetch=False)
    all_ = prompts(3)
    for prompt in all_:
        world.serve(prompt)
    assert len(settle(world)) == 3
    for prompt, credit in zip(all_, (50.0, -50.0, 0.0), strict=True):
        world.credit(prompt, credit)
    world.serve(Prompt(*words(9, 2)))
    world.pass_(20)
    objects = world.service.plan().delete[MEMORY]
    assert objects == [all_[1].objects[1][0], all_[1].objects[0][0]]


def test_a_shared_beginning_keeps_the_highest_key_of_those_who_share_it() -> None:
    world = World(prefetch=False)
    one, two = Prompt(*words(1, 2), *words(2, 1)), Prompt(*words(1, 2), *words(3, 1))
    world.serve(one)
    world.serve(two, first=2)
    settle(world)
    world.credit(one, -100.0)
    world.credit(two, 80.0)
    room = world.service.rooms[MEMORY]
    keys = {o.hash: resident.key for resident in room for o in resident.objects}
    shared, own_one, own_two = (keys[objects[0].hash] for objects in (one.objects[0], one.objects[2], two.objects[2]))
    assert shared == own_two > own_one
    settle(world)
    world.pass_(500)
    world.look_up(two)
    settle(world)
    world.credit(two, -100.0)  # its later turn replaces its own key
    keys = {o.hash: resident.key for resident in room for o in resident.objects}
    assert keys[one.objects[0][0].hash] == keys[two.objects[2][0].hash]


def test_an_answer_about_an_earlier_turn_is_no_answer() -> None:
    world = World(prefetch=False)
    (prompt,) = prompts(1)
    world.serve(prompt)
    settle(world)
    conversation = world.conversation(prompt)
    world.pass_(60)
    world.look_up(prompt)
    world.service.answered(conversation, 1, Prediction(0.5, "v", None, None, 1, GRID.table([500.0, 500.0])))
    resident = next(iter(world.service.rooms[MEMORY]))
    assert resident.key == resident.t_last == world.now


def test_a_chunk_whose_copy_to_disk_is_under_way_is_left_alone_for_a_while() -> None:
    world = World(prefetch=False)
    all_ = prompts(4)
    for prompt in all_:
        world.serve(prompt, on_disk=False)
    assert world.gone(*all_) == []
    world.pass_(FRESH_S)
    assert world.gone(*all_) != []


def test_what_is_asked_to_go_counts_as_gone_and_the_report_that_follows_changes_nothing() -> None:
    world = World(prefetch=False)
    all_ = prompts(4)
    for prompt in all_:
        world.serve(prompt)
    world.pass_(20)
    objects = world.service.plan().delete[MEMORY]
    room = world.service.rooms[MEMORY]
    world.service.deleted(MEMORY, objects)
    used = room.used
    assert used <= 7 * MIB
    world.service.take(event("delete", [e for p in all_ for e in p.entries() if e.object in objects], world.now))
    assert (room.used, room.lost) == (used, 0)


def test_what_a_node_does_not_delete_is_not_asked_for_again_at_once() -> None:
    world = World(prefetch=False)
    for prompt in prompts(4):
        world.serve(prompt)
    world.pass_(20)
    objects = world.service.plan().delete[MEMORY]
    world.service.spare(MEMORY, objects)
    again = world.service.plan().delete.get(MEMORY, [])
    assert not set(objects) & set(again)
    world.pass_(10)
    assert set(objects) & set(world.service.plan().delete[MEMORY])


def test_disk_is_left_alone_unless_asked_for_and_pinned_objects_always() -> None:
    for evict in (False, True):
        world = World(prefetch=False, evict_disk=evict, disk_bytes=4 * MIB)
        world.service.declare(DISK, 0)
        all_ = prompts(4)
        pinned = {object_ for objects in all_[0].objects for object_ in objects}
        world.service.pinned = pinned.intersection
        for prompt in all_:
            world.serve(prompt)
            world.pass_(10)
        planned = world.service.plan().delete.get(DISK, [])
        assert bool(planned) is evict
        assert not pinned & set(planned)


def evicted(world: World, prompt: Prompt) -> None:
    """Memory loses a conversation that disk has."""
    world.service.take(event("delete", prompt.entries(), world.now))


def test_a_conversation_on_disk_is_fetched_shortly_before_it_is_expected_and_not_earlier() -> None:
    world = World()
    all_ = prompts(4)
    for prompt in all_:
        world.serve(prompt)
    settle(world)
    for prompt in all_:
        world.credit(prompt, 0.0)
    evicted(world, all_[0])
    world.serve(Prompt(*words(9, 1)))  # memory stays as full as it may be
    while not world.service.plan().fetch:
        world.pass_(1.0)
        assert world.now < 1100.0
    assert 1030.0 < world.now < 1062.0


def test_while_memory_has_room_to_spare_nothing_is_waited_for() -> None:
    world = World()
    (prompt,) = prompts(1)
    world.serve(prompt)
    settle(world)
    world.credit(prompt, 0.0)
    evicted(world, prompt)
    assert world.service.plan().fetch


def fetched_world() -> tuple[World, Prompt]:
    world = World()
    (prompt,) = prompts(1)
    world.serve(prompt)
    settle(world)
    world.credit(prompt, 0.0)
    evicted(world, prompt)
    world.pass_(50)
    (fetch,) = world.service.plan().fetch
    assert fetch.bytes == 2 * MIB
    return world, prompt


def test_what_was_fetched_and_is_looked_up_was_used_and_found_in_memory() -> None:
    world, prompt = fetched_world()
    world.service.take(event("store", prompt.entries(size=MIB), world.now))
    world.look_up(prompt)  # the fetch's own reading
    assert world.service.counters.turns == 0
    world.pass_(5)
    world.look_up(prompt)
    budget = world.service.fetching.budgets["a"]
    assert (budget.prefetched, budget.used, budget.useless, budget.waiting) == (2 * MIB, 2 * MIB, 0, 0)
    assert (world.service.counters.memory_chunks, world.service.counters.disk_chunks) == (2, 0)


def test_what_is_loaded_for_the_look_up_itself_was_found_on_disk() -> None:
    world = World(prefetch=False)
    (prompt,) = prompts(1)
    world.serve(prompt)
    evicted(world, prompt)
    world.pass_(60)
    world.service.take(event("store", prompt.entries(size=MIB), world.now))
    world.look_up(prompt)
    assert (world.service.counters.memory_chunks, world.service.counters.disk_chunks) == (0, 2)


def test_what_was_fetched_and_not_looked_up_was_useless() -> None:
    world, prompt = fetched_world()
    world.service.take(event("store", prompt.entries(size=MIB), world.now))
    world.pass_(2000)
    world.service.plan()
    budget = world.service.fetching.budgets["a"]
    assert (budget.used, budget.useless, budget.waiting, budget.held) == (0, 2 * MIB, 0, 0)


def test_what_was_fetched_and_evicted_before_it_was_looked_up_was_useless() -> None:
    world, prompt = fetched_world()
    world.service.take(event("store", prompt.entries(size=MIB), world.now))
    evicted(world, prompt)
    budget = world.service.fetching.budgets["a"]
    assert (budget.useless, budget.waiting) == (2 * MIB, 0)


@pytest.mark.parametrize("what", ["refused", "late"])
def test_a_fetch_that_never_comes_costs_no_budget(what: str) -> None:
    world, _ = fetched_world()
    if what == "refused":
        fetch = world.service.fetching.find(next(iter(world.service._states)))
        assert fetch is not None
        world.service.refused(fetch)
    else:
        world.pass_(16)
        world.service.fetching.settle(world.now)
    budget = world.service.fetching.budgets["a"]
    assert (budget.prefetched, budget.waiting) == (0, 0)


def test_a_restart_of_the_node_makes_its_memory_void_and_disk_stays() -> None:
    world, prompt = fetched_world()
    world.service.take(event("store", prompt.entries(size=MIB), world.now))
    world.service.fence("a")
    assert MEMORY not in world.service.rooms and not world.service.fetching.budgets
    assert world.service.rooms[DISK].used == 2 * MIB


def test_retained_chunks_rank_as_if_used_later_and_sink_after() -> None:
    world = World(prefetch=False)
    all_ = prompts(3)
    for prompt in all_:
        world.serve(prompt)
        world.pass_(30)
    chunks = world.service.find_prompt("llama", "", all_[0].tokens, 4)
    assert len(chunks) == 2
    until = world.service.retain(chunks, 300.0)
    assert until == world.now + 300.0
    world.serve(Prompt(*words(9, 2)))
    world.pass_(20)
    assert set(world.gone(*all_)) == {1}
    assert world.service.retain(chunks, 1e9) == world.now + 3600.0


def test_a_flood_of_hints_retains_no_more_than_its_share_of_memory() -> None:
    world = World(prefetch=False)
    all_ = prompts(3)
    for prompt in all_:
        world.serve(prompt)
    taken = [world.service.retain(world.service.find_prompt("llama", "", prompt.tokens, 4), 600.0) for prompt in all_]
    room = world.service.rooms[MEMORY]
    assert taken == [world.now + 600.0, None, None]
    assert (room.retained.held, room.retained.refused) == (2 * MIB, 4 * MIB)
    assert sum(resident.key > world.now for resident in room) == 2


def test_what_hints_may_not_retain_on_disk_is_not_pinned() -> None:
    world = World(prefetch=False, disk_bytes=5 * MIB)
    world.service.declare(DISK, 0)
    (prompt,) = prompts(1)
    world.serve(prompt, on_disk=False)
    assert world.service.retain(world.service.find_prompt("llama", "", prompt.tokens, 4), 60.0) is not None
    world.service.take(event("store", prompt.entries(size=MIB), world.now, tier="l2"))
    assert len(world.service.to_pin) == 1, "one of two chunks is within the share"


def test_what_is_retained_and_comes_to_disk_later_is_to_be_pinned_as_long() -> None:
    world = World(prefetch=False)
    (prompt,) = prompts(1)
    world.serve(prompt, on_disk=False)
    until = world.service.retain(world.service.find_prompt("llama", "", prompt.tokens, 4), 60.0)
    assert not world.service.to_pin
    world.service.take(event("store", prompt.entries(size=MIB), world.now, tier="l2"))
    assert world.service.to_pin == {object_: until for objects in prompt.objects for object_ in objects}
    world.service.to_pin.clear()
    world.pass_(61.0)
    world.service.take(event("store", prompt.entries(size=MIB), world.now, tier="l2"))
    assert not world.service.to_pin


def test_a_turn_without_an_answer_is_learnt_from_all_the_same() -> None:
    world = World()
    (prompt,) = prompts(1)
    world.serve(prompt)
    settle(world)
    assert world.told.learnt == []
    settle(world)
    settle(world)
    assert world.told.learnt == [world.conversation(prompt).name]


def test_conversations_that_are_nowhere_any_more_are_forgotten() -> None:
    world = World()
    all_ = prompts(3)
    for prompt in all_:
        world.serve(prompt, on_disk=False)
    settle(world)
    for prompt in all_:
        evicted(world, prompt)
    world.service.plan()
    assert len(world.service.conversations) == 0
    assert not world.service._states


def test_many_sharers_do_not_make_a_look_up_slow() -> None:
    world = World(prefetch=False)
    start = words(1, 1)
    looked: list[Callable[[], None]] = []
    for seed in range(2, 40):
        prompt = Prompt(*start, *words(seed, 1))
        world.serve(prompt, first=0 if seed == 2 else 1)
        looked.append(lambda prompt=prompt: world.look_up(prompt))  # type: ignore[misc]
    world.pass_(100)
    for look in looked:
        look()
    shared = world.service.conversations.find(Prompt(*start).objects[0][0].chunk)
    assert shared is not None
    resident = world.service.rooms[MEMORY].find(shared)
    assert resident is not None
    assert resident.key == world.now
