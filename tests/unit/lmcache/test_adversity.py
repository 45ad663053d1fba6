"""What goes wrong around the controller: nodes that go or do not answer, clocks, tenants alike, more than it can remember."""

import time

import pytest

from lpc.lmcache.events import Place, reported_at, steady
from lpc.lmcache.room import SPARED_S
from lpc.lmcache.service import ENDED_S, PAUSED_S
from tests.unit.lmcache.nodes import MIB, Prompt, event, words
from tests.unit.lmcache.test_service import DISK, MEMORY, World, due_world, end_turns, evicted, prompts


def test_what_is_forgotten_for_want_of_room_is_counted_nowhere_any_more() -> None:
    world = World(prefetch_share=0, chunks=20)
    for prompt in prompts(200):
        world.serve(prompt)
        world.pass_(1)
    rooms = world.service.rooms
    assert len(world.service.conversations) == len(rooms[MEMORY]) == len(rooms[DISK]) == 20
    assert rooms[MEMORY].used == rooms[DISK].used == 20 * MIB


def test_while_deletions_are_on_their_way_no_more_is_deleted_than_there_has_to_be() -> None:
    """A node says how many objects it has skipped, not which: what it has deleted is known when it reports it."""
    world = World(prefetch_share=0)
    all_ = prompts(8)
    for prompt in all_:
        world.serve(prompt)
        world.pass_(1)
    world.pass_(20)
    asked = world.service.plan().delete[MEMORY]
    assert 9 <= len(asked) <= 10  # sixteen lie there, seven may
    world.service.spare(MEMORY, asked)
    world.service.skipped(MEMORY, asked, 3)
    (more,) = world.service.plan().delete.values()
    assert len(more) <= 3 and not set(more) & set(asked)  # in place of those that stay
    world.service.spare(MEMORY, more)
    world.service.skipped(MEMORY, more, 0)
    for _ in range(4):
        world.pass_(0.25)
        assert world.service.plan().delete == {}
    reported = [entry for prompt in all_ for entry in prompt.entries() if entry.object in [*asked[3:], *more]]
    world.service.take(event("delete", reported, world.now))
    assert world.service.rooms[MEMORY].going(world.now) == 0
    assert world.service.plan().delete == {}
    assert world.service.rooms[MEMORY].lost == 0


def test_what_a_node_never_deletes_does_not_stop_the_others() -> None:
    """Objects that are always being read are left alone, while others go, and are asked for again."""
    world = World(prefetch_share=0)
    for prompt in prompts(4):
        world.serve(prompt)
        world.pass_(10)
    stuck = set(world.service.plan().delete[MEMORY])
    for _ in range(4):
        asked = world.service.plan().delete.get(MEMORY, [])
        world.service.spare(MEMORY, asked)
        world.service.skipped(MEMORY, asked, len(stuck & set(asked)))
        world.service.deleted(MEMORY, [object_ for object_ in asked if object_ not in stuck])
        world.pass_(0.25)
    assert world.service.rooms[MEMORY].used <= 7 * MIB
    world.pass_(SPARED_S)
    world.serve(Prompt(*words(99, 3)))
    assert stuck <= set(world.service.plan().delete[MEMORY])


def test_a_fetch_that_found_nothing_is_not_asked_for_again_in_this_turn() -> None:
    """The disk has lost it, and said nothing."""
    world, prompt = due_world()
    (fetch,) = world.service.plan().fetch
    world.service.came(fetch, 0)
    for _ in range(100):
        world.pass_(0.25)
        assert world.service.plan().fetch == []
    world.look_up(prompt)  # its next turn is another matter
    world.look_up(prompt)
    world.pass_(ENDED_S)
    assert len(world.service.plan().fetch) == 1


