"""Warm first in vLLM's real scheduler, synchronous and asynchronous."""

import itertools
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.request_queue import FCFSRequestQueue, PriorityRequestQueue
from vllm.v1.request import RequestStatus

from eviction_client.engines.vllm import conformance
from eviction_client.engines.vllm.metrics import values_of
from eviction_client.engines.vllm.waiting import CachedPrompts, WarmFirstQueue
from eviction_client.errors import EngineUnsupported
from eviction_client.schedule import warm_first
from eviction_client.schedule.prefill import START_SPEED
from eviction_client.schedule.warm_first import MOST_OVERTAKING
from testing.bare_scheduler import BLOCK, Engine, Turn, conversations, vllm_config
from tests.nightly import LONG

pytestmark = pytest.mark.supports(
    engine="vLLM", tier="waiting queue", what="warm first in its scheduler without a model: outputs, preemptions, starvation"
)
left_alone = pytest.mark.refuses(
    engine="vLLM",
    tier="waiting queue",
    what="a queue or block pool that works otherwise, or scheduling by priority: its own order",
)


NOTHING = SimpleNamespace(scheduled_spec_decode_tokens={}, total_num_scheduled_tokens=0, num_scheduled_tokens={})


@pytest.fixture(autouse=True)
def all_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """Also with vLLM's log at ERROR, whose level the plug-in's loggers would take."""
    caplog.set_level("WARNING", "eviction_client")


@pytest.fixture(autouse=True)
def always_thrashing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "only_while_it_thrashes" not in request.node.name:
        monkeypatch.setattr(warm_first, "REPEATED", 0.0)
        monkeypatch.setattr(warm_first, "GATE", 0.1)


def engine_of(blocks: int, **settings: Any) -> Engine:
    return Engine(blocks, **{"schedule": "warm-first", "overtake_s": 60.0, **settings})


def queue_of(engine: Engine) -> WarmFirstQueue:
    queue = engine.scheduler.waiting
    assert type(queue) is WarmFirstQueue
    return queue


def busy(seed: int, count: int = 300) -> dict[str, list[Turn]]:
    """Return more conversations than are served at a time."""
    return conversations(seed, count, spread_s=30.0)


def started(engine: Engine, until: int, at_step: Callable[[], None] = lambda: None) -> list[str]:
    """Run the engine; return the first requests that start, in order."""
    names: list[str] = []
    schedule = engine.scheduler.schedule

    def noted(*args: Any, **kwargs: Any) -> Any:
        planned = schedule(*args, **kwargs)
        names.extend(request.req_id for request in planned.scheduled_new_reqs)
        return planned

    engine.scheduler.schedule = noted
    while len(names) < until:
        at_step()
        engine.step()
    engine.scheduler.schedule = schedule
    return names


def test_every_output_equals_stocks(asynchronous: bool, window: int | None) -> None:
    made = busy(1)
    blocks = 130 if window else 90
    stock = Engine(blocks, learned=False, asynchronous=asynchronous, window=window).run(made)
    engine = engine_of(blocks, asynchronous=asynchronous, window=window)
    ours = engine.run(made)
    assert ours.outputs == stock.outputs and len(ours.outputs) == sum(map(len, made.values()))
    assert queue_of(engine).overtaking > 20
    assert window or ours.preempted > 0
    assert queue_of(engine).warm_first and engine.scheduler.lpc.plugin.failures == 0
    assert queue_of(engine).tracked == 0


