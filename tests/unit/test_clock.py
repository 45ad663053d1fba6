"""The clock under the scores never goes back and never stops."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from eviction_client.clock import SETTLED_S, SLOWER, MonotoneClock

HOUR = 3600.0
NOW = 1.8e9


class Machine:
    """A machine's wall clock, which can be set, and its monotonic clock."""

    def __init__(self) -> None:
        self.set_by = NOW
        self.elapsed = 100.0
        self.clock = MonotoneClock(lambda: self.set_by + self.elapsed, lambda: self.elapsed)
        self.clock.now()

    def pass_(self, seconds: float, *, step: float = 1.0) -> float:
        """Let time pass; return by how much the clock went on."""
        before = self.clock.now()
        for _ in range(int(seconds / step)):
            self.elapsed += step
            self.clock.now()
        return self.clock.now() - before

    @property
    def ahead(self) -> float:
        """Seconds by which the clock is ahead of the wall clock."""
        return self.clock.now() - (self.set_by + self.elapsed)


def test_time_goes_on_after_a_jump_of_hours_forward_and_back() -> None:
    machine = Machine()
    machine.set_by += 5 * HOUR
    machine.pass_(10 * SETTLED_S)
    machine.set_by -= 5 * HOUR
    assert machine.pass_(100.0) >= 100.0 * (1.0 - SLOWER) - 0.01
    assert machine.ahead > 4 * HOUR
    machine.pass_(5 * HOUR / SLOWER, step=60.0)
    assert abs(machine.ahead) < 0.01, "it has met the wall clock again"


def test_a_wall_clock_that_stays_ahead_is_followed() -> None:
    machine = Machine()
    machine.set_by += 5 * HOUR
    machine.pass_(SETTLED_S + 2)
    assert abs(machine.ahead) < 0.01


def test_what_is_not_a_number_does_not_stop_the_clock() -> None:
    readings = iter([math.nan, NOW, math.nan, NOW + 5.0])
    clock = MonotoneClock(lambda: next(readings))
    assert clock.latest == -math.inf
    assert [clock.now() for _ in range(4)] == [-math.inf, NOW, NOW, NOW + 5.0]


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-1e5, 1e5), st.floats(0.0, 100.0)), max_size=40))
def test_it_never_goes_back_and_never_stops(jumps: list[tuple[float, float]]) -> None:
    machine = Machine()
    for jump, seconds in jumps:
        machine.set_by += jump
        before = machine.clock.now()
        machine.elapsed += seconds
        assert machine.clock.now() >= before + seconds * (1.0 - SLOWER) - 1e-3
