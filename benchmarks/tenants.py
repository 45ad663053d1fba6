"""One tenant floods a cache, with a new cache salt for each request: what the others still hit.

The plug-in with its guard and the queue that vLLM gets, in a cache of hashes whose requests take no time. In the second hour a
third tenant sends long prompts that nobody sends again; hits are counted from then on.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from benchmarks.told import Told
from eviction_client.background import AtOnce
from eviction_client.ended import Run
from eviction_client.floors import FlooredQueue
from eviction_client.ghost import Freed, GhostBlock, GhostCache
from eviction_client.plugin import Plugin
from eviction_client.settings import ClientSettings
from eviction_client.stores.base import BlockHash
from eviction_client.tenants import digest_of

BLOCK_TOKENS: Final = 64
CAPACITY: Final = 10_000
HOUR_S: Final = 3600.0
TURNS: Final = 8
CHATS: Final = {"fast": (450, 60.0), "slow": (150, 600.0)}
"""By tenant: conversations, and mean seconds between their turns."""
FLOORS: Final = {"fast": 0.3, "slow": 0.5}
FLOODS: Final = "floods"
FLOOD_EVERY_S: Final = 3.0
FLOOD_BLOCKS: Final = 150


class Request(NamedTuple):
    """The first so many blocks of a conversation."""

    at: float
    tenant: str
    conversation: str
    blocks: int


class Queue(FlooredQueue[GhostBlock[BlockHash]]):
    """Whose blocks are left by requests under a salt."""

    salt = ""

    def insert_chain(self, parts: Iterable[tuple[Sequence[GhostBlock[BlockHash]], int]], last_use: float) -> None:
        """Add the freed blocks of a chain."""
        parts = list(parts)
        self.own([block for blocks, _ in parts for block in blocks], self.salt)
        super().insert_chain(parts, last_use)


def requests(seed: int) -> Iterator[Request]:
    """Yield the requests in no order."""
    rng = random.Random(seed)
    for tenant, (conversations, gap_s) in CHATS.items():
        for number in range(conversations):
            at, blocks = rng.uniform(-HOUR_S / 2, 2 * HOUR_S), rng.randint(5, 30)
            for _ in range(TURNS):
                blocks += rng.randint(4, 24)
                yield Request(at, tenant, f"{tenant} {number}", blocks)
                at += rng.expovariate(1 / gap_s)
    for number in range(int(HOUR_S / FLOOD_EVERY_S)):
        yield Request(HOUR_S + number * FLOOD_EVERY_S, FLOODS, f"{FLOODS} {number}", FLOOD_BLOCKS)


def replay(asked: Sequence[Request], floors: Mapping[str, float], *, learned: bool) -> dict[str, float]:
    """Return the hit rate of each tenant, percent. ``learned``: the guard chooses the rule; else it is least recent use."""
    now = 0.0

    def clock() -> float:
        return now

    known = {"capacity": CAPACITY, "block_tokens": BLOCK_TOKENS, "predictor": Told(lambda _: None), "clock": clock}
    plugin = Plugin(ClientSettings(pooling="off"), **known, background=AtOnce)  # type: ignore[arg-type]
    cache: GhostCache[BlockHash] = GhostCache(CAPACITY, plugin.classes, value_enabled=False, clock=clock)
    cache.queue = queue = Queue(GhostBlock(-1), GhostBlock(-1), plugin.classes, clock=clock)
    queue.set_floors({digest_of(tenant): share for tenant, share in floors.items()}, CAPACITY)
    hit: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    for number, (at, tenant, conversation, blocks) in enumerate(asked):
        now = at
        chain = [BlockHash(blake2b(b"%d" % n, key=conversation.encode(), digest_size=8).digest()) for n in range(blocks)]
        if at >= HOUR_S:
            hit[tenant] += cache.hits(chain)
            wanted[tenant] += blocks
        queue.salt = conversation if tenant == FLOODS else tenant
        runs: Sequence[Run] = [Run(blocks, 0)]
        if learned:
            plugin.started(number, chain)
            runs = plugin.finished(number, completed=True, blocks=chain, prompt_blocks=blocks, salt=queue.salt).runs
            plugin.follow(queue)
        queue.step()
        starts = (0, *(run.end for run in runs))
        cache.use([Freed(chain[start : run.end], run.reuse_class) for start, run in zip(starts, runs, strict=False)])
    return {tenant: 100 * hit[tenant] / wanted[tenant] for tenant in wanted}


def run() -> dict[str, Any]:
    """Return the hit rates by case, order and tenant."""
    asked = sorted(request for request in requests(0) if 0 <= request.at < 2 * HOUR_S)
    quiet = [request for request in asked if request.tenant != FLOODS]
    return {
        order: {
            "no flood": replay(quiet, {}, learned=order == "value"),
            "flood": replay(asked, {}, learned=order == "value"),
            "flood, floors": replay(asked, FLOORS, learned=order == "value"),
        }
        for order in ("lru", "value")
    }
