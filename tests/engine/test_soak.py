"""Random traffic: requests, aborts, streams, resets, garbage. Nothing fails, and the memory of the plug-in stays bounded.

The nightly run lasts ten minutes, and also has prompts of a million tokens.
"""

import random
import time
from pathlib import Path
from typing import Any, Final

import pytest

from eviction_client.background import TICK_S, BackgroundThread
from testing.bare_scheduler import BLOCK
from testing.processes import RedisServer
from tests.engine.test_ends import MARK, Walk
from tests.nightly import LONG
from tests.reachable import reached, tables, weigh

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="minutes of random traffic, with Redis")

SECONDS: Final = 600.0 if LONG else 6.0
NAMED: Final = 1 << 16
"""Characters of each name that callers send."""
MOST_BYTES: Final = (96 if LONG else 16) << 20
"""Growth of all that the plug-in reaches. The callers' names have more bytes in total."""
MOST_TABLE_BYTES: Final = MOST_BYTES // 8
"""Size of any one table, with what it stores of names, numbers and hashes."""
GARBAGE: Final[tuple[Any, ...]] = (
    *(None, "", "soon", "\ud800", "1" * NAMED, -1, 0, 1e309, float("nan"), 2**64 - 1, True, [], {}, {"a": 1}, b"x", object()),
)


class Traffic(Walk):
    """A walk whose requests have long names and garbage as hints."""

    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(background=BackgroundThread, **settings)
        self.rng = random.Random(seed)
        self.named = 0

    def send(self, **fields: Any) -> str:
        rng = self.rng
        self.count += 1
        name = fields.pop("name", f"{MARK}-{self.count}")
        first = 6 + 7 * rng.randrange(40)
        tokens = [6 + (first + place) % 250 for place in range(rng.choice((1, 5, 40, 100, 400)))]
        session = f"{rng.randrange(2000):0{NAMED}}" if rng.random() < 0.5 else rng.choice(GARBAGE)
        arguments = {"session_id": session, "lpc_retain_seconds": rng.choice(GARBAGE), "lpc_done": rng.choice(GARBAGE)}
        salt = f"{rng.randrange(100):0{NAMED}}" if rng.random() < 0.5 else None
        self.named += sum(len(each) for each in (session, salt) if isinstance(each, str))
        self.engine.add(name, tokens, rng.choice((1, 3, 20)), arguments, salt, **fields)
        return name

    def act(self) -> None:
        """Do one random thing that callers or an operator do, and a step."""
        rng, scheduler = self.rng, self.scheduler
        live = list(scheduler.requests)
        streams = [name for name in live if scheduler.requests[name].resumable]
        number = rng.random()
        if number < 0.5 and len(live) < 40:
            self.send()
        elif number < 0.58 and len(live) < 40:
            self.send(resumable=True)
        elif number < 0.7 and streams:
            self.send(name=rng.choice(streams), resumable=rng.random() < 0.5)
        elif number < 0.8 and live:
            self.abort(*rng.sample(live, rng.randint(1, min(3, len(live)))))
        elif number < 0.802:
            scheduler.reset_prefix_cache(
                reset_running_requests=not streams
            )  # vLLM refuses it while an idle stream holds blocks
        self.engine.now += rng.choice((0.0, 0.0, 1.0, 30.0))
        self.engine.step()


@pytest.mark.timeout(int(SECONDS) + 300)
@pytest.mark.parametrize("schedule", ["fcfs", "warm-first"])
def test_random_traffic_leaves_nothing_and_takes_a_bounded_number_of_bytes(
    schedule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    with RedisServer(tmp_path) as redis:
        traffic = Traffic(1, asynchronous=False, schedule=schedule, pooling="fleet", redis_url=redis.url)
        hooks, beyond = traffic.scheduler.lpc, [traffic.scheduler.requests]
        before = weigh(hooks, beyond=beyond)
        end = time.monotonic() + SECONDS / 2
        while time.monotonic() < end or traffic.named < 2 * MOST_BYTES:
            traffic.act()
        traffic.abort()
        traffic.drain()
        # Until the store has been asked for the blocks of what started last: a round after these events, at another time.
        assert traffic.plugin.settle(60.0)
        traffic.engine.now += 1.0
        time.sleep(2 * TICK_S)
        assert traffic.left() == {}
        assert not [path for path, one in reached(hooks) if isinstance(one, str | bytes) and len(one) > 1024]
        assert weigh(hooks, beyond=beyond) - before < MOST_BYTES
        assert {path: size for path, size in tables(hooks, beyond=beyond).items() if size > MOST_TABLE_BYTES} == {}
        plugin, queue = traffic.plugin, traffic.engine.pool.free_block_queue
        assert plugin.pool.store.flush() and plugin.pool.store.written > 0 == plugin.pool.store.failures == plugin.failures
        assert not queue.waiting and len(queue.get_all_free_blocks()) == queue.num_free_blocks == 59
        traffic.scheduler.shutdown()


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_prompts_of_a_million_tokens_leave_nothing() -> None:
    walk = Walk(asynchronous=False, background=BackgroundThread, blocks=150_000)
    walk.scheduler.max_model_len = 1 << 21
    walk.scheduler.max_num_scheduled_tokens = walk.scheduler.scheduler_config.max_num_batched_tokens = 1 << 20
    for number in range(6):
        name = walk.add(blocks=(1 << 20) // BLOCK, reply=3)
        walk.steps(2)
        if number % 2:
            walk.abort(name)
        walk.drain()
    assert walk.plugin.settle(60.0)
    assert walk.left() == {} and walk.plugin.failures == 0
    walk.plugin.close()
