import pytest

from eviction_client import Lifetime
from lpc.lmcache.room import Room
from lpc.lmcache.tree import Chunk, Resident
from tests.unit.lmcache.nodes import KEYS, Prompt, words


def chunks(*seeds: int) -> list[Chunk]:
    found = []
    for seed in seeds:
        prompt = Prompt(*words(seed, 1))
        found.append(Chunk(prompt.objects[0][0].chunk, None, 0, prompt.entries(size=1)[0].tokens))
    return found


def objects(chunk: Chunk) -> Prompt:
    return Prompt(*chunk.tokens)


def fill(room: Room, all_: list[Chunk], size: int = 10, at: float = 0.0) -> None:
    for chunk in all_:
        room.store(chunk, objects(chunk).objects[0][0], size, at)


def go(_: Resident) -> bool:
    return True


def seeds(found: list[Resident]) -> list[int]:
    return [resident.chunk.tokens[0] // 1000 for resident in found]


def test_below_the_watermark_nothing_goes() -> None:
    room = Room(100, 0.7)
    fill(room, chunks(*range(7)))
    assert room.used == 70
    assert room.victims(0, go) == []
    assert len(room.victims(1, go)) == 1


def test_the_smallest_key_goes_first() -> None:
    room = Room(100, 0.5)
    all_ = chunks(*range(6))
    fill(room, all_)
    for chunk, key in zip(all_, (50.0, 10.0, 40.0, 20.0, 60.0, 30.0), strict=True):
        room.rank(chunk, key, key)
    assert seeds(room.victims(0, go)) == [1, 3]


def test_of_equal_keys_the_deepest_goes_first() -> None:
    room = Room(100, 0.2)
    prompt = Prompt(*words(1, 4))
    for place, entry in enumerate(prompt.entries(size=10)):
        chunk = Chunk(entry.object.chunk, None, 4 * place, entry.tokens)
        room.store(chunk, entry.object, 10, 5.0)
    assert [resident.chunk.depth for resident in room.victims(0, go)] == [12, 8, 4]


def test_a_key_that_changes_moves_the_chunk() -> None:
    room = Room(100, 0.2)
    all_ = chunks(*range(3))
    fill(room, all_)
    room.rank(all_[0], 5.0, 5.0)
    room.rank(all_[0], 90.0, 90.0)
    assert seeds(room.victims(0, go)) == [1, 2]
    room.rank(all_[0], 95.0, -1.0)
    assert seeds(room.victims(0, go))[0] == 0


def test_what_may_not_go_is_passed_over_and_asked_for_again() -> None:
    room = Room(100, 0.2)
    all_ = chunks(*range(4))
    fill(room, all_)
    assert seeds(room.victims(0, lambda resident: resident.chunk is not all_[0])) == [1, 2, 3]
    assert seeds(room.victims(0, go))[0] == 0


def test_bytes_are_counted_here_once_per_object_and_a_late_report_changes_nothing() -> None:
    room = Room(100, 0.7)
    (chunk,) = chunks(1)
    (object_,) = objects(chunk).objects[0]
    room.store(chunk, object_, 10, 0.0)
    room.store(chunk, object_, 10, 1.0)
    assert room.used == 10
    room.gone(chunk, object_, 2.0, asked=True)
    room.gone(chunk, object_, 3.0)  # the node's own report of it
    assert (room.used, room.deleted, room.lost) == (0, 10, 0)
    assert chunk not in room


def test_a_restart_of_the_node_empties_it() -> None:
    room = Room(100, 0.7)
    all_ = chunks(1, 2)
    fill(room, all_)
    assert room.clear() == all_
    assert (room.used, len(room), room.victims(1000, go)) == (0, 0, [])


def test_the_lifetime_is_learnt_from_what_goes() -> None:
    room = Room(100, 0.7)
    alike = Lifetime(100)
    all_ = chunks(*range(5))
    fill(room, all_, at=100.0)
    for chunk in all_:
        room.gone(chunk, objects(chunk).objects[0][0], 130.0)
        alike.evicted(10, 100.0, 130.0)
    assert room.lifetime.seconds == pytest.approx(alike.seconds)
    assert room.lifetime.seconds < 60.0


def test_without_a_bound_there_is_always_room() -> None:
    room = Room(0, 0.7)
    fill(room, chunks(*range(100)))
    assert room.victims(10**12, go) == []
    assert not room.pressed


def test_the_order_stays_small_where_keys_change_often() -> None:
    room = Room(100, 0.7)
    all_ = chunks(1, 2)
    fill(room, all_)
    for at in range(10_000):
        room.rank(all_[0], float(at), float(at))
    assert len(room._order) < 1000
    assert KEYS.root


def test_a_chunk_that_comes_back_to_a_key_that_it_had_counts_once() -> None:
    room = Room(100, 0.4)
    all_ = chunks(*range(6))
    fill(room, all_)
    for key in (5.0, 0.0):
        room.rank(all_[0], key, key)
    assert len(seeds(room.victims(0, go))) == len(set(seeds(room.victims(0, go)))) >= 2
