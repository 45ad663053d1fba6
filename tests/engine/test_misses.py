"""The plug-in's counts of prompt tokens by source, in vLLM's real scheduler."""

import random

import pytest

from eviction_client.background import AtOnce
from eviction_client.engines.vllm.metrics import values_of
from testing.bare_scheduler import BLOCK, Engine, conversations

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="why prompt tokens were not cached")


@pytest.mark.parametrize(("asynchronous", "window"), [(False, None), (True, 64)], ids=["sync, full", "async, hybrid"])
def test_each_prompt_token_is_counted_once_and_vllms_hits_as_cached(asynchronous: bool, window: int | None) -> None:
    made = conversations(3, 200)
    engine = Engine(260 if window else 130, asynchronous=asynchronous, window=window, background=AtOnce)
    ours = engine.run(made)
    hooks = engine.scheduler.lpc
    tokens = {source: count for (name, source), count in values_of(hooks).items() if name == "lpc_prompt_tokens"}
    assert tokens["cached"] == ours.cached
    assert sum(tokens.values()) == ours.prompt
    assert tokens["evicted"] > 50 * BLOCK and tokens["new"] > 50 * BLOCK
    assert tokens["other_salt"] == tokens["changed"] == tokens["other_engine"] == 0
    assert hooks.plugin.failures == 0


def test_hits_by_size_are_those_of_vllm_with_a_cache_of_each_size() -> None:
    """Within two points, in percent of prompt tokens. Small caches differ most, by their running requests."""
    made = conversations(3, 300)
    blocks = 400
    engine = Engine(blocks, background=AtOnce, rule="lru", keep_waiting=False)
    engine.run(made)
    values = values_of(engine.scheduler.lpc)
    found = {size: count for (name, size), count in values.items() if name == "lpc_missed_blocks"}
    asked = found.pop("asked")
    live = {size: 100 * (asked - missed) * BLOCK / engine.outcome.prompt for size, missed in found.items()}
    real = {}
    for size in live:
        other = Engine(int(blocks * float(size)), background=AtOnce, learned=False)
        real[size] = other.run(made).hit_rate()
    assert real["8"] - real["0.5"] > 5, real
    assert live == pytest.approx(real, abs=2.0), real


@pytest.mark.parametrize("session", [None, "s"])
def test_a_time_stamp_in_a_system_prompt_is_a_changed_value_with_and_without_sessions(session: str | None) -> None:
    engine = Engine(2_000, background=AtOnce)
    rng = random.Random(0)
    system, history = words(rng, 800), words(rng, 100)
    for turn in range(6):
        stamp = words(rng, 6)
        arguments = {"session_id": session} if session else None
        engine.add(str(turn), [*system[:20], *stamp, *system[20:], *history], 40, arguments)
        while not engine.step():
            pass
        history += [*engine.outcome.outputs[str(turn)], *words(rng, 60)]
    plugin = engine.scheduler.lpc.plugin
    changed = {change for (change, _), tokens in plugin.misses.changed.items() if tokens}
    assert changed == {"value"}
    # Each of the five later prompts has the system prompt and the history before it.
    assert plugin.misses.tokens["changed"] > 5 * 800
    assert plugin.failures == 0


def test_a_conversation_that_only_appends_has_nothing_changed() -> None:
    engine = Engine(2_000, background=AtOnce)
    rng = random.Random(0)
    prompt = words(rng, 900)
    for turn in range(6):
        engine.add(str(turn), prompt, 40)
        while not engine.step():
            pass
        prompt = [*prompt, *engine.outcome.outputs[str(turn)], *words(rng, 60)]
    misses = engine.scheduler.lpc.plugin.misses
    assert (misses.tokens["changed"], misses.tokens["reply_changed"]) == (0, 0)
    assert misses.tokens["cached"] > 5 * 880


def words(rng: random.Random, number: int) -> list[int]:
    return [rng.randrange(30_000) for _ in range(number)]
