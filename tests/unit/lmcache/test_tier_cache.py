import pytest

from eviction_client import BlockHash
from eviction_client.policy.ghosts import Freed
from lpc.model.curve import KNOTS
from lpc_apps.lmcache.tier_cache import TierCache
from lpc_apps.lmcache.tree import Chunk, Resident
from tests.unit.lmcache.nodes import Prompt, words


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def build_cache(watermark: float, capacity: int = 100) -> tuple[TierCache, Clock]:
    clock = Clock()
    return TierCache(capacity, watermark, 2, clock), clock


def chunks(*seeds: int) -> list[Chunk]:
    found = []
    for seed in seeds:
        prompt = Prompt(*words(seed, 1))
        found.append(Chunk(prompt.objects[0][0].chunk, None, 0, prompt.entries(size=1)[0].tokens))
    return found


def objects(chunk: Chunk) -> Prompt:
    return Prompt(*chunk.tokens)


def fill(cache: TierCache, all_: list[Chunk], size: int = 10) -> None:
    for chunk in all_:
        cache.store([(chunk, objects(chunk).objects[0][0], size)])


def go(_: Resident) -> bool:
    return True


def seeds(found: list[Resident]) -> list[int]:
    return [resident.chunk.tokens[0] // 1000 for resident in found]


def test_nothing_is_evicted_below_the_watermark() -> None:
    cache, _ = build_cache(0.7)
    fill(cache, chunks(*range(7)))
    assert cache.used == 70
    assert cache.victims(0, go) == []
    assert len(cache.victims(1, go)) == 1


def test_lru_evicts_a_chain_from_its_end() -> None:
    cache, clock = build_cache(0.2)
    prompt = Prompt(*words(1, 4))
    chain = [Chunk(e.object.chunk, None, 4 * n, e.tokens) for n, e in enumerate(prompt.entries(size=10))]
    cache.store([(chunk, objects[0], 10) for chunk, objects in zip(chain, prompt.objects, strict=True)])
    clock.now += 1.0
    (later,) = chunks(2)
    fill(cache, [later])
    assert [resident.chunk.depth for resident in cache.victims(0, go)] == [12, 8, 4, 0]
    clock.now += 1.0
    cache.mark_in_use(chain)
    assert cache.victims(0, go)[0].chunk is later


def test_the_guard_has_the_size_of_the_tier_and_enables_the_value_when_it_pays() -> None:
    """Conversations that come back in turn are more than there is cache for: least recent use finds none of them."""
    cache, clock = build_cache(0.7, capacity=2800)
    cache.set_tables([[0.01] * len(KNOTS), [1.0 + age for age in KNOTS]])
    prompts = [[BlockHash(bytes([n, index]) * 8) for index in range(10)] for n in range(30)]
    fill(cache, chunks(1))
    for _ in range(30):
        for prompt in prompts:
            clock.now += 1.0
            cache.learn(prompt, [Freed(prompt, 1)])
    assert cache.ghosts is not None
    assert len(cache.ghosts.following(True)) * cache.ghosts.every == pytest.approx(196, abs=4)
    assert cache.queue.value_enabled
    cache.fall_back_to_lru()
    assert not cache.queue.value_enabled


def test_an_object_counts_once_and_a_late_report_changes_nothing() -> None:
    cache, _ = build_cache(0.7)
    (chunk,) = chunks(1)
    (object_,) = objects(chunk).objects[0]
    cache.store([(chunk, object_, 10)])
    cache.store([(chunk, object_, 10)])
    assert cache.used == 10
    cache.removed(chunk, object_, requested=True)
    cache.removed(chunk, object_)  # the late report of the node
    assert (cache.used, cache.deleted, cache.lost) == (0, 10, 0)
    assert chunk not in cache
