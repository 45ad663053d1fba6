import math
import time

import pytest

from eviction_client.clock import MonotoneClock


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
