from collections.abc import Callable
from typing import Any

import pytest

from eviction_client import Prediction
from eviction_client.policy.free_queue import Table
from eviction_client.policy.reuse_monitor import KINDS
from lpc.model.curve import INTERVALS, value_at, values
from lpc_apps.lmcache.classes import CLASSES
from lpc_apps.lmcache.events import Location
from lpc_apps.lmcache.service import END_AFTER_S, FRESH_S, PREDICT_AFTER_S, Service
from lpc_apps.lmcache.settings import LMCacheSettings
from lpc_apps.lmcache.tree import Conversation
from tests.unit.lmcache.nodes import KEYS, MIB, Prompt, event, words

MEMORY = Location("l1", "a")
DISK = Location("l2", "a")
SOON = [0.0] * 9 + [0.5, 0.9] + [0.001] * (INTERVALS - 11)
"""Hazards of conversations that return between the 45th and the 75th second, or hardly ever."""
NEVER = [1e-6] * INTERVALS


class World:
    """A service, a clock, and a node with memory for ten chunks of which seven are below the watermark."""

    def __init__(self, **settings: Any) -> None:
        self.now = 1000.0
        self.service = Service(
            LMCacheSettings(**{"watermark": 0.7, **settings}),
            clock=lambda: self.now,
            keys=KEYS,
        )
        self.service.declare(MEMORY, 10 * MIB)
        self.service.declare(DISK, 0)

    def know(self, hazards: Callable[[int], list[float]] = lambda _: SOON) -> None:
        """Set the curves of classes by the sidecar's group; 0: no prediction."""
        curves = [hazards(max(number // KINDS - 3, 0)) for number in range(CLASSES)]
        known: dict[int, Table] = {id(curve): values(curve) for curve in {id(curve): curve for curve in curves}.values()}
        tables = [known[id(curve)] for curve in curves]
        self.service.classes.tables = tables
        self.service.classes._monitor.curves = curves
        self.service.caches.set_tables(tables)

    def answer(self, prompt: Prompt, group: int = 0) -> None:
        """Apply a prediction of a conversation, which ends its turn."""
        conversation = self.conversation(prompt)
        self.service.answered(conversation, conversation.turns, Prediction(0.5, "v", 1, group=group))

    def serve(self, prompt: Prompt, *, first: int = 0, on_disk: bool = True) -> None:
        """Serve a request: its new chunks are stored in memory, copied to disk, and read."""
        stored = prompt.entries(first, size=MIB)
        self.service.apply(event("store", stored, self.now))
        if on_disk:
            self.service.apply(event("store", stored, self.now, tier="l2"))
        self.look_up(prompt)

    def look_up(self, prompt: Prompt, last: int | None = None) -> None:
        self.service.apply(event("access", prompt.entries(0, last), self.now))

    def conversation(self, prompt: Prompt) -> Conversation:
        chunk = self.service.conversations.find(prompt.objects[-1][0].chunk)
        assert chunk is not None
        return next(iter(chunk.holders))

    def pass_(self, seconds: float) -> None:
        self.now += seconds

    def gone(self, *prompts: Prompt) -> list[int]:
        """Delete what is due from memory; return the index of the prompt of each object."""
        objects = self.service.plan().delete.get(MEMORY, [])
        self.service.deleted(MEMORY, objects)
        return [prompts.index(p) for object_ in objects for p in prompts if object_ in {o for os in p.objects for o in os}]


def prompts(count: int, chunks: int = 2) -> list[Prompt]:
    return [Prompt(*words(seed, chunks)) for seed in range(1, count + 1)]


def settle(world: World) -> list[Conversation]:
    world.pass_(PREDICT_AFTER_S + 1)
    return world.service.plan().ask


def end_turns(world: World) -> None:
    world.pass_(END_AFTER_S)
    world.service.plan()


def test_without_predictions_the_order_is_lru() -> None:
    world = World()
    all_ = prompts(3)
    for prompt in all_:
        world.serve(prompt)
        world.pass_(60)
        world.service.plan()
    world.look_up(all_[0])
    world.look_up(all_[0])
    world.pass_(60)
    world.serve(Prompt(*words(9, 2)))
    assert set(world.gone(*all_)) == {1}


def test_the_conversation_with_the_lowest_value_is_evicted_first_from_its_end() -> None:
    world = World()
    world.know(lambda group: SOON if group == 1 else NEVER)
    all_ = prompts(3)
    for prompt in all_:
        world.serve(prompt)
    assert len(settle(world)) == 3
    for prompt, group in zip(all_, (1, 2, 1), strict=True):
        world.answer(prompt, group)
    world.service.plan()
    world.serve(Prompt(*words(9, 2)))
    world.pass_(20)
    cache = world.service.caches[MEMORY]
    assert world.service.plan().delete[MEMORY][0] == all_[0].objects[1][0], "LRU until the guard enables the value"
    cache.queue.value_enabled = True
    assert world.service.plan().delete[MEMORY] == [all_[1].objects[1][0], all_[1].objects[0][0]]


def test_a_shared_prefix_is_as_recent_as_its_latest_use() -> None:
    world = World()
    one, two = Prompt(*words(1, 2), *words(2, 1)), Prompt(*words(1, 2), *words(3, 1))
    world.serve(one)
    world.pass_(100)
    world.look_up(two, 2)
    world.serve(two, first=2)
    end_turns(world)
    world.pass_(100)
    world.serve(Prompt(*words(4, 4)))
    assert world.service.plan().delete[MEMORY][0] == one.objects[2][0]


def test_a_turn_ends_without_a_prediction_and_earlier_with_one() -> None:
    world = World()
    one, two = prompts(2)
    world.serve(one)
    world.serve(two)
    settle(world)
    world.answer(two, 7)
    world.service.plan()
    ended = [world.service._states[world.conversation(prompt)].ended_turn for prompt in (one, two)]
    assert ended == [0, 1]
    world.pass_(END_AFTER_S)
    world.service.plan()
    assert world.service._states[world.conversation(one)].ended_turn == 1


def test_curves_are_learned_even_if_replies_are_rendered_differently() -> None:
    world = World(chunks=4000)
    for n in range(400):
        world.serve(Prompt(*words(3 * n, 1), *words(3 * n + 1, 1)))
        if n >= 6:
            asked = Prompt(*words(3 * (n - 6), 1), *words(3 * n + 2, 1))
            world.look_up(asked, 1)
            world.serve(asked, first=1)
        world.pass_(5.0)
        world.service.deleted(MEMORY, world.service.plan().delete.get(MEMORY, []))
    assert world.service.classes.reuses > 380
    for _ in world.service.refit():
        pass
    assert world.service.classes.tables is not None
    new = world.service.classes.tables[0]
    ages = [value_at(new, age) for age in (1.0, 20.0, 60.0)]
    assert ages[0] < ages[1] > 20 * ages[2]  # all come back after 30 s


def test_a_failure_switches_to_lru_and_restarts_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.know()
    world.serve(*prompts(1))
    cache = world.service.caches[MEMORY]
    cache.queue.value_enabled = True
    monkeypatch.delattr(world.service.classes, "_monitor")
    with pytest.raises(AttributeError):
        end_turns(world)
    assert not cache.queue.value_enabled and cache.queue.tables is None and world.service.classes.tables is None
    end_turns(world)  # does not fail again


def test_a_chunk_that_is_still_copied_to_disk_is_not_deleted() -> None:
    world = World()
    all_ = prompts(4)
    for prompt in all_:
        world.serve(prompt, on_disk=False)
    assert world.gone(*all_) == []
    world.pass_(FRESH_S)
    assert world.gone(*all_) != []


def test_nothing_is_deleted_from_disk() -> None:
    world = World()
    world.service.declare(DISK, 4 * MIB)
    for prompt in prompts(4):
        world.serve(prompt)
        world.pass_(10)
    assert world.service.plan().delete.keys() == {MEMORY}


def evicted(world: World, prompt: Prompt) -> None:
    """Memory evicts a conversation that is on disk."""
    world.service.apply(event("delete", prompt.entries(), world.now))


def test_chunks_loaded_by_the_look_up_count_as_disk_hits() -> None:
    world = World()
    (prompt,) = prompts(1)
    world.serve(prompt)
    evicted(world, prompt)
    world.pass_(60)
    world.service.apply(event("store", prompt.entries(size=MIB), world.now))
    world.look_up(prompt)
    assert (world.service.counters.memory_chunks, world.service.counters.disk_chunks) == (0, 2)


def test_a_restart_of_the_node_clears_memory_but_not_disk() -> None:
    world = World()
    world.serve(*prompts(1))
    world.service.fence("a")
    assert MEMORY not in world.service.caches
    assert world.service.caches[DISK].used == 2 * MIB
