"""What requests that wait in the engines will load is kept, and fetched from disk."""

from lpc.lmcache.waiting import FORGOTTEN_S
from tests.unit.lmcache.nodes import CHUNK, MIB, Prompt, words
from tests.unit.lmcache.test_service import ENDED_S, FRESH_S, MEMORY, World, end_turns, prompts


def wait(world: World, engine: str, **requests: Prompt | None) -> None:
    """An engine names the requests that wait there; those with a prompt are new."""
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
        world.pass_(FRESH_S + ENDED_S)
        world.service.plan()
    return world, all_


def test_what_a_waiting_request_will_load_goes_last_that_of_the_first_the_very_last() -> None:
    world, all_ = full()
    wait(world, "one", first=all_[0], second=all_[1])
    room = world.service.rooms[MEMORY]
    assert [r.chunk.tokens[0] // 1000 for r in room.queue.eviction_order()] == [3, 3, 2, 2, 1, 1]
    world.serve(Prompt(*words(9, 2)))
    assert set(world.gone(*all_)) == {2}


def test_once_served_it_goes_next_if_its_turn_had_come() -> None:
    world, all_ = full()
    wait(world, "one", first=all_[0])
    world.serve(Prompt(*words(9, 2)))
    assert set(world.gone(*all_)) == {1}
    wait(world, "one")
    world.pass_(FRESH_S)
    world.serve(Prompt(*words(8, 2)))
    assert 0 in world.gone(*all_)


def test_a_request_named_again_keeps_its_chunks_and_an_engine_that_falls_silent_keeps_none() -> None:
    world, all_ = full()
    wait(world, "one", first=all_[0])
    wait(world, "two", first=all_[1])
    for _ in range(4):
        world.pass_(FORGOTTEN_S / 2)
        wait(world, "one", first=None, unknown=None)
        world.service.plan()
    queue = world.service.rooms[MEMORY].queue
    assert queue.waiting == 1 and len(world.service.waiting) == 1
    wait(world, "one")
    assert not queue.keeps and not len(world.service.waiting)


def test_while_nothing_waits_what_goes_is_as_ever() -> None:
    (plain, all_), (told, _) = full(), full()
    wait(told, "one")
    for world in (plain, told):
        world.serve(Prompt(*words(9, 2)))
    assert plain.gone(*all_) == told.gone(*all_) != []


def test_what_waits_longest_is_fetched_from_disk_whatever_it_is_worth() -> None:
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
    assert not world.service.plan().fetch, "it is under way"
