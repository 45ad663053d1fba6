import hashlib

from eviction_client import BlockHash
from eviction_client.policy.ghosts import sampling_of
from eviction_client.policy.policy import Policy
from eviction_client.policy.request import TrackedRequest
from lpc_apps.lmcache.tier_cache import TierCache
from lpc_apps.lmcache.tree import Chunk, Resident
from tests.unit.lmcache.nodes import Prompt, words


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def build_cache(watermark: float, capacity: int = 100) -> tuple[TierCache, Clock]:
    clock = Clock()
    policy: Policy[BlockHash] = Policy(100, block_tokens=4, clock=clock, rule="lru")
    return TierCache(capacity, watermark, policy, clock), clock


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


def test_the_ghost_caches_have_the_size_of_the_tier() -> None:
    """A tier's size in chunks is known only when it holds some."""
    clock = Clock()
    policy: Policy[BlockHash] = Policy(100, block_tokens=4, clock=clock)
    cache = TierCache(130_000, 0.7, policy, clock)

    def serve(n: int) -> None:
        clock.now += 1.0
        prompt = [BlockHash(hashlib.blake2b(f"{n}/{index}".encode(), digest_size=16).digest()) for index in range(500)]
        policy.started(request := TrackedRequest(n, prompt, started_at=clock.now))
        cache.learn(policy.finished(request, prompt, 500, clock.now))

    serve(0)
    assert cache.ghosts.asked == 0, "its size is unknown"
    fill(cache, chunks(1))
    for n in range(30):
        serve(n)
    assert cache.ghosts.every == sampling_of(9100) > 1
    assert {len(ghosts) for ghosts in cache.ghosts.caches.values()} == {9100 // cache.ghosts.every}
    fill(cache, chunks(2), size=30)
    serve(30)
    assert {len(ghosts) for ghosts in cache.ghosts.caches.values()} == {4550 // cache.ghosts.every}, "chunks are twice as large"


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
