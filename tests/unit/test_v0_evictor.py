"""The evictor for vLLM's V0 engine against a sorted list; the allocator itself is in tests/engine_v0."""

import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eviction_client.credit import Lifetime
from eviction_client.credit_queue import BUCKETS
from eviction_client.engines.vllm_v0 import register
from eviction_client.engines.vllm_v0.evictor import STALE, FreeBlock, LearnedEvictor, Worth

NOW = 1.8e9


def evictor(blocks: int = 100, **options: bool) -> LearnedEvictor:
    return LearnedEvictor(lifetime=Lifetime(blocks), clock=lambda: NOW, **options)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_it_evicts_the_least_key_then_the_most_tokens_whatever_happened_and_whichever_rule_is_in_force(
    seed: int, ties_by_id: bool
) -> None:
    rng = random.Random(seed)
    ours = evictor(ties_by_id=ties_by_id)
    model: dict[int, FreeBlock] = {}
    for number in range(200):
        kind = rng.choice(["add", "add", "add", "evict", "remove", "update", "lay", "raise", "rule"])
        if kind == "add":
            block = rng.randrange(60)
            if block in ours:
                continue
            ours.worth = Worth.of(rng.choice([0.0, 5.0]), rng.choice([0.0, -50.0, 50.0, rng.uniform(-99, 99)]))
            ours.add(block, number, rng.randrange(4), NOW - rng.randrange(5))
            (model[block],) = ours.added_since(ours.stamp - 1)
        elif kind == "rule":
            ours.trusting = not ours.trusting
        elif not model:
            continue
        elif kind == "evict":
            order = sorted(
                model.values(),
                key=lambda b: (
                    b.key if ours.trusting else b.t_last,
                    -b.num_hashed_tokens,
                    b.block_id if ties_by_id else b.stamp,
                ),
            )
            assert ours.next_blocks(7) == order[:7]
            assert ours.evict() == (order[0].block_id, order[0].content_hash)
            del model[order[0].block_id]
        else:
            block = rng.choice(sorted(model))
            if kind == "remove":
                ours.remove(block)
                del model[block]
            elif kind == "update":
                ours.update(block, NOW - rng.randrange(5))
                (model[block],) = ours.added_since(ours.stamp - 1)
            elif kind == "lay":
                ours.lay([model[block]], rng.uniform(-99, 99))
            else:
                ours.raise_to(model[block], NOW + rng.uniform(-99, 99))
        assert ours.num_blocks == len(model) and all(block in ours for block in model)
        assert ours.num_runs <= 2 * (64 + STALE * 60 + 64)


def test_what_is_no_longer_free_is_not_touched_by_what_comes_late() -> None:
    ours = evictor()
    ours.add(1, 11, 16, NOW)
    (before,) = ours.added_since(0)
    ours.remove(1)
    ours.add(1, 11, 16, NOW + 1)
    ours.lay([before], 500.0)
    (now,) = ours.next_blocks(1)
    assert now.key == NOW + 1


def test_an_empty_evictor_and_a_block_that_is_not_free_say_so_in_v0s_words() -> None:
    with pytest.raises(ValueError, match="No usable cache memory left"):
        evictor().evict()
    with pytest.raises(ValueError, match="not in the evictor"):
        evictor().remove(3)


def test_evictions_teach_the_lifetime_and_blocks_never_accessed_do_not() -> None:
    ours = evictor(blocks=1)
    ours.add(1, 11, 16, NOW - 100)
    ours.add(2, 12, 16, -1)
    assert ours.evict() == (2, 12)
    assert sum(ours.evictions) == 0
    ours.evict()
    assert ours.lifetime.seconds == 100
    assert ours.evictions[BUCKETS.index(-60.0)] == 1


def test_the_entry_point_loads_nothing_where_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LPC_VLLM_V0", raising=False)
    monkeypatch.setitem(sys.modules, "vllm", None)
    register()


def test_the_entry_point_raises_nothing_where_there_is_no_vllm(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LPC_VLLM_V0", "true")
    monkeypatch.setitem(sys.modules, "vllm", None)
    register()
    assert len(caplog.records) == 1 and "not switched on" in caplog.text
