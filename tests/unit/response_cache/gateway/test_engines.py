"""The choice of an engine for a conversation."""

from collections import Counter

from response_cache.gateway.engines import AT_LEAST, Engines
from response_cache.gateway.metrics import Metrics

URLS = [f"http://engine-{i}:8000" for i in range(4)]
KEYS = [str(i).encode() for i in range(400)]


def test_when_an_engine_fails_only_its_own_conversations_move() -> None:
    engines = Engines(URLS, Metrics())
    homes = {key: engines.ranked(key)[0] for key in KEYS}
    assert all(60 < count < 140 for count in Counter(engine.name for engine in homes.values()).values())
    gone = engines.all[1]
    gone.set_up(False)
    for key in KEYS:
        now = engines.ranked(key)[0]
        assert now is not gone
        assert (now is homes[key]) == (homes[key] is not gone)
    gone.set_up(True)
    assert all(engines.ranked(key)[0] is homes[key] for key in KEYS)


def test_engines_that_are_down_are_tried_last() -> None:
    engines = Engines(URLS, Metrics())
    for engine in engines.all:
        engine.set_up(False)
    assert len(engines.ranked(b"x")) == 4


def test_an_engine_with_twice_its_share_in_flight_is_skipped() -> None:
    engines = Engines(URLS, Metrics())
    first, second, *_ = engines.ranked(b"hi")
    first.in_flight = AT_LEAST - 1
    assert engines.ranked(b"hi")[0] is first
    first.in_flight = AT_LEAST
    assert engines.ranked(b"hi")[0] is second
    for engine in engines.all:
        engine.in_flight = AT_LEAST
    assert engines.ranked(b"hi")[0] is first
