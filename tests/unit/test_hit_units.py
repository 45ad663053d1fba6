"""Prompt tokens that earlier prompts had and that an engine does not hit, although nothing was evicted."""

import hashlib
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from eviction_client.background import AtOnce
from eviction_client.observability.misses import HitUnit
from eviction_client.observability.part_blocks import LEAST_PART, LEAST_UNIT, MOST_PARTS, PartBlocks
from eviction_client.plugin import Plugin
from eviction_client.settings import ClientSettings
from eviction_client.stores import BlockHash
from eviction_client.transport.scripted_predictor import ScriptedPredictor


def hashed(token_ids: Sequence[int], size: int) -> list[BlockHash]:
    found, known = [], b""
    for start in range(0, len(token_ids) - size + 1, size):
        known = hashlib.sha256(known + str(list(token_ids[start : start + size])).encode()).digest()
        found.append(BlockHash(known))
    return found


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common start."""
    length = min(len(one), len(other))
    return next((at for at in range(length) if one[at] != other[at]), length)


def text(rng: random.Random, number: int) -> list[int]:
    return [rng.randrange(50_000) for _ in range(number)]


class Engine:
    """An engine with an infinite cache that hits whole units only."""

    def __init__(self, size: int, hits: HitUnit, capacity: int = 100_000) -> None:
        self.now, self.count, self.size, self.hits = 1.8e9, 0, size, hits
        self.prompts: list[list[int]] = []
        self.plugin = Plugin(
            ClientSettings(),
            capacity=capacity,
            block_tokens=size,
            hits=hits,
            predictor=ScriptedPredictor(),
            clock=lambda: self.now,
            background=AtOnce,
        )

    def common(self, prompt: list[int]) -> int:
        """Return the tokens that the prompt's start has in common with an earlier one."""
        return max((shared(prompt, earlier) for earlier in self.prompts), default=0)

    def serve(self, prompt: list[int], cached: int | None = None, **known: object) -> Counter[str]:
        """Serve a request; return what its tokens were counted as. ``cached``: its hit; None: whole units."""
        self.now += 1.0
        self.count += 1
        before = Counter(self.plugin.misses.tokens)
        if cached is None:
            match = min(self.common(prompt), len(prompt) - 1)
            cached = max(match // self.hits.tokens * self.hits.tokens - self.hits.dropped, 0)
        blocks = hashed(prompt, self.size)
        self.plugin.started(self.count, blocks)
        self.plugin.served(self.count, cached)
        self.plugin.finished(
            self.count, completed=True, blocks=blocks, prompt_blocks=len(blocks), **{"token_ids": list(prompt), **known}
        )
        self.prompts.append(list(prompt))
        counted = Counter(self.plugin.misses.tokens)
        counted.subtract(before)
        assert sum(counted.values()) == known.get("prompt_tokens", len(prompt))
        assert self.plugin.failures == 0
        return +counted


@pytest.mark.parametrize(
    ("size", "hits"),
    [(64, HitUnit(64)), (16, HitUnit(128)), (528, HitUnit(528)), (64, HitUnit(1152, parts=64)), (32, HitUnit(32, dropped=32))],
    ids=["one size", "several blocks", "not a power of two", "parts of blocks", "speculative decoding"],
)
def test_of_any_trace_the_repeated_tokens_that_no_whole_unit_holds_are_counted(size: int, hits: HitUnit) -> None:
    engine, rng = Engine(size, hits), random.Random(5)
    part = size if hits.tokens < LEAST_UNIT else min(size, max(LEAST_PART, hits.tokens // MOST_PARTS))
    chats = [text(rng, 40) for _ in range(5)]
    lost = 0
    for _ in range(150):
        number = rng.randrange(5)
        chat = chats[number]
        if len(chat) > 4_000:
            chats[number] = chat = chat[: rng.randrange(3_000)]  # diverges anywhere from what was sent
        chat += text(rng, rng.randrange(1, 700))
        common = min(engine.common(chat), len(chat) - 1)
        counted = engine.serve(chat)
        assert counted["evicted"] == 0
        missed = common - counted["cached"]
        assert missed - part < counted["part_block"] <= missed
        lost += missed
    assert lost > 3_000


def test_an_engine_that_hits_each_small_block_has_no_such_tokens() -> None:
    engine, rng = Engine(16, HitUnit(16)), random.Random(1)
    prompt = text(rng, 100)
    engine.serve(prompt)
    assert engine.serve([*prompt[:90], *text(rng, 30)]) == {"cached": 80, "new": 32, "short": 8}


@pytest.mark.parametrize(
    ("hits", "needed"),
    [
        (HitUnit(16), 16),
        (HitUnit(16, dropped=16), 32),
        (HitUnit(16, lookahead=1), 17),
        (HitUnit(1152, parts=64, lookahead=3), 67),
        (HitUnit(64, replayed=128), 192),
        (HitUnit(64, replayed=100), 128),
    ],
)
def test_a_hit_needs_what_is_dropped_replayed_or_covered_ahead_as_well(hits: HitUnit, needed: int) -> None:
    assert hits.needed == needed


@pytest.mark.parametrize(
    ("hits", "known", "prompt", "usable"),
    [
        (HitUnit(16), 64, 65, 64),
        (HitUnit(16), 64, 64, 48),
        (HitUnit(16, dropped=16), 64, 65, 48),
        (HitUnit(16, dropped=16), 64, 64, 32),
        (HitUnit(16, dropped=16, beyond=True), 64, 64, 48),
        (HitUnit(16, dropped=16), 16, 100, 0),
        (HitUnit(32, dropped=16), 48, 100, 32),
        (HitUnit(16, lookahead=1), 16, 20, 16),
        (HitUnit(16, replayed=32), 64, 100, 32),
        (HitUnit(16, replayed=32), 32, 100, 0),
        (HitUnit(16), 0, 0, 0),
    ],
)
def test_the_usable_part_of_known_tokens_is_hit(hits: HitUnit, known: int, prompt: int, usable: int) -> None:
    assert hits.usable(known, prompt) == usable


def test_of_blocks_that_look_ahead_only_those_with_another_token_behind_are_parts() -> None:
    rng = random.Random(1)
    parts, prompt = PartBlocks(16, 16, lookahead=1), text(rng, 40)
    parts.add(prompt, hashed(prompt, 16), 0, "tenant")
    other = [*prompt[:16], prompt[16] + 1]
    assert parts.find(other, (), 0, 0, "tenant") == 16
    assert parts.find(other, (), 0, 0, "another tenant") == 0
    assert parts.find(prompt, (), 0, 0, "tenant") == 0, "the tokens are the same, so something else differs"
    assert parts.find(prompt, (), 0, 16, "tenant") == 16, "the block is known"


def test_tokens_that_only_some_layers_have_were_not_evicted() -> None:
    engine, rng = Engine(16, HitUnit(16), capacity=200), random.Random(1)
    prompt = text(rng, 161)
    engine.serve(prompt)
    assert engine.serve(prompt, 32, some_layers=160) == {"cached": 32, "other_layers": 128, "short": 1}
    # The rest was evicted from all layers. A boundary before the hit, or behind the prompt, means nothing.
    assert engine.serve(prompt, 32, some_layers=96) == {"cached": 32, "other_layers": 64, "evicted": 64, "short": 1}
    assert engine.serve(prompt, 32, some_layers=16) == {"cached": 32, "evicted": 128, "short": 1}
    assert engine.serve(prompt, 0, some_layers=10**9) == {"other_layers": 160, "short": 1}
    misses = engine.plugin.misses
    assert misses.followed["all"] == 192 // 16
    assert sum(misses.unused.values()) == misses.tokens["evicted"] == 192


def test_only_evicted_prefill_is_a_sign_of_thrashing() -> None:
    engine, rng = Engine(16, HitUnit(16)), random.Random(1)
    prompt = text(rng, 1_601)
    engine.serve(prompt)
    for _ in range(3_000):
        engine.serve(prompt, 0, some_layers=1_600)
    assert engine.plugin.misses.repeated_prefill.share < 0.01


def test_a_request_that_may_not_read_the_cache_has_evicted_nothing() -> None:
    engine, rng = Engine(16, HitUnit(16)), random.Random(1)
    prompt = text(rng, 161)
    engine.serve(prompt)
    assert engine.serve([*prompt[:80], *text(rng, 33)], 0, reads_cache=False) == {"not_read": 80, "new": 32, "short": 1}


@pytest.mark.parametrize("hits", [HitUnit(16), HitUnit(128)])
def test_prompts_of_embeddings_are_counted_without_tokens(hits: HitUnit) -> None:
    engine, rng = Engine(16, hits), random.Random(1)
    first, other = text(rng, 400), text(rng, 400)
    assert engine.serve(first, 0, token_ids=(), prompt_tokens=400) == {"embeddings": 384, "short": 16}
    assert engine.serve(other, 0, token_ids=(), prompt_tokens=400) == {"embeddings": 384, "short": 16}
    assert engine.serve(first, 384, token_ids=(), prompt_tokens=400)["cached"] == 384


def test_parts_of_another_prefix_are_not_taken_for_the_same() -> None:
    rng = random.Random(1)
    parts, one, two, same = PartBlocks(64, 64), text(rng, 64), text(rng, 64), text(rng, 64)
    parts.add([*one, *same], hashed([*one, *same], 64), 0)
    assert parts.find([*one, *same], hashed(one, 64), 64) == 64
    assert parts.find([*two, *same], hashed(two, 64), 64) == 0
    assert parts.find([*one, *same[:40], *two], hashed(one, 64), 64) == 32


@pytest.mark.parametrize("tokens", [(), (1, 2, 3), tuple(range(200))])
def test_prompts_that_do_not_fit_their_blocks_do_no_harm(tokens: tuple[int, ...]) -> None:
    parts, rng = PartBlocks(64, 16), random.Random(1)
    blocks = hashed(text(rng, 640), 16)
    parts.add(tokens, blocks, 0)
    parts.add(tokens, blocks[:2], 640)
    assert parts.find(tokens, blocks, 640) == 0
    assert parts.find(tokens, (), 0) <= len(tokens)