def test_a_node_that_refuses_fetches_is_asked_now_and_then() -> None:
    world, _ = due_world()
    asked = 0
    for _ in range(400):
        for fetch in world.service.plan().fetch:
            asked += 1
            world.service.refused(fetch)
        world.pass_(0.25)
    assert 1 < asked <= 100 / PAUSED_S + 1


def test_from_a_node_that_has_gone_nothing_is_fetched_and_nothing_is_left() -> None:
    world, prompt = due_world()
    world.service.fence("a")
    for _ in range(10):
        world.pass_(1)
        assert world.service.plan().fetch == []
    for number in range(50):  # pods have names of their own
        node = f"pod-{number}"
        world.service.declare(Place("l1", node), 10 * MIB)
        world.service.take(event("store", Prompt(*words(number + 2, 1)).entries(size=MIB), world.now, node=node))
        world.service.fence(node)
        world.service.skipped(Place("l1", node), Prompt(*words(number + 2, 1)).objects[0], 1)  # its answer comes late
    assert set(world.service.rooms) == {DISK} and not world.service.fetching.budgets
    world.service.declare(MEMORY, 10 * MIB)  # it is back, with its disk
    assert len(world.service.plan().fetch) == 1
    assert prompt.tokens


def test_tenants_with_the_same_words_are_conversations_of_their_own() -> None:
    world = World(prefetch_share=0)
    for number, (salt, model) in enumerate([("", "llama"), ("one", "llama"), ("two", "llama"), ("", "qwen")]):
        world.serve(Prompt(*words(1, 2), salt=salt, model=model))
        assert len({c.name for c in world.service._states}) == number + 1
    assert not any("one" in c.name or "two" in c.name for c in world.service._states)


def test_the_capacities_of_a_tiers_media_add_up_and_a_new_declaration_replaces_an_old_one() -> None:
    world = World()
    for backend, capacity in (("dram", 10 * MIB), ("devdax", 30 * MIB)):
        world.service.declare(MEMORY, capacity, backend, 2)
    assert world.service.rooms[MEMORY].capacity == 40 * MIB
    world.service.declare(MEMORY, 20 * MIB, "dram", 3)
    assert world.service.rooms[MEMORY].capacity == 20 * MIB


def test_keeping_a_prompt_touches_its_own_chunks_only() -> None:
    """However many conversations begin alike: a thousand would be ranked again for each hint."""
    world = World(prefetch_share=0)
    start = words(1, 1)
    for seed in range(2, 40):
        world.serve(Prompt(*start, *words(seed, 1)), first=0 if seed == 2 else 1)
    chunks = world.service.find_prompt("llama", "", [*start, *words(5, 1)], 4)
    assert world.service.retain(chunks, 600.0)
    here = world.service.rooms[MEMORY]._here
    assert [chunk for chunk, resident in here.items() if resident.retained_until > world.now] == chunks


def test_a_plan_looks_at_some_conversations_at_a_time_and_at_all_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lpc.lmcache.service.CONSIDERED", 3)
    world = World()
    all_ = prompts(10, 1)
    for prompt in all_:
        world.serve(prompt)
    end_turns(world)
    for prompt in all_:
        evicted(world, prompt)
    world.know()
    asked = set()
    for _ in range(4):
        for fetch in world.service.plan().fetch:
            asked.add(fetch.conversation)
            world.service.fetching.drop(fetch.conversation, refused=True)
    assert len(asked) == 10


def test_a_clock_that_is_set_moves_no_age(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = steady()
    before = clock()
    assert abs(before - time.time()) < 60.0
    monkeypatch.setattr(time, "time", lambda: before - 7200.0)
    assert 0.0 <= clock() - before < 60.0


@pytest.mark.parametrize(("said", "at"), [(0.0, 1000.0), (998.5, 998.5), (1000.5, 1000.0), (4600.0, 1000.0), (-2600.0, 1000.0)])
def test_what_a_node_with_another_clock_reports_has_happened_when_it_is_heard(said: float, at: float) -> None:
    assert reported_at(said, 1000.0) == at
