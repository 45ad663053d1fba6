"""What preemptions cost in vLLM: tokens that are computed again, and what another victim had held."""

import pytest
from vllm.v1.request import RequestStatus

from eviction_client.background import AtOnce
from eviction_client.engines.vllm.metrics import values_of
from testing.bare_scheduler import BLOCK, Engine

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="preempted requests, in its scheduler")


def prompt(first: int, blocks: int) -> list[int]:
    return [first, *(7 + (first * 31 + place * 17) % 240 for place in range(blocks * BLOCK - 1))]


def counted(engine: Engine) -> dict[str, float]:
    values = values_of(engine.scheduler.lpc)
    found = {label: value for (name, label), value in values.items() if name == "lpc_preempted_tokens"}
    return found | {"requests": values["lpc_preempted_requests", ""]}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_tokens_that_are_computed_again_and_those_of_the_best_victim_are_counted(asynchronous: bool) -> None:
    engine = Engine(100, asynchronous=asynchronous, rule="lru", background=AtOnce)
    long, short = engine.add("long", prompt(1, 12), 200), engine.add("short", prompt(2, 3), 200)
    for _ in range(6):
        engine.step()
    held, least = long.num_computed_tokens, short.num_computed_tokens
    engine.preempt(long)
    assert counted(engine) == {"held": held, "least": least, "again": 0.0, "requests": 1.0}
    while long not in engine.scheduler.running:
        engine.step()
    again = counted(engine)["again"]
    assert 0 < again == held - held // BLOCK * BLOCK or again == held - (held - 1) // BLOCK * BLOCK, "its full blocks are hits"
    for _ in range(5):
        engine.step()
    assert counted(engine)["again"] == again, "once for each preemption"


def test_what_was_evicted_before_it_resumed_counts_whole() -> None:
    engine = Engine(40, rule="lru", background=AtOnce)
    long = engine.add("long", prompt(1, 12), 60)
    for _ in range(3):
        engine.step()
    held = long.num_computed_tokens
    engine.preempt(long)
    engine.scheduler.reset_prefix_cache()
    while long not in engine.scheduler.running:
        engine.step()
    assert counted(engine) == {"held": held, "least": held, "again": held, "requests": 1.0}


def test_a_preempted_request_that_ends_is_computed_no_more_and_is_forgotten() -> None:
    engine = Engine(100, rule="lru", background=AtOnce)
    one = engine.add("one", prompt(1, 12), 60)
    engine.step()
    engine.preempt(one)
    engine.scheduler.finish_requests("one", RequestStatus.FINISHED_ABORTED)
    assert counted(engine)["again"] == 0
    assert not engine.scheduler.lpc.preemptions.pending


def test_a_reset_by_the_operator_is_no_preemption() -> None:
    engine = Engine(100, rule="lru", background=AtOnce)
    requests = [engine.add(name, prompt(number, 6), 60) for number, name in enumerate(("one", "two"))]
    for _ in range(3):
        engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert [request.num_preemptions for request in requests] == [1, 1]
    while not all(request in engine.scheduler.running for request in requests):
        engine.step()
    assert counted(engine) == {"held": 0, "least": 0, "again": 0, "requests": 0}
    engine.preempt(requests[0])
    assert counted(engine)["requests"] == 1


def test_a_request_that_is_preempted_again_counts_again() -> None:
    engine = Engine(100, rule="lru", background=AtOnce)
    one = engine.add("one", prompt(1, 12), 200)
    held = 0
    for _ in range(2):
        while one not in engine.scheduler.running:
            engine.step()
        engine.step()
        held += one.num_computed_tokens
        engine.preempt(one)
    assert counted(engine)["requests"] == one.num_preemptions == 2
    assert counted(engine)["held"] == held


def test_a_dry_run_counts_them_too() -> None:
    engine = Engine(100, shadow=True, background=AtOnce)
    one = engine.add("one", prompt(1, 12), 60)
    engine.step()
    engine.preempt(one)
    assert counted(engine)["requests"] == 1
