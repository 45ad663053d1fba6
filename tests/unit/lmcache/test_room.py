import pytest

from eviction_client import BlockHash
from eviction_client.curve import KNOTS
from eviction_client.ghost import Freed
from eviction_client.value_queue import DONE
from lpc.lmcache.room import Room
from lpc.lmcache.tree import Chunk, Resident
from tests.unit.lmcache.nodes import Prompt, words


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def made(watermark: float, capacity: int = 100) -> tuple[Room, Clock]:
    clock = Clock()
    return Room(capacity, watermark, 0.0, 2, clock), clock


def chunks(*seeds: int) -> list[Chunk]:
    found = []
    for seed in seeds:
        prompt = Prompt(*words(seed, 1))
        found.append(Chunk(prompt.objects[0][0].chunk, None, 0, prompt.entries(size=1)[0].tokens))
    return found


def objects(chunk: Chunk) -> Prompt:
    return Prompt(*chunk.tokens)


def fill(room: Room, all_: list[Chunk], size: int = 10) -> None:
    for chunk in all_:
        room.store([(chunk, objects(chunk).objects[0][0], size)])


def go(_: Resident) -> bool:
    return True


def seeds(found: list[Resident]) -> list[int]:
    return [resident.chunk.tokens[0] // 1000 for resident in found]


def test_below_the_watermark_nothing_goes() -> None:
    room, _ = made(0.7)
    fill(room, chunks(*range(7)))
    assert room.used == 70
    assert room.victims(0, go) == []
    assert len(room.victims(1, go)) == 1


def test_least_recent_use_goes_first_and_a_chain_from_its_end() -> None:
    room, clock = made(0.2)
    prompt = Prompt(*words(1, 4))
    chain = [Chunk(e.object.chunk, None, 4 * n, e.tokens) for n, e in enumerate(prompt.entries(size=10))]
    room.store([(chunk, objects[0], 10) for chunk, objects in zip(chain, prompt.objects, strict=True)])
    clock.now += 1.0
    (later,) = chunks(2)
    fill(room, [later])
    assert [resident.chunk.depth for resident in room.victims(0, go)] == [12, 8, 4, 0]
    clock.now += 1.0
    room.go_on(chain)
    assert room.victims(0, go)[0].chunk is later


def test_by_value_the_class_that_is_worth_least_at_its_age_goes_first() -> None:
    room, clock = made(0.15)
    rising, falling = [0.1 + age for age in KNOTS], [10.0 / (1.0 + age) for age in KNOTS]
    room.refitted([rising, falling])
    room.queue.value_enabled = True
    one, two = chunks(1, 2)
    fill(room, [one, two])
    room.use([([one], 0)])
    room.use([([two], 1)])
    assert seeds(room.victims(0, go))[0] == 1
    assert room.price == pytest.approx(0.1)
    clock.now += 10.0
    assert seeds(room.victims(0, go))[0] == 2


def test_what_is_kept_goes_last_and_what_was_kept_in_vain_first() -> None:
    room, clock = made(0.2)
    all_ = chunks(*range(3))
    fill(room, all_)
    room.use([(all_, 0)])
    room.keep([all_[0]], clock.now + 60.0)
    room.keep([all_[2]], clock.now + 60.0, reuse_class=DONE)
    assert seeds(room.victims(0, go))[0] == 1
    clock.now += 61.0
    assert seeds(room.victims(0, go))[0] == 2


def test_the_guard_has_the_size_of_the_room_and_puts_the_value_into_force_when_it_pays() -> None:
    """Conversations that come back in turn are more than there is room for: least recent use finds none of them."""
    room, clock = made(0.7, capacity=2800)
    room.refitted([[0.01] * len(KNOTS), [1.0 + age for age in KNOTS]])
    prompts = [[BlockHash(bytes([n, place]) * 8) for place in range(10)] for n in range(30)]
    fill(room, chunks(1))
    for _ in range(30):
        for prompt in prompts:
            clock.now += 1.0
            room.learn(prompt, [Freed(prompt, 1)])
    assert room.ghosts is not None
    assert len(room.ghosts.following(True)) * room.ghosts.every == pytest.approx(196, abs=4)
    assert room.queue.value_enabled
    room.distrust()
    assert not room.queue.value_enabled


def test_bytes_are_counted_here_once_per_object_and_a_late_report_changes_nothing() -> None:
    room, _ = made(0.7)
    (chunk,) = chunks(1)
    (object_,) = objects(chunk).objects[0]
    room.store([(chunk, object_, 10)])
    room.store([(chunk, object_, 10)])
    assert room.used == 10
    room.gone(chunk, object_, asked=True)
    room.gone(chunk, object_)  # the node's own report of it
    assert (room.used, room.deleted, room.lost) == (0, 10, 0)
    assert chunk not in room


def test_a_restart_of_the_node_empties_it() -> None:
    room, _ = made(0.7)
    all_ = chunks(1, 2)
    fill(room, all_)
    assert room.clear() == all_
    assert (room.used, len(room), room.victims(1000, go)) == (0, 0, [])
