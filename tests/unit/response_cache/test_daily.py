"""`lpc cache warm --daily` keeps its time of day although the clock is set, and goes on although its output is lost."""

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lpc_cli.caches import warm

AT_S = 3 * 3600
HOUR = 3600.0
YEAR = 365 * 24 * HOUR
BEGIN = datetime(2026, 11, 28, 2, tzinfo=UTC).timestamp()


class Machine:
    """Its time passes in sleep only. At ``set_at`` seconds of it the wall clock is set by ``by`` seconds."""

    def __init__(self, by: float, set_at: float) -> None:
        self.running = 0.0
        self._by, self._set_at = by, set_at

    def time(self) -> float:
        return BEGIN + self.running + (self._by if self.running >= self._set_at else 0.0)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.running += seconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], Machine]:
    def made(by: float, set_at: float) -> Machine:
        machine = Machine(by, set_at)
        monkeypatch.setattr(warm.time, "time", machine.time)
        monkeypatch.setattr(warm.time, "sleep", machine.sleep)
        return machine

    return made


@pytest.mark.parametrize(
    ("by", "waited_h"),
    [
        (0, 1),
        (0.25 * HOUR, 0.75),
        (5 * HOUR, 0.5),
        (YEAR, 0.5),
        (-0.25 * HOUR, 1.25),
        (-5 * HOUR, 6),
        (-3 * YEAR, 1),
        (-3 * YEAR - HOUR, 2),
    ],
)
def test_the_next_run_is_at_its_time_of_day_by_the_clock_as_it_is_set(
    machine: Callable[[float, float], Machine], by: float, waited_h: float
) -> None:
    """A machine whose clock was years ahead at boot waited for a time that its clock reached hours late, or early."""
    running = machine(by, 0.5 * HOUR)
    warm.sleep_until(AT_S)
    assert waited_h * HOUR <= running.running <= waited_h * HOUR + warm.LOOK_S


def test_a_run_at_its_time_of_day_is_followed_by_one_a_day_later(machine: Callable[[float, float], Machine]) -> None:
    running = machine(HOUR, 0.0)
    warm.sleep_until(AT_S)
    assert running.running == 24 * HOUR


def test_a_line_that_a_full_disk_does_not_take_is_lost_without_an_error() -> None:
    file = Path("/dev/full").open("w")  # noqa: SIM115 (its close would raise what is tested)
    with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        warm.print_line("asked 1")
        warm.print_line("error", err=True)
    with contextlib.suppress(OSError):
        file.close()
