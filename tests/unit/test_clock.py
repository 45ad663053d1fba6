import math
import time

import pytest

from lpc.clock import MonotoneClock


def test_time_ignores_changes_of_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MonotoneClock()
    started = clock.now()
    assert abs(started - time.time()) < 60.0
    for hours in (5, -5):
        monkeypatch.setattr(time, "time", lambda hours=hours: started + 3600.0 * hours)
        assert 0.0 <= clock.now() - started < 60.0


def test_time_never_goes_back_whatever_its_source_returns() -> None:
    readings = iter([math.nan, 10.0, math.nan, 5.0, 12.0])
    clock = MonotoneClock(lambda: next(readings))
    assert [clock.now() for _ in range(5)] == [-math.inf, 10.0, 10.0, 10.0, 12.0]


def test_the_wall_clock_is_ahead_by_as_much_as_it_was_set() -> None:
    wall = [1000.0]
    clock = MonotoneClock(lambda: 50.0, lambda: wall[0])
    assert (clock.now(), clock.ahead()) == (1000.0, 0.0)
    wall[0] += 7200.0
    assert (clock.now(), clock.ahead()) == (1000.0, 7200.0)
    wall[0] -= 9000.0
    assert (clock.now(), clock.ahead()) == (1000.0, -1800.0)


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux only")
def test_time_goes_on_while_the_machine_is_suspended() -> None:
    clock = MonotoneClock()
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    read = clock.source()
    assert before <= read <= time.clock_gettime(time.CLOCK_BOOTTIME)
