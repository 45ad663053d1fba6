"""V0's real scheduler and block manager with our evictor: without credit all is as in stock, with it the order follows it."""

import random
from typing import Any

import pytest
from vllm.sequence import SequenceStatus

from lpc.model.returns import MAX_CREDIT_S
from tests.engine_v0.bare import BLOCK, STEP_S, Engine, Turn, told

pytestmark = pytest.mark.supports(
    engine="vLLM V0",
    tier="GPU pool",
    what="its scheduler and block manager without a model: evictions as stock, order by credit",
)


def conversations(seed: int = 1, count: int = 60) -> list[list[Turn]]:
    rng = random.Random(seed)
    system = [rng.randrange(1000) for _ in range(2 * BLOCK)]
    found = []
    for _ in range(count):
        turns = []
        for number in range(1 if rng.random() < 0.5 else rng.randint(2, 6)):
            text = [rng.randrange(1000) for _ in range(rng.randint(8, 160))]
            think = rng.uniform(0, 40) if number == 0 else rng.expovariate(1 / 10)
            turns.append(Turn(text if number else system + text, rng.randint(1, 40), think))
        found.append(turns)
    return found


def oracle(talks: list[list[Turn]]) -> Any:
    return lambda name: 0.0 if int(name.split("/")[1]) + 1 < len(talks[int(name.split("/")[0])]) else -3600.0


@pytest.mark.parametrize("blocks", [90, 160])
@pytest.mark.parametrize("credit", [None, 0.0, 77.7], ids=["none", "zero", "constant"])
def test_with_equal_credit_all_is_as_in_stock(blocks: int, credit: float | None) -> None:
    talks = conversations()
    stock = Engine(blocks, learned=False).run(talks)
    ours = Engine(blocks, tell=lambda _: credit).run(talks)
    assert ours == stock
    assert len(stock.evicted) > 500


def test_while_nothing_is_trusted_the_order_is_stocks_whatever_is_predicted() -> None:
    talks = conversations()
    rng = random.Random(3)
    ours = Engine(90, tell=lambda _: rng.uniform(-900, 900), guard=True)
    assert ours.run(talks) == Engine(90, learned=False).run(talks)
    assert ours.hooks is not None and ours.hooks.scorer.scored["prediction"] > 100


def test_an_oracle_hits_more_than_stock_with_the_same_tokens() -> None:
    talks = conversations()
    stock = Engine(120, learned=False).run(talks)
    ours = Engine(120, tell=oracle(talks)).run(talks)
    assert ours.outputs == stock.outputs
    assert ours.cached > 1.1 * stock.cached


def finish(engine: Engine, name: str, prompt: list[int], arguments: dict[str, Any] | None = None) -> None:
    engine.send(name, prompt, 1, arguments)
    assert [group.request_id for group in engine.step()] == [name]


def keys(engine: Engine) -> list[float]:
    """Keys of the free blocks, less the time, in eviction order."""
    assert engine.hooks is not None and engine.hooks.queue is not None
    engine.hooks.step()
    return [round(block.key - engine.now) for block in engine.hooks.queue.next_blocks(99)]


def test_a_finished_requests_blocks_get_its_credit_tail_first() -> None:
    engine = Engine(40, tell={"a": -50.0, "b": 100.0}.get)
    finish(engine, "b", list(range(3 * BLOCK)))
    finish(engine, "a", list(range(500, 500 + 2 * BLOCK)))
    assert keys(engine) == [-50, -50, 100, 100, 100]
    assert engine.hooks is not None and engine.hooks.queue is not None
    tokens = [block.num_hashed_tokens for block in engine.hooks.queue.next_blocks(99)]
    assert tokens == [2 * BLOCK, BLOCK, 3 * BLOCK, 2 * BLOCK, BLOCK]


@pytest.mark.parametrize(
    ("arguments", "difference"),
    [
        ({"lpc_retain_seconds": 60}, 60.0),
        ({"lpc_done": True}, -2 * MAX_CREDIT_S),
        ({"x": 1}, 0.0),
    ],
)
def test_a_hint_moves_the_key(arguments: dict[str, Any], difference: float) -> None:
    engine = Engine(40, hints=True)
    finish(engine, "a", list(range(BLOCK)), arguments)
    (key, *_) = keys(engine)
    assert key == pytest.approx(difference, abs=1)


def test_hints_retain_no_more_blocks_than_their_share() -> None:
    engine = Engine(40, hints=True)
    for name in range(4):
        start = 100 * name
        finish(engine, str(name), list(range(start, start + 2 * BLOCK)), {"lpc_retain_seconds": 600})
    assert engine.hooks is not None
    assert sum(key > 300 for key in keys(engine)) <= engine.hooks.scorer.retained.held <= 4


