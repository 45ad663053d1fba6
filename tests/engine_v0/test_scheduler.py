"""V0's real scheduler and block manager with our evictor: equal to stock under LRU, more hits by value."""

import random
from typing import Any

import pytest
from vllm.sequence import SequenceStatus

from eviction_client.grouping import GROUPS
from eviction_client.reuse import first_class
from eviction_client.value_queue import DONE, GOES_ON, RETAINED
from lpc.model.curve import KNOTS
from tests.engine_v0.bare import BLOCK, Engine, Turn

pytestmark = pytest.mark.supports(
    engine="vLLM V0",
    tier="GPU pool",
    what="its scheduler and block manager without a model: evictions as stock, order by value",
)


def conversations(seed: int = 1, count: int = 60, spread_s: float = 40.0) -> list[list[Turn]]:
    rng = random.Random(seed)
    system = [rng.randrange(1000) for _ in range(2 * BLOCK)]
    found = []
    for _ in range(count):
        turns = []
        for number in range(1 if rng.random() < 0.5 else rng.randint(2, 6)):
            text = [rng.randrange(1000) for _ in range(rng.randint(8, 160))]
            think = rng.uniform(0, spread_s) if number == 0 else rng.expovariate(1 / 10)
            turns.append(Turn(text if number else system + text, rng.randint(1, 40), think))
        found.append(turns)
    return found


def oracle(talks: list[list[Turn]]) -> Any:
    """Return group 1 if the conversation continues, 2 if it is over."""
    return lambda name: 1 if int(name.split("/")[1]) + 1 < len(talks[int(name.split("/")[0])]) else 2


@pytest.mark.parametrize("blocks", [90, 160])
@pytest.mark.parametrize("group", [None, 1], ids=["no sidecar", "answers"])
def test_until_the_guard_enables_the_value_all_is_as_in_stock(blocks: int, group: int | None) -> None:
    talks = conversations()
    stock = Engine(blocks, learned=False).run(talks)
    ours = Engine(blocks, tell=lambda _: group, guard=True, keep_waiting=False)
    assert ours.hooks is not None
    ours.hooks.plugin.ghosts.guard.observe = lambda *_: False  # type: ignore[method-assign]
    assert ours.run(talks) == stock
    assert len(stock.evicted) > 500
    assert ours.hooks.plugin.tables is not None and ours.hooks.plugin.failures == 0


def test_two_groups_that_predict_perfectly_hit_more_than_stock_with_the_same_tokens() -> None:
    talks = conversations(count=400, spread_s=800.0)
    stock = Engine(120, learned=False).run(talks)
    engine = Engine(120, tell=oracle(talks))
    ours = engine.run(talks)
    assert ours.outputs == stock.outputs
    assert ours.cached > 1.1 * stock.cached
    assert engine.hooks is not None and engine.hooks.plugin.failures == 0


def finish(engine: Engine, name: str, prompt: list[int], arguments: dict[str, Any] | None = None) -> None:
    engine.send(name, prompt, 1, arguments)
    assert [group.request_id for group in engine.step()] == [name]


def classes_of(engine: Engine) -> dict[int, int]:
    """Return the reuse class of each free block with content, by its depth in tokens and content."""
    assert engine.hooks is not None and engine.hooks.evictor is not None
    queue, found, number = engine.hooks.evictor.queue, {}, 0
    for block in queue:
        run = queue._run_of.get(block.block_id)
        number = number if run is None else run[3]
        found[block.block_id] = number
    return found


def order(engine: Engine) -> list[int]:
    assert engine.hooks is not None and engine.hooks.evictor is not None
    engine.hooks.step()
    return [block.block_id for block in engine.hooks.evictor.queue.eviction_order()]


def test_the_blocks_of_a_finished_request_get_the_classes_of_its_stretches() -> None:
    engine = Engine(40, tell=lambda _: 3)
    finish(engine, "a", list(range(3 * BLOCK)))
    new = first_class(GROUPS - 1 + 3, 0)
    assert list(classes_of(engine).values()) == [new] * 3
    engine.now += 100.0
    finish(engine, "b", list(range(3 * BLOCK)) + [7] * 2 * BLOCK)
    assert sorted(classes_of(engine).values()) == [new] * 2 + [new + 3] * 3, "three blocks are used again after 100 s"
    assert engine.hooks is not None and engine.hooks.plugin.reuses == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({"lpc_retain_seconds": 60}, RETAINED), ({"lpc_done": True}, DONE), ({"x": 1}, 0)],
)
@pytest.mark.parametrize("hints", [True, False])
def test_a_hint_moves_blocks_only_if_the_operator_enables_hints(arguments: dict[str, Any], expected: int, hints: bool) -> None:
    engine = Engine(40, hints_share=0.1 if hints else 0.0, guard=True)
    finish(engine, "a", list(range(BLOCK)), arguments)
    assert list(classes_of(engine).values()) == [expected if hints else 0]
    engine.now += 60.0
    engine.scheduler.schedule()
    assert list(classes_of(engine).values()) == [DONE if hints and expected == DONE else 0]


def test_a_finished_branch_does_not_evict_the_trunk_of_others() -> None:
    engine = Engine(40, hints_share=0.1)
    trunk = list(range(2 * BLOCK))
    finish(engine, "other", trunk + list(range(100, 100 + BLOCK)))
    finish(engine, "branch", trunk + list(range(200, 200 + BLOCK)), {"lpc_done": True})
    assert list(classes_of(engine).values()).count(DONE) == 1


def test_by_value_a_preempted_requests_blocks_go_last_and_sink_if_it_does_not_resume() -> None:
    engine = Engine(40)
    finish(engine, "a", list(range(2 * BLOCK)))
    group = engine.send("b", list(range(900, 900 + 2 * BLOCK)), 9)
    engine.step()
    (sequence,) = group.get_seqs()
    sequence.status = SequenceStatus.WAITING
    engine.scheduler.free_seq(sequence)
    assert engine.hooks is not None
    engine.hooks.plugin.tables = [[0.1 / (1.0 + age) for age in KNOTS]] * engine.hooks.plugin.classes
    preempted = order(engine)[-2:]
    assert {classes_of(engine)[block] for block in preempted} == {GOES_ON}
    engine.now += 3600.0
    finish(engine, "c", list(range(300, 300 + 2 * BLOCK)))
    later = order(engine)[-2:]
    assert later != preempted and {classes_of(engine)[block] for block in later} == {0}


def test_a_failing_predictor_affects_neither_requests_nor_order(caplog: pytest.LogCaptureFixture) -> None:
    talks = conversations(count=20)
    stock = Engine(90, learned=False).run(talks)
    ours = Engine(90, guard=True, keep_waiting=False)

    def fails(*_: object, **__: object) -> Any:
        raise RuntimeError("secret")

    assert ours.hooks is not None
    ours.predictor.ask = ours.predictor.take = fails  # type: ignore[method-assign]
    assert ours.run(talks) == stock
    assert ours.hooks.plugin.failures > 20
    assert caplog.text.count("RuntimeError") == 2, "one report for each place"
    assert "secret" not in caplog.text


def test_a_dry_run_keeps_the_stock_evictor_and_reports() -> None:
    talks = conversations()
    ours = Engine(90, tell=oracle(talks), shadow=True)
    assert ours.run(talks) == Engine(90, learned=False).run(talks)
    assert ours.hooks is not None and ours.hooks.evictor is None
    assert ours.hooks.plugin.ghosts.asked > 0 and ours.hooks.plugin.reuses > 0
