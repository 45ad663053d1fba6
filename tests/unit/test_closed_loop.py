"""The virtual loop of benchmark `engine --closed`, served by a list in place of an engine."""

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.closed_loop import APART_S, ClosedLoop

Workload = tuple[list[list[int]], list[float], int]


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Sessions of numbered requests, their gaps, and how many are under way at a time."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
    numbers = iter(range(sum(lengths)))
    sessions = [[next(numbers) for _ in range(length)] for length in lengths]
    gaps = draw(st.lists(st.floats(0.0, 100.0), min_size=sum(lengths), max_size=sum(lengths)))
    return sessions, gaps, draw(st.integers(1, len(sessions)))


Course = list[tuple[str, int, float]]


def serve(workload: Workload, pick: Callable[[list[int]], int], step_s: float) -> Course:
    """Answer one request per step, chosen by `pick`; return arrivals and answers in order."""
    sessions, gaps, at_once = workload
    loop = ClosedLoop(sessions, gaps, at_once=at_once, start=5.0)
    course: Course = []
    waiting: list[int] = []
    now = 5.0
    while waiting or loop.next_arrival is not None:
        if not waiting:
            assert loop.next_arrival is not None
            now = max(now, loop.next_arrival)
        for number in loop.arrive(now):
            course.append(("arrives", number, loop.arrived[number]))
            waiting.append(number)
        now += step_s
        number = waiting.pop(pick(waiting))
        assert loop.answer(number, now) == now - loop.arrived[number]
        course.append(("answered", number, now))
    return course


def session_of(workload: Workload) -> dict[int, int]:
    return {number: place for place, session in enumerate(workload[0]) for number in session}


@given(workloads(), st.randoms(use_true_random=False), st.floats(0.01, 50.0))
def test_a_session_never_has_two_requests_in_flight(workload: Workload, rng: random.Random, step_s: float) -> None:
    owner = session_of(workload)
    flying: Counter[int] = Counter()
    for what, number, _ in serve(workload, lambda waiting: rng.randrange(len(waiting)), step_s):
        flying[owner[number]] += 1 if what == "arrives" else -1
        assert flying[owner[number]] in (0, 1)
        assert flying.total() <= workload[2]


@given(workloads(), st.randoms(use_true_random=False), st.floats(0.01, 50.0))
def test_the_next_request_arrives_exactly_its_gap_after_the_answer(
    workload: Workload, rng: random.Random, step_s: float
) -> None:
    times = {(what, number): at for what, number, at in serve(workload, lambda waiting: rng.randrange(len(waiting)), step_s)}
    sessions, gaps, at_once = workload
    for session in sessions:
        for before, after in pairwise(session):
            assert times["arrives", after] == times["answered", before] + gaps[after]
    assert [times["arrives", session[0]] for session in sessions[:at_once]] == [5.0 + n * APART_S for n in range(at_once)]


@given(workloads(), st.floats(0.01, 50.0), st.floats(0.01, 50.0))
def test_a_fast_and_a_slow_engine_see_the_same_sessions_and_gaps(workload: Workload, fast_s: float, slow_s: float) -> None:
    owner = session_of(workload)
    courses = serve(workload, lambda _: 0, fast_s), serve(workload, lambda waiting: len(waiting) - 1, slow_s)
    for course in courses:
        seen: dict[int, list[int]] = {}
        for what, number, _ in course:
            if what == "arrives":
                seen.setdefault(owner[number], []).append(number)
        assert [seen[place] for place in range(len(workload[0]))] == workload[0]


@given(workloads(), st.floats(0.01, 50.0))
def test_a_session_begins_when_another_ends(workload: Workload, step_s: float) -> None:
    sessions, gaps, at_once = workload
    course = serve(workload, lambda _: 0, step_s)
    lasts, firsts = {session[-1] for session in sessions}, [session[0] for session in sessions[at_once:]]
    ends = [at for what, number, at in course if what == "answered" and number in lasts]
    times = {number: at for what, number, at in course if what == "arrives"}
    assert [times[number] for number in firsts] == [end + gaps[number] for end, number in zip(ends, firsts, strict=False)]


def test_fewer_sessions_than_are_to_be_under_way_are_refused() -> None:
    with pytest.raises(ValueError, match="3 sessions at a time need as many, there are 2"):
        ClosedLoop([[0], [1]], [0.0, 0.0], at_once=3, start=0.0)
