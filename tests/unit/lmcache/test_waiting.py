"""Chunks that waiting requests will load are evicted last, and fetched from disk."""

from lpc_apps.lmcache.waiting import ENGINE_TIMEOUT_S
from tests.unit.lmcache.nodes import CHUNK, MIB, Prompt, words
from tests.unit.lmcache.test_service import END_AFTER_S, FRESH_S, MEMORY, World, end_turns, prompts


def wait(world: World, engine: str, **requests: Prompt | None) -> None:
    """Announce the waiting requests of an engine; those with a prompt are new."""
    found = world.service.find_prompt
    world.service.wait(
        engine, [(name, None if p is None else found("llama", "", p.tokens, CHUNK)) for name, p in requests.items()]
    )


def full(count: int = 3) -> tuple[World, list[Prompt]]:
    """Conversations of two chunks each fill the memory; the first was used longest ago."""
    world = World(prefetch_share=0)
    all_ = prompts(count)
    for prompt in all_:
        world.serve(prompt)
        world.pass_(FRESH_S + END_AFTER_S)
        world.service.plan()
    return world, all_


def test_chunks_of_waiting_requests_are_evicted_last_in_reverse_order_of_arrival() -> None:
    world, all_ = full()
    wait(world, "one", first=all_[0], second=all_[1])
    cache = world.service.caches[MEMORY]
    assert [r.chunk.tokens[0] // 1000 for r in cache.queue.eviction_order()] == [3, 3, 2, 2, 1, 1]
    world.serve(Prompt(*words(9, 2)))
    assert set(world.gone(*all_)) == {2}


def test_chunks_of_a_served_request_get_their_old_rank() -> None:
    world, all_ = full()
    wait(world, "one", first=all_[0])
    world.serve(Prompt(*words(9, 2)))
    assert set(world.gone(*all_)) == {1}
    wait(world, "one")
    world.pass_(FRESH_S)
    world.serve(Prompt(*words(8, 2)))
    assert 0 in world.gone(*all_)


def test_a_repeated_request_stays_and_a_silent_engine_loses_its_requests() -> None:
    world, all_ = full()
    wait(world, "one", first=all_[0])
    wait(world, "two", first=all_[1])
    for _ in range(4):
        world.pass_(ENGINE_TIMEOUT_S / 2)
        wait(world, "one", first=None, unknown=None)
        world.service.plan()
    queue = world.service.caches[MEMORY].queue
    assert queue.waiting == 1 and len(world.service.waiting) == 1
    wait(world, "one")
    assert not queue.keeps and not len(world.service.waiting)


def test_without_waiting_requests_the_order_is_unchanged() -> None:
    (plain, all_), (announced, _) = full(), full()
    wait(announced, "one")
    for world in (plain, announced):
        world.serve(Prompt(*words(9, 2)))
    assert plain.gone(*all_) == announced.gone(*all_) != []


def test_waiting_requests_are_fetched_from_disk_regardless_of_value() -> None:
    world = World()
    (prompt,) = prompts(1)
    world.serve(prompt)
    end_turns(world)
    world.service.deleted(MEMORY, [object_ for objects in prompt.objects for object_ in objects])
    world.pass_(600.0)
    assert not world.service.plan().fetch, "no curve is known"
    longer = Prompt(*prompt.tokens, *words(7, 1))
    wait(world, "one", first=longer)
    (fetch,) = world.service.plan().fetch
    assert fetch.conversation is world.conversation(prompt) and fetch.bytes == 2 * MIB
    assert not world.service.plan().fetch, "the fetch is running"