def test_a_finished_branch_does_not_evict_the_trunk_of_others() -> None:
    engine = Engine(40, hints=True)
    trunk = list(range(2 * BLOCK))
    finish(engine, "other", trunk + list(range(100, 100 + BLOCK)))
    finish(engine, "branch", trunk + list(range(200, 200 + BLOCK)), {"lpc_done": True})
    assert sum(key < -MAX_CREDIT_S for key in keys(engine)) == 1


def test_an_aborted_request_gets_no_credit() -> None:
    engine = Engine(40, tell=lambda _: 500.0)
    engine.send("a", list(range(2 * BLOCK)), 5)
    engine.step()
    engine.scheduler.abort_seq_group("a")
    assert max(keys(engine)) == 0
    assert engine.hooks is not None and engine.hooks.scorer.scored["aborted"] == 1


def test_a_preempted_requests_blocks_go_last() -> None:
    engine = Engine(40, tell=lambda _: 30.0)
    finish(engine, "a", list(range(2 * BLOCK)))
    group = engine.send("b", list(range(900, 900 + 2 * BLOCK)), 9)
    engine.step()
    (sequence,) = group.get_seqs()
    sequence.status = SequenceStatus.WAITING
    engine.scheduler.free_seq(sequence)
    assert keys(engine)[:2] == [30, 30]
    assert max(keys(engine)) <= 30


def test_a_late_answer_is_laid_on_what_is_still_free_of_its_request() -> None:
    engine = Engine(40)
    finish(engine, "a", list(range(3 * BLOCK)))
    finish(engine, "b", list(range(BLOCK)) + [7] * BLOCK)  # uses a's first block again
    engine.predictor.answers.append(("a", told(200.0)))
    assert sorted(keys(engine)) == [0, 0, 200, 200]


def test_a_prefix_shared_with_a_conversation_that_goes_on_is_raised_again() -> None:
    engine = Engine(40, tell={"a": 300.0, "b": -300.0}.get, pooling="shared")
    shared = list(range(2 * BLOCK))
    finish(engine, "a", shared + [1] * BLOCK)
    finish(engine, "b", shared + [2] * BLOCK)
    for _ in range(3):  # the store's answer is taken up at a later free
        engine.now += 1
        assert engine.hooks is not None
        engine.hooks.scorer._asked_at = -1e9
        engine.hooks.look_ahead()
    assert [key > 200 for key in keys(engine)] == [False, True, True, True]
    assert engine.hooks.raised == 2


def test_a_cache_that_is_reset_gets_our_evictor_again() -> None:
    engine = Engine(40)
    if not hasattr(engine.allocator, "reset_prefix_cache"):
        pytest.skip("came with vLLM 0.7")
    finish(engine, "a", list(range(3 * BLOCK)))
    assert engine.allocator.reset_prefix_cache()
    assert engine.hooks is not None and engine.allocator.evictor is engine.hooks.queue
    finish(engine, "b", list(range(3 * BLOCK)))
    assert len(keys(engine)) == 3


def test_a_failing_predictor_and_store_cost_neither_request_nor_order(caplog: pytest.LogCaptureFixture) -> None:
    talks = conversations(count=20)
    stock = Engine(90, learned=False).run(talks)
    ours = Engine(90)

    def fails(*_: object, **__: object) -> Any:
        raise RuntimeError("secret")

    assert ours.hooks is not None
    ours.predictor.ask = ours.predictor.take = ours.predictor.late_answers = fails  # type: ignore[method-assign]
    assert ours.run(talks) == stock
    assert ours.hooks.scorer.failures > 20
    assert caplog.text.count("RuntimeError") == 3, "one report for each place"
    assert "secret" not in caplog.text


def test_shadow_mode_leaves_the_stock_evictor_and_reports() -> None:
    talks = conversations()
    ours = Engine(90, tell=oracle(talks), shadow=True)
    assert ours.run(talks) == Engine(90, learned=False).run(talks)
    assert ours.hooks is not None and ours.hooks.queue is None
    assert ours.hooks.scorer.shadow_counters.asked > 0


def test_the_cache_learns_how_long_blocks_live() -> None:
    engine = Engine(60)
    engine.run(conversations())
    assert engine.hooks is not None and engine.hooks.queue is not None
    assert STEP_S < engine.hooks.scorer.lifetime.seconds < 60
    assert sum(engine.hooks.queue.evictions) > 500
