"""The gain over LRU in vLLM's real scheduler: exactly 0 while LRU is in force, and while nothing is evicted."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from eviction_client.background import AtOnce
from eviction_client.engines.vllm.metrics import values_of
from eviction_client.transport.messages import SidecarPrediction
from eviction_client.transport.scripted_predictor import CONTINUES
from testing.bare_scheduler import BLOCK, Engine, conversations, oracle
from tests.engine.test_hit_units import HITS, words

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="the gain over LRU")

Sent = tuple[list[int], bool]
"""A prompt, and whether its request may read the cache: not with `prompt_logprobs`."""
IN_FORCE: dict[str, dict[str, Any]] = {
    "lru": {"rule": "lru"},
    "own": {"rule": "own"},
    "dry run": {"rule": "own", "shadow": True},
}


def gain(engine: Engine) -> float:
    """Return the gain over LRU in points of hit rate, as `lpc:gain_over_lru:ratio30m` calculates it."""
    values = values_of(engine.scheduler.lpc)
    counted = sum(tokens for (name, _), tokens in values.items() if name == "lpc_prompt_tokens")
    assert engine.scheduler.lpc.plugin.failures == 0 < counted
    return 100 * (values["lpc_hit_by_one_tokens", "engine"] - values["lpc_hit_by_one_tokens", "lru"]) / counted


def drain(engine: Engine) -> None:
    while engine.scheduler.has_unfinished_requests():
        engine.step()


def same_prompt(rng: random.Random) -> Iterator[Sent]:
    prompt = words(rng, 40)
    for _ in range(50):
        yield prompt, True


def growing_chat(rng: random.Random) -> Iterator[Sent]:
    history: list[int] = []
    for _ in range(15):
        history += words(rng, rng.randint(10, 90))
        yield history[:], True


def every_second_with_log_probabilities(rng: random.Random) -> Iterator[Sent]:
    for number, (prompt, _) in enumerate(growing_chat(rng)):
        yield prompt, number % 2 == 0


def whole_blocks(rng: random.Random) -> Iterator[Sent]:
    """The last block of a prompt is always computed, also if it is full."""
    prompt = words(rng, 5 * BLOCK)
    for blocks in (5, 5, 3, 5, 1, 1, 4, 5):
        yield prompt[: blocks * BLOCK], True


def branches(rng: random.Random) -> Iterator[Sent]:
    prompt = words(rng, 300)
    for _ in range(20):
        yield [*prompt[: rng.randrange(300)], *words(rng, rng.choice((1, 15, 16, 40)))], True


@pytest.mark.parametrize(
    ("case", "order"), [*((case, "own") for case in HITS), ("one kind of layers", "lru"), ("one kind of layers", "dry run")]
)
@pytest.mark.parametrize("traffic", [same_prompt, growing_chat, every_second_with_log_probabilities, whole_blocks, branches])
def test_without_evictions_nothing_is_gained_or_lost(
    traffic: Callable[[random.Random], Iterator[Sent]], case: str, order: str
) -> None:
    engine = Engine(2_000, background=AtOnce, **HITS[case], **IN_FORCE[order])
    for number, (prompt, reads) in enumerate(traffic(random.Random(0))):
        engine.add(str(number), prompt, 3).skip_reading_prefix_cache = not reads
        drain(engine)
    assert engine.outcome.evicted == []
    assert gain(engine) == 0.0
    assert not any(engine.scheduler.lpc.plugin.misses.hit_by_one.values())


def disturb(engine: Engine, seed: int) -> None:
    """Serve overlapping chats of several tenants with aborts, resets, and requests that may not read the cache."""
    rng = random.Random(seed)
    scheduler = engine.scheduler
    chats: list[list[int]] = [words(rng, 40) for _ in range(12)]
    for number in range(250):
        chat = rng.randrange(len(chats))
        if rng.random() < 0.1:
            chats[chat] = words(rng, rng.randint(5, 200))
        chats[chat] = [*chats[chat], *words(rng, rng.randint(1, 60))][-600:] if rng.random() < 0.7 else chats[chat]
        salt = rng.choice((None, "a")) if chat % 2 else None
        request = engine.add(str(number), chats[chat], rng.randint(1, 60), salt=salt)
        request.skip_reading_prefix_cache = rng.random() < 0.1
        for _ in range(rng.randrange(12)):
            engine.step()
        if rng.random() < 0.1 and str(number) in scheduler.requests:
            scheduler.finish_requests(str(number), RequestStatus.FINISHED_ABORTED)
        if rng.random() < 0.02:
            drain(engine)
            assert scheduler.reset_prefix_cache()
    drain(engine)


@pytest.mark.parametrize(("seed", "case"), enumerate(HITS))
def test_with_lru_in_force_nothing_is_gained_or_lost_whatever_happens(case: str, seed: int) -> None:
    """Blocks are evicted, requests are preempted and aborted, and the cache is emptied."""
    settings = (IN_FORCE["lru"], IN_FORCE["dry run"], {"rule": "lru", "keep_waiting": False})[seed % 3]
    engine = Engine(90, background=AtOnce, **HITS[case], **settings)
    disturb(engine, seed)
    assert len(engine.outcome.evicted) > 500 and engine.outcome.preempted
    assert gain(engine) == 0.0


@pytest.mark.parametrize("case", ["one kind of layers", "a draft model, without lookahead", "windows"])
def test_in_a_large_cache_nothing_is_gained_by_another_rule_whatever_happens(case: str) -> None:
    engine = Engine(8_000, background=AtOnce, rule="own", **HITS[case])
    disturb(engine, 0)
    assert engine.outcome.evicted == []
    assert gain(engine) == 0.0


def test_the_gain_of_an_oracle_is_about_its_distance_from_stock() -> None:
    """Ghost caches lack the blocks of running requests, so this holds for caches that are larger than these."""
    made, blocks = conversations(3, 200), 300
    engine = Engine(blocks, background=AtOnce, script=oracle(made), rule="value", keep_waiting=False)
    better = engine.run(made).hit_rate() - Engine(blocks, learned=False).run(made).hit_rate()
    assert better > 2.0
    assert gain(engine) == pytest.approx(better, abs=1.5)


def test_a_rule_that_is_worse_than_lru_loses() -> None:
    """With the predictions inverted; `lpc` follows them at once."""
    made = conversations(3, 200)
    right = oracle(made)

    def inverted(name: str) -> SidecarPrediction:
        return SidecarPrediction(0.02 if right(name) == CONTINUES else 0.98, "inverted", 1)

    engine = Engine(200, background=AtOnce, script=inverted, rule="lpc", keep_waiting=False)
    worse = engine.run(made).hit_rate() - Engine(200, learned=False).run(made).hit_rate()
    assert worse < -2.0
    assert gain(engine) == pytest.approx(worse, abs=3.0)
