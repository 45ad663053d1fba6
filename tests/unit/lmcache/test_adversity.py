"""Failures around the service: nodes that leave or refuse, wrong clocks, equal prompts of tenants, full tables."""

import pytest

from lpc_apps.lmcache.events import Location, reported_at
from lpc_apps.lmcache.tier_cache import DELETION_TIMEOUT_S
from tests.unit.lmcache.nodes import MIB, Prompt, event, words
from tests.unit.lmcache.test_service import DISK, MEMORY, World, prompts


def test_forgotten_chunks_are_not_counted_in_any_tier() -> None:
    world = World(chunks=20)
    for prompt in prompts(200):
        world.serve(prompt)
        world.pass_(1)
    caches = world.service.caches
    assert len(world.service.conversations) == len(caches[MEMORY]) == len(caches[DISK]) == 20
    assert caches[MEMORY].used == caches[DISK].used == 20 * MIB


def test_pending_deletions_are_not_planned_again() -> None:
    """A node returns how many objects it skipped, not which; its later report names the deleted ones."""
    world = World()
    all_ = prompts(8)
    for prompt in all_:
        world.serve(prompt)
        world.pass_(1)
    world.pass_(20)
    asked = world.service.plan().delete[MEMORY]
    assert 9 <= len(asked) <= 10  # sixteen are stored, seven may stay
    world.service.deleting(MEMORY, asked)
    world.service.skipped(MEMORY, asked, 3)
    (more,) = world.service.plan().delete.values()
    assert len(more) <= 3 and not set(more) & set(asked)  # in index of those that stay
    world.service.deleting(MEMORY, more)
    world.service.skipped(MEMORY, more, 0)
    for _ in range(4):
        world.pass_(0.25)
        assert world.service.plan().delete == {}
    reported = [entry for prompt in all_ for entry in prompt.entries() if entry.object in [*asked[3:], *more]]
    world.service.apply(event("delete", reported, world.now))
    assert world.service.caches[MEMORY].deleting_bytes(world.now) == 0
    assert world.service.plan().delete == {}
    assert world.service.caches[MEMORY].lost == 0


def test_chunks_that_a_node_never_deletes_do_not_block_others() -> None:
    """The deletion of objects that are always being read is repeated, while others are deleted."""
    world = World()
    for prompt in prompts(4):
        world.serve(prompt)
        world.pass_(10)
    stuck = set(world.service.plan().delete[MEMORY])
    for _ in range(4):
        asked = world.service.plan().delete.get(MEMORY, [])
        world.service.deleting(MEMORY, asked)
        world.service.skipped(MEMORY, asked, len(stuck & set(asked)))
        world.service.deleted(MEMORY, [object_ for object_ in asked if object_ not in stuck])
        world.pass_(0.25)
    assert world.service.caches[MEMORY].used <= 7 * MIB
    world.pass_(DELETION_TIMEOUT_S)
    world.serve(Prompt(*words(99, 3)))
    assert stuck <= set(world.service.plan().delete[MEMORY])


def test_a_node_that_left_leaves_no_state() -> None:
    world = World()
    world.serve(*prompts(1))
    for number in range(50):  # a restarted pod has a new name
        node = f"pod-{number}"
        world.service.declare(Location("l1", node), 10 * MIB)
        world.service.apply(event("store", Prompt(*words(number + 2, 1)).entries(size=MIB), world.now, node=node))
        world.service.fence(node)
        world.service.skipped(Location("l1", node), Prompt(*words(number + 2, 1)).objects[0], 1)  # a late answer
    assert set(world.service.caches) == {MEMORY, DISK}


def test_tenants_with_equal_prompts_have_separate_conversations() -> None:
    world = World()
    for number, (salt, model) in enumerate([("", "llama"), ("one", "llama"), ("two", "llama"), ("", "qwen")]):
        world.serve(Prompt(*words(1, 2), salt=salt, model=model))
        assert len({c.name for c in world.service.states}) == number + 1
    assert not any("one" in c.name or "two" in c.name for c in world.service.states)


def test_capacities_of_backends_add_up_and_a_new_revision_replaces_them() -> None:
    world = World()
    for backend, capacity in (("dram", 10 * MIB), ("devdax", 30 * MIB)):
        world.service.declare(MEMORY, capacity, backend, 2)
    assert world.service.caches[MEMORY].capacity == 40 * MIB
    world.service.declare(MEMORY, 20 * MIB, "dram", 3)
    assert world.service.caches[MEMORY].capacity == 20 * MIB


@pytest.mark.parametrize(
    ("timestamp", "at"), [(0.0, 1000.0), (998.5, 998.5), (1000.5, 1000.0), (4600.0, 1000.0), (-2600.0, 1000.0)]
)
def test_implausible_timestamps_are_replaced_by_the_time_of_receipt(timestamp: float, at: float) -> None:
    assert reported_at(timestamp, 1000.0) == at


def test_a_turn_that_ends_after_its_node_has_left_leaves_no_state() -> None:
    """What is on the storage of all nodes is remembered, and so is its conversation."""
    world = World()
    world.serve(*prompts(1))
    prompt, node = Prompt(*words(77, 2)), "pod-9"
    world.service.declare(Location("l1", node), 10 * MIB)
    world.service.apply(event("store", prompt.entries(size=MIB), world.now, node=node))
    world.service.apply(event("store", prompt.entries(size=MIB), world.now, node=node, tier="l2")._replace(shared=True))
    world.service.fence(node)
    world.pass_(2000)
    world.service.plan()
    assert Location("l1", node) not in world.service.caches
    assert all(state.ended_turn for state in world.service.states.values())
