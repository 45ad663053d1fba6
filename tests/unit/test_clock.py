"""The clock under the scores never goes back."""

import math

from eviction_client.clock import MonotoneClock


def test_where_its_source_steps_back_time_stands_still() -> None:
    times = iter([5.0, 7.0, 6.0, 6.5, 8.0])
    clock = MonotoneClock(lambda: next(times))
    assert clock.latest == -math.inf
    assert [clock.now() for _ in range(5)] == [5.0, 7.0, 7.0, 7.0, 8.0]
    assert clock.latest == 8.0
