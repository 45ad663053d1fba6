"""Cached prefixes of waiting requests are kept, in V0's real scheduler."""

from typing import Any

import pytest
from vllm.core.block.prefix_caching_block import PrefixCachingBlockAllocator

from eviction_client.engines.vllm_v0 import names
from tests.engine_v0.bare import BLOCK, Engine
from tests.engine_v0.test_scheduler import conversations

pytestmark = pytest.mark.supports(
    engine="vLLM V0", tier="GPU pool", what="what waiting requests will hit goes last, in its scheduler without a model"
)


def tokens_of(name: int, blocks: int) -> list[int]:
    return [6 + (7 * name + place) % 250 for place in range(blocks * BLOCK + 1)]


def until_idle(engine: Engine) -> None:
    while engine.scheduler.has_unfinished_seqs():
        engine.step()


def engine_of(**options: Any) -> Engine:
    """Return an engine of thirty blocks and one request at a time. Two prompts of ten blocks are cached, 1 before 2."""
    engine = Engine(30, **{"guard": True, **options})
    engine.scheduler.scheduler_config.max_num_seqs = 1
    for name in (1, 2):
        engine.send(f"{name}", tokens_of(name, 10), 1)
        until_idle(engine)
        engine.now += 10.0
    return engine


def cached_behind_a_cold_one(engine: Engine) -> int:
    """Send a cold request of fifteen blocks and then prompt 1 again; return the cached tokens of prompt 1."""
    before = engine.outcome.cached
    engine.send("cold", tokens_of(3, 15), 20)
    engine.send("again", tokens_of(1, 10), 1)
    engine.send("last", tokens_of(4, 1), 1)
    until_idle(engine)
    return engine.outcome.cached - before


def test_a_cold_request_does_not_evict_the_prefix_of_the_warm_one_behind_it() -> None:
    assert cached_behind_a_cold_one(engine_of(learned=False)) < 10 * BLOCK
    assert cached_behind_a_cold_one(engine_of(keep_waiting=False)) < 10 * BLOCK
    engine = engine_of()
    assert cached_behind_a_cold_one(engine) == 10 * BLOCK
    assert engine.hooks is not None and engine.hooks.evictor is not None
    waited = engine.hooks.keep.waited
    assert waited.requests == {"warm": 1, "cold": 2, "evicted": 0, "behind_cold": 1} and not waited.lost_tokens
    assert engine.hooks.plugin.failures == 0 and not engine.hooks.evictor.queue.keeps


def test_the_prefix_of_an_aborted_request_is_released() -> None:
    engine = engine_of()
    engine.send("cold", tokens_of(3, 15), 20)
    engine.send("again", tokens_of(1, 10), 1)
    engine.step()
    assert engine.hooks is not None and engine.hooks.evictor is not None
    assert engine.hooks.evictor.queue.keeps
    engine.scheduler.abort_seq_group("again")
    assert not engine.hooks.evictor.queue.keeps and not engine.hooks.evictor.queue.waiting
    until_idle(engine)
    assert not engine.hooks.keep.waiting and engine.hooks.plugin.failures == 0


def test_outputs_equal_stocks_and_waiting_requests_hit_more() -> None:
    talks = conversations(count=80, spread_s=20.0)

    def run(**options: Any) -> Any:
        engine = Engine(120, **{"guard": True, **options})
        engine.scheduler.scheduler_config.max_num_seqs = 2
        came: list[str] = []
        served: dict[str, None] = {}
        add, schedule = engine.scheduler.add_seq_group, engine.scheduler.schedule

        def logged_add(group: Any) -> None:
            came.append(group.request_id)
            add(group)

        def logged_schedule() -> Any:
            scheduled = schedule()
            served.update(dict.fromkeys(each.seq_group.request_id for each in scheduled[1].scheduled_seq_groups))
            return scheduled

        engine.scheduler.add_seq_group, engine.scheduler.schedule = logged_add, logged_schedule
        outcome = engine.run(talks)
        assert list(served) == came, "first come, first served"
        assert engine.hooks is None or (engine.hooks.plugin.failures == 0 and not engine.hooks.keep.waiting)
        return outcome

    stock, kept, off = run(learned=False), run(), run(keep_waiting=False)
    assert kept.outputs == stock.outputs == off.outputs
    assert kept.cached > 1.05 * off.cached


@pytest.mark.parametrize("extra", [None, 17])
def test_hashes_are_the_allocators_own(extra: int | None) -> None:
    allocator = PrefixCachingBlockAllocator(num_blocks=8, block_size=4)
    if extra is not None and not names._TAKES_EXTRA:
        pytest.skip("in this release nothing but tokens makes a hash")
    options = {} if extra is None else {"extra_hash": extra}
    tokens = [5, 6, 7, 8, 1, 2, 3, 4, 9, 9, 9, 9, 7]
    block: Any = None
    expected = []
    for start in (0, 4, 8):
        block = allocator.allocate_immutable_block(prev_block=block, token_ids=tokens[start : start + 4], **options)
        expected.append(block.content_hash)
    assert list(names.content_hashes(tokens, 4, extra)) == expected
    assert names.alike(PrefixCachingBlockAllocator(num_blocks=8, block_size=4))


def test_an_allocator_with_other_hashes_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_hash", lambda *_, **__: 1)
    assert not names.alike(PrefixCachingBlockAllocator(num_blocks=8, block_size=4))
