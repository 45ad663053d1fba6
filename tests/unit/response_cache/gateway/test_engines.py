"""The choice of an engine for a conversation, and when an engine is up."""

from collections import Counter
from itertools import pairwise

import pytest

from response_cache.gateway.engines import (
    AT_LEAST,
    CALM_S,
    LONGEST_PAUSE_S,
    MISSED_PROBES,
    PAUSE_S,
    PAUSE_TIMES,
    Engine,
    Engines,
)
from response_cache.gateway.metrics import Metrics

URLS = [f"http://engine-{i}:8000" for i in range(4)]
KEYS = [str(i).encode() for i in range(400)]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def engine(clock: Clock) -> Engine:
    return Engine(URLS[0], Metrics(), clock)


def test_only_a_failed_engines_conversations_move() -> None:
    engines = Engines(URLS, Metrics())
    homes = {key: engines.ranked(key)[0] for key in KEYS}
    assert all(60 < count < 140 for count in Counter(engine.name for engine in homes.values()).values())
    gone = engines.all[1]
    gone.failed("test", reachable=False)
    for key in KEYS:
        now = engines.ranked(key)[0]
        assert now is not gone
        assert (now is homes[key]) == (homes[key] is not gone)
    gone.answered()
    assert all(engines.ranked(key)[0] is homes[key] for key in KEYS)


def test_engines_that_are_down_are_tried_last() -> None:
    engines = Engines(URLS, Metrics())
    for one in engines.all:
        one.failed("test")
    assert len(engines.ranked(b"x")) == 4


def test_an_engine_with_twice_its_share_in_flight_is_skipped() -> None:
    engines = Engines(URLS, Metrics())
    first, second, *_ = engines.ranked(b"hi")
    first.in_flight = AT_LEAST - 1
    assert engines.ranked(b"hi")[0] is first
    first.in_flight = AT_LEAST
    assert engines.ranked(b"hi")[0] is second
    for one in engines.all:
        one.in_flight = AT_LEAST
    assert engines.ranked(b"hi")[0] is first


def tries_of(took_s: float, seconds: float = 600.0) -> list[float]:
    """Return when requests try an engine that answers probes but no request, if one arrives each tenth of a second."""
    clock = Clock()
    one = engine(clock)
    tries = []
    while clock.now < seconds:
        if one.ready:
            tries.append(clock.now)
            clock.now += took_s
            one.failed("test", took_s)
        one.probed(None)
        assert not one.up
        clock.now += 0.1
    one.answered()
    assert one.up and one.ready
    return tries


def test_an_engine_that_answers_probes_but_no_request_stays_down_and_its_return_is_found_within_a_second() -> None:
    tries = tries_of(took_s=0.005)
    assert max(after - before for before, after in pairwise(tries)) <= PAUSE_S + 0.11
    assert len(tries) <= 600 / PAUSE_S


@pytest.mark.parametrize("took_s", [0.5, 2.0, 10.0])
def test_an_engine_that_lets_requests_wait_before_it_fails_is_tried_for_a_tenth_of_the_time(took_s: float) -> None:
    pause_s = min(PAUSE_TIMES * took_s, LONGEST_PAUSE_S)
    tries = tries_of(took_s)
    assert len(tries) == pytest.approx(600 / (pause_s + took_s), abs=2)


def test_a_burst_of_failures_counts_as_one() -> None:
    clock = Clock()
    one = engine(clock)
    for _ in range(100):
        one.failed("test")
    assert not one.ready
    clock.now += PAUSE_S
    assert one.ready and not one.up


def test_an_engine_without_requests_is_up_again_after_a_while_of_good_probes() -> None:
    clock = Clock()
    one = engine(clock)
    one.failed("test")
    clock.now += CALM_S - 1
    one.probed(None)
    assert not one.up
    clock.now += 1
    one.probed(None)
    assert one.up


def test_an_engine_that_comes_back_is_up_at_its_first_good_probe() -> None:
    clock = Clock()
    for reachable in (False, True):
        one = engine(clock)
        one.failed("test", reachable=reachable)
        if reachable:
            one.probed("test")
        one.probed(None)
        assert one.up and one.ready


def test_one_missed_probe_does_not_make_an_engine_down() -> None:
    one = engine(Clock())
    for _ in range(MISSED_PROBES - 1):
        one.probed("test")
        assert one.up
    one.probed("test")
    assert not one.up and not one.ready
    one.answered()
    assert one.up


def test_only_an_engine_that_answered_lately_is_asked_with_patience() -> None:
    clock = Clock()
    engines = Engines(URLS[:2], Metrics(), clock=clock)
    clock.now += 1
    engines.all[1].answered()
    assert engines.alive(engines.all) == [engines.all[1]] and engines.alive([]) == []
    clock.now += CALM_S
    assert engines.alive(engines.all) == []
