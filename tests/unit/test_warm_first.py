"""Warm first: which waiting request is served next, and how far the others may be overtaken."""

import ast
import itertools
import random
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eviction_client.schedule.warm_first import ESTIMATES, GATE, MOST_OVERTAKING, OVERTAKE_S, REPEATED, WARM, WarmFirst
from tests.reachable import lengths

R = TypeVar("R", bound=Hashable)
CAPACITY = 100_000
PLENTY = CAPACITY
BOUND = CAPACITY // 4


def thrashing(
    missing: Callable[[R], int],
    room: Callable[[], int] = lambda: PLENTY,
    repeated: Callable[[], float] = lambda: 1.0,
    *,
    overtake_s: float = OVERTAKE_S,
) -> WarmFirst[R]:
    """Return an order of an engine whose default bound is BOUND."""
    return WarmFirst(missing, CAPACITY, room=room, speed=lambda: BOUND / OVERTAKE_S, repeated=repeated, overtake_s=overtake_s)


def order_of(
    missing: dict[str, int],
    tokens: dict[str, int] | int = 20_000,
    room: int = PLENTY,
    repeated: float = 1.0,
    overtake_s: float = OVERTAKE_S,
) -> WarmFirst[str]:
    """Return an order in which these wait, in the order of the dictionary."""
    order = thrashing(missing.__getitem__, lambda: room, lambda: repeated, overtake_s=overtake_s)
    for name in missing:
        order.add(name, tokens if isinstance(tokens, int) else tokens[name])
    return order


def first(order: WarmFirst[R]) -> R:
    """Begin a step; return the request to serve next, the oldest in the engine's own order."""
    order.step()
    found = order.first()
    return order._oldest().request if found is None else found


def served(order: WarmFirst[R]) -> list[R]:
    """Serve all that wait."""
    requests = []
    while len(order):
        requests.append(first(order))
        order.remove(requests[-1])
        order.settle()
    return requests


def test_warm_ones_go_first_by_missing_prefill_and_cold_ones_in_order_of_arrival() -> None:
    missing = {"cold": 20_000, "colder": 15_000, "warm": 3_000, "warmest": 100, "cool": int(20_000 * WARM) + 1}
    assert served(order_of(missing)) == ["warmest", "warm", "cold", "colder", "cool"]
    assert served(order_of(missing, overtake_s=0.0)) == list(missing), "B = 0: first come, first served"


def test_below_the_gate_it_is_first_come_first_served() -> None:
    missing = {"first": int(GATE * CAPACITY) - 200, "second": 100, "third": 99}
    assert served(order_of(missing)) == ["first", "second", "third"]
    missing["third"] = 101
    assert first(order_of(missing)) == "second"


def test_without_much_repeated_prefill_it_is_first_come_first_served() -> None:
    missing = {"cold": 20_000, "colder": 20_000, "warm": 50}
    order = order_of(missing, repeated=REPEATED - 0.01)
    order.step()
    assert order.first() is None
    assert first(order_of(missing, repeated=REPEATED)) == "warm"


def test_nothing_is_estimated_again_while_little_prefill_is_repeated() -> None:
    calls: list[str] = []
    repeated = [0.0]

    def missing(name: str) -> int:
        calls.append(name)
        return 20_000

    order: WarmFirst[str] = thrashing(missing, repeated=lambda: repeated[0])
    for name in "abc":
        order.add(name, 20_000)
    calls.clear()
    assert first(order) == "a" and not calls
    repeated[0] = 1.0
    assert order.first() is None and not calls, "until the next step"
    assert first(order) == "a" and calls == ["a", "b", "c"]
    assert order.first() == "a" and len(calls) == 3, "once per step"


def test_a_bound_follows_the_engines_speed() -> None:
    speed = [1e5]
    order = WarmFirst(
        {"cold": 30_000, "warm": 2_000}.__getitem__, CAPACITY, room=lambda: PLENTY, speed=lambda: speed[0], repeated=lambda: 1.0
    )
    for name in ("cold", "warm"):
        order.add(name, 30_000)
    assert first(order) == "warm"
    speed[0] = 2_000 / OVERTAKE_S - 1
    assert first(order) == "cold"


def test_the_oldest_is_served_once_it_has_been_overtaken_by_the_bound() -> None:
    count = 20
    missing = {"cold": 20_000} | {f"warm {n}": 3_000 for n in range(count)}
    order = served(order_of(missing))
    assert order.index("cold") == BOUND // 3_000


def test_a_request_that_comes_after_an_overtaker_has_not_been_overtaken_by_it() -> None:
    order = order_of({"cold": 20_000, "warm": 5_000, "colder": 20_000})
    order.remove("warm")
    order.settle()
    assert order.overtaken == 5_000
    order.remove("cold")
    order.settle()
    assert order.overtaken == 0 and max(lengths(order).values()) == 1, "nothing is held of what no waiting request needs"
    assert first(order) == "colder"


def test_a_request_that_is_put_back_has_overtaken_nobody_and_keeps_its_place() -> None:
    order = order_of({"cold": 20_000, "warm": 5_000, "colder": 20_000})
    assert order.remove("warm") and order.overtaken == 5_000
    assert first(order) == "cold"
    assert not order.remove("cold")
    order.restore("warm")
    order.restore("cold")
    assert order.overtaken == 0
    order.settle()
    assert served(order) == ["warm", "cold", "colder"]
    with pytest.raises(KeyError):
        order.restore("warm")


