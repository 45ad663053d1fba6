from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from eviction_client import SidecarPrediction
from eviction_client.policy.rules import AUTO
from eviction_client.transport.sidecar_curves import ReuseCurves
from lpc.model.curve import INTERVALS, value_at
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

    def __init__(self, *, rule: str = AUTO, **settings: Any) -> None:
        self.now = 1000.0
        self.service = Service(
            LMCacheSettings(**{"watermark": 0.7, **settings}),
            clock=lambda: self.now,
            keys=KEYS,
            rule=rule,
        )
        self.service.declare(MEMORY, 10 * MIB)
        self.service.declare(DISK, 0)

    def refit(self, hazards: Mapping[int, Sequence[float]] | None = None) -> None:
        """Fit the curves of all classes with counts, with the sidecar's by group."""
        self.service.set_sidecar_curves(None if hazards is None else ReuseCurves("epoch", hazards))
        for _ in self.service.refit():
            pass

    def answer(self, prompt: Prompt, group: int = 0, probability: float = 0.5) -> None:
        """Apply a prediction of a conversation, which ends its turn."""
        conversation = self.conversation(prompt)
        self.service.answered(conversation, conversation.turns, SidecarPrediction(probability, "v", 1, group=group))

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


def test_a_turn_is_a_use() -> None:
    world = World(rule="lru")
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


@pytest.mark.parametrize(("rule", "first"), [("lru", 0), ("own", 0), ("auto", 0), ("value", 1), ("lpc", 2)])
def test_the_rule_in_force_selects_the_conversation_that_is_evicted_from_its_end(rule: str, first: int) -> None:
    world = World(rule=rule)
    all_ = prompts(3)
    for prompt in all_:
        world.serve(prompt)
    assert len(settle(world)) == 3
    for prompt, group, probability in zip(all_, (1, 2, 1), (0.9, 0.8, 0.3), strict=True):
        world.answer(prompt, group, probability)
    world.service.plan()
    world.refit({1: SOON, 2: NEVER})
    world.serve(Prompt(*words(9, 2)))
    world.pass_(20)
    assert world.service.plan().delete[MEMORY] == [all_[first].objects[1][0], all_[first].objects[0][0]]


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
    ended = [world.service.states[world.conversation(prompt)].ended_turn for prompt in (one, two)]
    assert ended == [0, 1]
    world.pass_(END_AFTER_S)
    world.service.plan()
    assert world.service.states[world.conversation(one)].ended_turn == 1


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
    assert world.service.policy.reused > 380
    world.refit()
    last = world.service.conversations.find(Prompt(*words(3 * 398, 1)).objects[0][0].chunk)
    assert last is not None
    tables, resident = world.service.policy.tables_of("value"), world.service.caches[MEMORY].find(last)
    assert tables is not None and resident is not None
    ages = [value_at(tables[resident.reuse_class], age) for age in (1.0, 20.0, 60.0)]
    assert ages[0] < ages[1] > 3 * ages[2]  # all come back after 30 s


def test_a_failure_switches_to_lru_and_restarts_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    one, two = prompts(2)
    for _ in range(2):
        world.serve(one)
        end_turns(world)
        world.pass_(60)
        world.look_up(one)
    service, cache = world.service, world.service.caches[MEMORY]
    assert cache.rule == "own" and cache.queue.tables is not None and service.policy.reused == 1
    world.serve(two)
    monkeypatch.setattr(service.policy, "finished", None)
    with pytest.raises(TypeError):
        end_turns(world)
    service.declare(Location("l1", "b"), 10 * MIB)
    for tier in (cache, service.caches[Location("l1", "b")]):
        assert tier.rule == "lru" and tier.queue.tables is None
    assert service.policy.reused == 0
    world.refit()
    assert cache.queue.tables is None, "until its ghost caches show that another rule is better"
    world.serve(Prompt(*words(9, 2)))
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
