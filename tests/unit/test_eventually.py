"""Deadlines of tests grow with the load of the machine."""

import ast
import os
import time
from collections.abc import Iterator

import pytest

from tests import eventually
from tests.only import ROOT


def loaded(monkeypatch: pytest.MonkeyPatch, processes: float) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (processes, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


@pytest.mark.parametrize(("processes", "slack"), [(0.0, 1.0), (1.0, 1.0), (2.0, 2.0), (8.0, 8.0), (1000.0, 20.0)])
def test_a_busy_machine_gets_more_time(monkeypatch: pytest.MonkeyPatch, processes: float, slack: float) -> None:
    loaded(monkeypatch, processes)
    assert eventually.patiently(10.0) == 10 * slack


def test_a_wait_goes_on_when_the_load_rises_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(monkeypatch, 0.0)
    now = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    tries = iter(range(100))

    def condition() -> bool:
        if next(tries) == 2:
            loaded(monkeypatch, 8.0)
        return next(tries) > 20

    assert eventually.until(condition, 5.0)
    with pytest.raises(AssertionError, match="never came about"):
        eventually.until(lambda: False, 1.0)


def test_the_timeout_of_pytest_is_longer_than_the_settings(request: pytest.FixtureRequest) -> None:
    assert request.config.pluginmanager.get_plugin("tests.eventually") is eventually


SHORT = 150.0
WAITS = {"wait": 1, "join": 1, "wait_for": 2}
"""Functions whose last argument is a time, and how many they then have."""
NO_WAITS = {"test_keep.py"}
"""`wait` is another thing there."""


def deadlines(text: str) -> Iterator[tuple[int, float]]:
    """Yield line and seconds of each constant that ends a wait, but those that pace a loop or are called behaviour."""
    lines = text.splitlines()
    for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        found = [keyword.value for keyword in call.keywords if keyword.arg == "timeout"]
        if len(call.args) == WAITS.get(name):
            found.append(call.args[-1])
        for value in found:
            seconds = value.value if isinstance(value, ast.Constant) and isinstance(value.value, int | float) else 0
            if 1 <= seconds < SHORT and "# behaviour" not in lines[value.lineno - 1]:
                yield value.lineno, float(seconds)


def test_a_fixed_deadline_is_found() -> None:
    text = "a.wait(10)\nf(timeout=20)\nasyncio.wait_for(g(), 30)\nb.wait(0.01)\nh(timeout=5)  # behaviour: x\n''.join(x)\n"
    assert list(deadlines(text)) == [(1, 10.0), (2, 20.0), (3, 30.0)]


def test_no_test_waits_for_a_short_fixed_time() -> None:
    files = [path for path in sorted((ROOT / "tests").rglob("*.py")) if "containers" not in path.parts]
    assert len(files) > 300
    found = [
        f"{path.relative_to(ROOT)}:{line}: {seconds:g} s: use patiently()"
        for path in files
        if path.name not in NO_WAITS
        for line, seconds in deadlines(path.read_text())
    ]
    assert found == []