@pytest.mark.parametrize("interval", [2, 5])
def test_with_a_prefill_interval_outputs_equal_stocks_and_the_most_cached_goes_first(
    asynchronous: bool, interval: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since vLLM 0.33 the interval holds without data parallelism: in the steps between, the queue is not asked."""
    monkeypatch.setattr(vllm_config().scheduler_config, "prefill_schedule_interval", interval)
    made = busy(2)
    stock = Engine(90, learned=False, asynchronous=asynchronous).run(made)
    engine = engine_of(90, asynchronous=asynchronous)
    if hasattr(engine.scheduler, "local_prefill_interval"):
        assert engine.scheduler.local_prefill_interval == interval
    ours = engine.run(made)
    assert ours.outputs == stock.outputs and len(ours.outputs) == sum(map(len, made.values()))
    assert queue_of(engine).overtaking > 20
    assert queue_of(engine).warm_first and engine.scheduler.lpc.plugin.failures == 0
    assert queue_of(engine).tracked == 0


def test_the_bound_is_seconds_of_an_engine_that_holds_prompts_back(asynchronous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measured speed is that of all steps while requests wait and prompts are computed or held back."""
    interval = 5
    monkeypatch.setattr(vllm_config().scheduler_config, "prefill_schedule_interval", interval)
    engine = engine_of(400, asynchronous=asynchronous, max_seqs=4)
    if not hasattr(engine.scheduler, "local_prefill_interval"):
        pytest.skip("before vLLM 0.33 the interval holds with data parallelism only")
    queue = queue_of(engine)
    noted: list[tuple[int, float]] = []
    note = queue.speed.note
    queue.speed.note = lambda tokens, seconds: (noted.append((tokens, seconds)), note(tokens, seconds))  # type: ignore
    queue.speed._tokens, queue.speed._seconds = 0.0, 1e-9
    for number in range(60):
        engine.add(str(number), [number * 7 % 250 + 6] * (20 + 20 * (number % 7)), 9 + number % 5)
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    computing = [place for place, (tokens, _) in enumerate(noted) if tokens > 0]
    held = sum(min(b - a - 1, interval - 1) for a, b in itertools.pairwise(computing))
    assert held > len(computing), "most steps hold prompts back"
    expected = sum(tokens for tokens, _ in noted) / (noted[0][1] * (len(computing) + held))
    assert queue.speed.tokens_per_s == pytest.approx(expected, rel=0.3)


class Outputs:
    """Stands for vLLM 0.33's store of layers' outputs, which has lost all but the first blocks of a prompt."""

    def __init__(self, blocks: int) -> None:
        self.max_cache_hit = lambda request: min(blocks * BLOCK, request.num_tokens - 1)


def test_an_engine_whose_hits_also_depend_on_outputs_of_layers_stays_first_come_first_served() -> None:
    scheduler = Engine(50, learned=False).scheduler
    assert conformance.why_fcfs(scheduler) is None
    scheduler.aux_output_connector = SimpleNamespace()  # as before vLLM 0.33
    assert conformance.why_fcfs(scheduler) is None
    scheduler.aux_output_connector = Outputs(1)
    assert "outputs of layers" in (conformance.why_fcfs(scheduler) or "")


def warm_and_cold(engine: Engine, *, cold_tokens: int) -> None:
    """Let one request run and two wait: first a cold one, then a warm one."""
    engine.add("first", range(6, 6 + 10 * BLOCK), 2)
    while engine.scheduler.has_unfinished_requests() or engine.in_flight:
        engine.step()
    engine.add("running", range(50, 150), 30)
    engine.step()
    engine.add("cold", [7, *range(10, 9 + cold_tokens)], 2)
    engine.add("warm", [*range(6, 6 + 10 * BLOCK), 8, 9], 2)


@pytest.mark.parametrize(("learned", "expected"), [(True, ["warm", "cold"]), (False, ["cold", "warm"])], ids=["ours", "stock"])
def test_a_warm_request_starts_before_a_cold_one(
    learned: bool, expected: list[str], asynchronous: bool, window: int | None
) -> None:
    settings: dict[str, Any] = {"asynchronous": asynchronous, "window": window, "max_seqs": 1}
    engine = engine_of(100, **settings) if learned else Engine(100, learned=False, **settings)
    warm_and_cold(engine, cold_tokens=200)
    assert started(engine, 2) == expected
    if learned:
        assert values_of(engine.scheduler.lpc)["lpc_overtaking", ""] == 1


@pytest.mark.parametrize(("rounds", "expected"), [(1, ["cold", "warm"]), (4, ["warm", "cold"])])
def test_requests_overtake_only_while_it_thrashes(rounds: int, expected: list[str]) -> None:
    """Prompts of three times the cache are asked in turn. From the second round on, each repeats evicted work."""
    engine = engine_of(100, max_seqs=1, rule="lru")
    for number in range(rounds * 30):
        first = 200 + number % 30
        engine.add(f"{number}", [first, *range(300, 300 + 10 * BLOCK)], 2)
        while engine.scheduler.has_unfinished_requests() or engine.in_flight:
            engine.step()
    assert engine.scheduler.lpc.plugin.settle()
    repeated = values_of(engine.scheduler.lpc)["lpc_repeated_prefill", ""]
    assert (repeated >= warm_first.REPEATED) is (rounds > 1)
    warm_and_cold(engine, cold_tokens=800)
    assert started(engine, 2) == expected


def test_a_stream_of_short_warm_requests_starves_no_request(asynchronous: bool) -> None:
    """Each misses two tokens, and holds its seat for a reply."""
    blocks, bound = 200, 800
    engine = engine_of(blocks, asynchronous=asynchronous, max_seqs=1, overtake_s=bound / START_SPEED)
    warm_and_cold(engine, cold_tokens=800)
    numbers = itertools.count()

    def stream() -> None:  # a step serves less than one of them
        engine.add(f"warm {next(numbers)}", [*range(6, 6 + 10 * BLOCK), 8, 9], 2)

    before: list[str] = []
    while "cold" not in before:
        before += started(engine, 1, stream)
    overtook = before[: before.index("cold")]
    computed = 2 * len(overtook)
    assert 10 < len(overtook) <= MOST_OVERTAKING and computed <= bound
    assert queue_of(engine).overtaking == len(overtook)


def test_preempted_requests_are_resumed_before_all_others(asynchronous: bool) -> None:
    engine = engine_of(45, asynchronous=asynchronous)
    queue = queue_of(engine)
    pop = queue.pop_request
    resumed = 0

    def noted() -> Any:
        nonlocal resumed
        expected = next((each for each in queue if each.status == RequestStatus.PREEMPTED), None)
        request = pop()
        if expected is not None:
            assert request is expected
            resumed += 1
        return request

    queue.pop_request = noted  # type: ignore[method-assign]
    engine.run(busy(3))
    assert resumed > 5 and queue.warm_first


def test_a_request_with_a_compiling_grammar_does_not_block_others_and_is_served_later(asynchronous: bool) -> None:
    engine = engine_of(100, asynchronous=asynchronous, max_seqs=1)
    warm_and_cold(engine, cold_tokens=200)
    queue = queue_of(engine)
    warm = next(request for request in queue if request.request_id == "warm")
    warm.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    request_of_output = warm.structured_output_request
    warm.structured_output_request = SimpleNamespace(grammar=None)  # type: ignore[assignment]
    for _ in range(5):
        engine.step()
    assert started(engine, 1) == ["cold"]
    warm.status, warm.structured_output_request = RequestStatus.WAITING, request_of_output
    engine.add("later", range(30, 200), 2)
    assert started(engine, 2) == ["warm", "later"]
    assert queue.warm_first and engine.scheduler.lpc.plugin.failures == 0


class Queued:
    """The attributes of a request that the queue reads."""

    skip_reading_prefix_cache = False
    num_computed_tokens = 0

    num_tokens = 1
    block_hashes = ()

    def __init__(self, number: int) -> None:
        self.number = number


def course(queue: Any, seed: int) -> Iterator[tuple[str, object]]:
    """Run a random course, the same for all queues; yield each operation's name and the observable state after it."""
    rng = random.Random(seed)
    running: list[Any] = []
    numbers = iter(range(10**6))
    for _ in range(300):
        kind = rng.choice(["add", "add", "step", "step", "preempt", "remove", "remove some"])
        if kind == "add":
            queue.add_request(Queued(next(numbers)))
        elif kind == "preempt":
            while running and rng.random() < 0.7:
                queue.prepend_request(running.pop())
        elif kind == "step":
            skipped: list[Any] = []
            getattr(queue, "step_begins", lambda: None)()
            while queue and rng.random() < 0.7:
                request = queue.peek_request()
                if queue.peek_request() is not request or queue.pop_request() is not request:
                    yield "pop", None
                if rng.random() < 0.4:
                    skipped.insert(0, request)
                else:
                    running.append(request)
            if skipped:
                queue.prepend_requests(skipped)
            getattr(queue, "step_ends", lambda _: None)(NOTHING)
        elif queue:
            removed = rng.sample(list(queue), rng.randint(1, min(len(queue), 3)))
            if kind == "remove":
                queue.remove_request(removed[0])
            else:
                queue.remove_requests([*removed, Queued(-1)])
        head = queue.peek_request().number if queue else None
        yield kind, (head, len(queue), bool(queue), [each.number for each in queue], [each.number for each in running])


@pytest.mark.parametrize("seed", range(8 if LONG else 3))
def test_with_nothing_cached_the_order_is_vllms_after_every_operation(seed: int) -> None:
    nothing = CachedPrompts(lambda *_: None, 0, 1, 1, pool_blocks=10, free_blocks=lambda: 10)
    ours = WarmFirstQueue(nothing, _raise)
    for expected, found in zip(course(FCFSRequestQueue(), seed), course(ours, seed), strict=True):
        assert found == expected


def _raise(*_: object) -> Any:
    raise ArithmeticError("a failing part")


@pytest.mark.parametrize("part", ["cache", "room", "nonsense"])
def test_after_a_failure_the_order_is_first_come_first_served_and_no_request_is_lost(part: str, asynchronous: bool) -> None:
    made = busy(4)
    stock = Engine(90, learned=False, asynchronous=asynchronous).run(made)
    engine = engine_of(90, asynchronous=asynchronous)
    queue, prompts = queue_of(engine), queue_of(engine)._prompts
    failing = {"cache": prompts._find, "room": prompts._free_blocks, "nonsense": prompts.missing}[part]
    calls = itertools.count()

    def fails(*args: Any) -> Any:
        if next(calls) < (3 if part == "room" else 40):
            return failing(*args)
        return float("nan") if part == "nonsense" else _raise()

    holder, name = {"cache": (prompts, "_find"), "room": (prompts, "_free_blocks"), "nonsense": (prompts, "missing")}[part]
    setattr(holder, name, fails)
    ours = engine.run(made)
    assert ours.outputs == stock.outputs
    assert not queue.warm_first and engine.scheduler.lpc.plugin.failures == 1
    assert values_of(engine.scheduler.lpc)["lpc_warm_first", ""] == 0.0


@left_alone
def test_a_priority_queue_is_left_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(vllm_config().scheduler_config, "policy", "priority")
    engine = engine_of(50, on_unknown_engine="refuse")
    assert type(engine.scheduler.waiting) is PriorityRequestQueue
    assert "warm-first has no effect: vLLM's scheduling policy is priority" in caplog.text
    assert values_of(engine.scheduler.lpc)["lpc_warm_first", ""] == 0.0


def test_a_dry_run_changes_no_order(caplog: pytest.LogCaptureFixture) -> None:
    assert type(engine_of(50, shadow=True).scheduler.waiting) is FCFSRequestQueue
    assert "warm-first has no effect: a dry run" in caplog.text


def has_another_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FCFSRequestQueue, "pop_requests", FCFSRequestQueue.pop_request, raising=False)


