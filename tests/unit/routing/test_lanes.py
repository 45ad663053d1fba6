"""In which order the held requests of several tenants and priorities are handed on, and how long each waits at most."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eviction_client.schedule.warm_first import WarmFirst
from lpc_apps.routing.lanes import OLDEST, Lanes
from lpc_apps.routing.router import Sending

CAPACITY, SPEED, OVERTAKE_S = 100_000, 1000.0, 3.0
BOUND = SPEED * OVERTAKE_S


@dataclasses.dataclass(eq=False)
class Request:
    """A request with a prompt of ``tokens``, ``missing`` of which the engine would compute."""

    tokens: int
    missing: int
    tenant: str = ""
    priority: int = 0

    @property
    def sending(self) -> Sending:
        return cast(Sending, self)


def order_of(repeated: float = 1.0) -> Callable[[], WarmFirst[Sending]]:
    return lambda: WarmFirst(
        lambda sending: cast(Request, sending).missing,
        CAPACITY,
        room=lambda: CAPACITY,
        speed=lambda: SPEED,
        repeated=lambda: repeated,
        overtake_s=OVERTAKE_S,
    )


def lanes_of(requests: Iterable[Request] = (), repeated: float = 1.0) -> Lanes:
    lanes = Lanes(order_of(repeated), lambda sending: cast(Request, sending).missing)
    for request in requests:
        lanes.add(request.sending, request.tenant, request.priority)
    return lanes


def taken(lanes: Lanes) -> list[Request]:
    return [cast(Request, lanes.take()) for _ in range(len(lanes))]


sizes = st.integers(1, 30).map(lambda kilo: kilo * 1000)


@st.composite
def prompts(draw: st.DrawFn) -> Request:
    tokens = draw(sizes)
    return Request(tokens, max(int(tokens * draw(st.sampled_from([0.02, 0.3, 1.0]))), 1))


@given(st.lists(st.one_of(prompts(), st.none()), max_size=60), st.booleans(), st.sampled_from([0.0, 1.0]))
def test_with_one_tenant_or_one_request_each_the_order_is_warm_first(
    steps: list[Request | None], one: bool, repeated: float
) -> None:
    """None: a request is handed on."""
    lanes, order = lanes_of(repeated=repeated), order_of(repeated)()
    plain: dict[Sending, None] = {}

    def check() -> None:
        order.step()
        expected = order.first() or next(iter(plain))
        order.remove(expected)
        order.settle()
        del plain[expected]
        assert lanes.take() is expected

    for number, step in enumerate(steps):
        if step is not None:
            lanes.add(step.sending, "" if one else str(number), 0)
            order.add(step.sending, step.tokens)
            plain[step.sending] = None
        elif plain:
            check()
    while plain:
        check()
    assert not len(lanes)


def test_a_thousand_cold_prompts_of_one_tenant_delay_another_one_by_one_prompt() -> None:
    flood = [Request(20_000, 20_000, "flood") for _ in range(1000)]
    ten = [Request(20_000, 400, "ten") for _ in range(10)]
    lanes = lanes_of(flood[:500])
    first = taken_some(lanes, 5)
    for request in (*flood[500:], *ten):
        lanes.add(request.sending, request.tenant, 0)
    order = taken(lanes)
    last = max(order.index(one) for one in ten)
    assert sum(one.tenant == "flood" for one in order[:last]) <= 1
    assert {one.tenant for one in first} == {"flood"}


def test_a_thousand_tenants_with_a_cold_prompt_each_are_served_in_order_of_arrival_but_for_the_bound() -> None:
    """Who invents tenants gains no more than without shares."""
    flood = [Request(20_000, 20_000, str(number)) for number in range(1000)]
    lanes = lanes_of([*flood[:990], Request(20_000, 20_000, "late"), *flood[990:]])
    order = taken(lanes)
    assert [one.tenant for one in order].index("late") == 990


def taken_some(lanes: Lanes, count: int) -> list[Request]:
    return [cast(Request, lanes.take()) for _ in range(count)]


@given(st.lists(st.tuples(st.sampled_from("abcd"), sizes), min_size=1, max_size=40))
def test_no_other_tenant_gets_much_more_than_a_request_and_those_before_it_of_its_tenant(asked: list[tuple[str, int]]) -> None:
    requests = [Request(tokens, tokens, tenant) for tenant, tokens in asked]
    longest = max(one.tokens for one in requests)
    order = taken(lanes_of(requests))
    for place, request in enumerate(order):
        before = order[:place]
        own = sum(one.tokens for one in before if one.tenant == request.tenant)
        for tenant in {*"abcd"} - {request.tenant}:
            assert sum(one.tokens for one in before if one.tenant == tenant) <= own + 2 * longest


@given(st.lists(st.tuples(st.sampled_from("ab"), sizes, st.booleans()), min_size=1, max_size=40), st.integers(1, 6))
def test_a_request_within_its_tenants_share_waits_for_one_request_of_each_other_tenant_and_the_bound(
    asked: list[tuple[str, int, bool]], before: int
) -> None:
    requests = [Request(tokens, tokens // 40 + 1 if warm else tokens, tenant) for tenant, tokens, warm in asked]
    lanes = lanes_of(requests)
    taken_some(lanes, min(before, len(lanes) - 1))
    late = Request(30_000, 30_000, "late")
    lanes.add(late.sending, late.tenant, 0)
    order = taken(lanes)
    ahead = order[: order.index(late)]
    for tenant in "ab":
        assert sum(one.missing for one in ahead if one.tenant == tenant) <= 30_000 + BOUND


def test_a_lower_priority_number_goes_first_among_the_requests_of_a_tenant() -> None:
    requests = [Request(100, 100, "a", priority) for priority in (3, 0, -5, 0)]
    assert [one.priority for one in taken(lanes_of(requests))] == [-5, 0, 0, 3]


def test_no_priority_changes_what_another_tenant_waits_for() -> None:
    def place(priority: int) -> int:
        loud = [Request(1000, 1000, "loud", priority) for _ in range(20)]
        return [one.tenant for one in taken(lanes_of([*loud, Request(1000, 1000, "quiet")]))].index("quiet")

    assert place(-(2**63)) == place(0) == place(2**63 - 1) == 1


@pytest.mark.parametrize("missing", [500, 10_000])
def test_the_oldest_request_gets_its_part_of_its_tenants_prefill_whatever_its_priority(missing: int) -> None:
    oldest = Request(10_000, missing, "a", 9)
    lanes = lanes_of([oldest])
    lanes.add(Request(400, 400, "a", 0).sending, "a", 0)
    computed = 0
    while computed <= 2 * missing / OLDEST and (one := cast(Request, lanes.take())) is not oldest:
        computed += one.missing
        lanes.add(Request(400, 400, "a", 0).sending, "a", 0)
    assert computed <= missing / OLDEST + 800
    assert computed >= 3 * missing


kinds = st.tuples(st.sampled_from(["add", "take", "drop"]), st.sampled_from("abc"), st.integers(-1, 1), prompts())


@given(st.lists(kinds, max_size=80), st.sampled_from([0.0, 1.0]))
def test_each_request_is_handed_on_once_or_dropped_and_nothing_is_kept(
    steps: list[tuple[str, str, int, Request]], repeated: float
) -> None:
    lanes, waiting, handed = lanes_of(repeated=repeated), list[Request](), list[Request]()
    for kind, tenant, priority, request in steps:
        if kind == "add":
            lanes.add(request.sending, tenant, priority)
            waiting.append(request)
        elif kind == "take" and waiting:
            handed.append(cast(Request, lanes.take()))
            waiting.remove(handed[-1])
        elif waiting:
            lanes.drop(waiting.pop(request.tokens % len(waiting)).sending)
        assert list(lanes) == waiting and len(lanes) == len(waiting)
        assert all(one.sending in lanes for one in waiting)
    handed += taken(lanes)
    assert len(handed) == len(set(handed))
    with pytest.raises(KeyError):
        lanes.drop(Request(1, 1).sending)
    assert not len(lanes) and list(lanes) == []


def test_clients_that_come_and_go_leave_nothing_behind() -> None:
    lanes = lanes_of([Request(100, 100, "stays")])
    for number in range(5000):
        one = Request(100, 100, str(number))
        lanes.add(one.sending, one.tenant, 0)
        lanes.drop(one.sending)
    assert len(lanes.resting) < 100
    assert [one.tenant for one in taken(lanes)] == ["stays"]