def test_without_room_for_the_oldest_an_overtaker_costs_its_whole_prompt() -> None:
    """Else warm requests with long replies could take each free block for as long as they come."""
    missing = {"cold": 20_000} | {f"warm {n}": 50 for n in range(1000)}
    assert served(order_of(missing, room=19_000)).index("cold") == BOUND // 20_000
    assert served(order_of(missing)).index("cold") == MOST_OVERTAKING, "and each at least a seat"


def test_the_choice_is_estimated_again_before_it_is_returned() -> None:
    missing = dict.fromkeys("abcdefghijklmnopqrstuvwxyz", 9_000) | {"z": 0}
    order = order_of(missing)
    missing["z"] = 19_000
    assert first(order) == "a"


@pytest.mark.parametrize("waiting", [2, 10, 1000])
def test_steps_and_choices_make_a_bounded_number_of_estimates(waiting: int) -> None:
    calls = []

    def missing(number: int) -> int:
        calls.append(number)
        return 5_000 + len(calls) % 4_000  # whichever seems to be first misses more at a second look

    order = thrashing(missing)
    for number in range(waiting):
        order.add(number, 20_000)
    for _ in range(25):
        order.step()
        calls.clear()
        order.first()
        assert len(calls) <= 2 * ESTIMATES
        calls.clear()
        order.first()
        assert len(calls) <= ESTIMATES


def test_held_state_is_bounded_by_the_waiting_requests() -> None:
    order: WarmFirst[int] = thrashing(lambda _: 50)
    for number in range(100_000):
        order.add(number, 20_000)
        if len(order) > 30:
            order.remove(first(order))
            order.settle()
    held = lengths(order)
    assert len(held) > 5 and max(held.values()) <= 300


@pytest.mark.parametrize("nonsense", [-1, float("nan")])
def test_an_invalid_estimate_is_an_error_and_adds_nothing(nonsense: float) -> None:
    order: WarmFirst[str] = thrashing(lambda _: nonsense)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="not negative"):
        order.add("a", 10)
    assert not len(order)


@given(st.integers(2, 60), st.sampled_from([0.0, 0.01, 0.25, 1.0]), st.booleans(), st.floats(0.0, 4.0), st.integers(0, 1 << 32))
def test_no_request_is_overtaken_by_more_than_the_bound_for_any_cache(
    requests: int, overtake: float, much_room: bool, rate: float, seed: int
) -> None:
    """An adversary changes what each misses, and the room, at any time. ``rate``: of arrivals, for each that is served."""
    rng = random.Random(seed)
    tokens = [rng.choice((50, 5_000, 20_000)) for _ in range(requests)]
    missing = [rng.choice((0, rng.randrange(size), size)) for size in tokens]
    room, repeated = [PLENTY if much_room else 0], [1.0]
    order: WarmFirst[int] = thrashing(
        missing.__getitem__, lambda: room[0], lambda: repeated[0], overtake_s=4 * OVERTAKE_S * overtake
    )
    upcoming = list(range(requests))
    overtaken: dict[int, int] = {}
    overtakers: dict[int, int] = {}
    popped: list[int] = []

    while upcoming or overtaken:
        for _ in range(int(rng.uniform(0.0, 2 * rate)) or not overtaken):
            if upcoming:
                number = upcoming.pop(0)
                overtaken[number] = overtakers[number] = 0
                order.add(number, tokens[number])
        for number in overtaken:
            if rng.random() < 0.2:
                missing[number] = rng.choice((0, rng.randrange(tokens[number]), tokens[number]))
        room[0], repeated[0] = rng.choice((0, PLENTY)), rng.choice((1.0, 0.0, REPEATED))
        if rng.random() < 0.5:
            order.step()
        found = order.first()
        number = order._oldest().request if found is None else found
        order.remove(number)
        if rng.random() < 0.2:
            order.restore(number)
            continue
        popped.append(number)
        del overtaken[number]
        for older in overtaken:
            if older < number:
                overtaken[older] += missing[number]
                overtakers[older] += 1
                assert overtaken[older] <= overtake * CAPACITY
                assert overtakers[older] <= MOST_OVERTAKING
        if rng.random() < 0.5:
            order.settle()
    order.settle()
    assert sorted(popped) == list(range(requests)) and not len(order) and not order._ahead
    if not overtake:
        assert popped == sorted(popped)


def test_the_bound_holds_against_an_endless_stream_of_warm_requests() -> None:
    """The oldest, and each one behind it, waits for no more than B of others' prefill, however many come."""
    order: WarmFirst[int] = thrashing(lambda number: 20_000 if number < 10 else 700)
    numbers = itertools.count()
    for _ in range(10):
        order.add(next(numbers), 20_000)
    begun: list[int] = []
    while len(begun) < 400:
        order.add(next(numbers), 20_000)
        begun.append(first(order))
        order.remove(begun[-1])
        order.settle()
    last_cold = begun.index(9)
    assert [number for number in begun if number < 10] == list(range(10))
    assert last_cold < 10 + BOUND / 700, "together they are overtaken by no more than one alone"


@pytest.mark.parametrize("module", ["warm_first", "prefill"])
def test_the_patch_for_vllm_has_these_modules(module: str) -> None:
    root = Path(__file__).resolve().parents[2]
    patch = (root / "docs/contributing/vllm-0.33-warm-first.patch").read_text()
    (part,) = (part for part in patch.split("\ndiff --git ") if f"+++ b/vllm/v1/core/sched/{module}.py\n" in part)
    theirs = "\n".join(line[1:] for line in part.split("+++ ")[1].splitlines()[1:] if line.startswith("+"))
    ours = (root / f"eviction_client/schedule/{module}.py").read_text()
    assert ast.dump(ast.parse(theirs)) == ast.dump(ast.parse(ours))