def takes_another_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = FCFSRequestQueue.remove_requests

    def remove_requests(self: Any, requests: Any, aborted: bool = False) -> None:
        stock(self, requests)

    monkeypatch.setattr(FCFSRequestQueue, "remove_requests", remove_requests)


def looks_for_blocks_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = BlockPool.get_cached_block
    monkeypatch.setattr(BlockPool, "get_cached_block", lambda self, hash_, groups, touch=True: stock(self, hash_, groups))


DRIFTS = {
    has_another_method: "its waiting queue has `pop_requests`, which ours does not have",
    takes_another_argument: "its waiting queue's remove_requests(requests, aborted) takes other arguments",
    looks_for_blocks_another_way: "get_cached_block(block_hash, kv_cache_group_ids) is gone or takes other arguments",
}


@left_alone
@pytest.mark.parametrize("drift", DRIFTS, ids=lambda drift: drift.__name__)
def test_a_vllm_that_fails_the_check_stays_first_come_first_served(
    drift: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Engine(50, learned=False).scheduler
    assert conformance.why_fcfs(scheduler) is None
    drift(monkeypatch)
    reason = conformance.why_fcfs(scheduler)
    assert DRIFTS[drift] in (reason or "")
    assert type(engine_of(50).scheduler.waiting) is FCFSRequestQueue


@left_alone
@pytest.mark.parametrize("reason", ["attention", "queue"])
def test_the_default_of_schedule_never_refuses_to_start(
    reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = impossible(reason, monkeypatch, on_unknown_engine="refuse").scheduler
    assert type(scheduler.waiting) is FCFSRequestQueue
    assert values_of(scheduler.lpc)["lpc_warm_first", ""] == 0.0
    lines = [record for record in caplog.records if "cannot serve warm first" in record.getMessage()]
    assert [line.levelname for line in lines] == ["WARNING"]
    assert "Requests are served first come, first served" in lines[0].getMessage()


@left_alone
@pytest.mark.parametrize("reason", ["attention", "queue"])
def test_a_schedule_that_was_asked_for_refuses_to_start_without_it(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineUnsupported, match=r"cannot serve warm first .* Unset LPC_SCHEDULE, or unset"):
        impossible(reason, monkeypatch, on_unknown_engine="refuse", schedule="warm-first")


@left_alone
@pytest.mark.parametrize("reason", ["attention", "queue"])
def test_a_schedule_that_was_asked_for_and_is_impossible_is_an_error_in_the_log(
    reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert type(impossible(reason, monkeypatch, schedule="warm-first").scheduler.waiting) is FCFSRequestQueue
    lines = [record for record in caplog.records if "cannot serve warm first" in record.getMessage()]
    assert [line.levelname for line in lines] == ["ERROR"]


def impossible(reason: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Engine:
    """Return an engine that cannot serve warm first: its model has only sliding windows, or its queue another method."""
    if reason == "queue":
        has_another_method(monkeypatch)
        return Engine(50, **settings)
    return Engine(50, full_attention=False, window=64, **settings)
