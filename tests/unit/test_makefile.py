"""`make test` and `make test-nightly` run both halves of the tests, and fail if one of them fails."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.only import ROOT

NEEDS = ("test-setup",)


@pytest.mark.parametrize("target", ["test", "test-nightly"])
@pytest.mark.parametrize(("outside", "inside", "code"), [(0, 0, 0), (1, 0, 1), (0, 3, 3), (5, 3, 5)])
def test_a_failure_outside_the_engine_does_not_hide_the_engines_half(
    target: str, outside: int, inside: int, code: int, tmp_path: Path
) -> None:
    (tmp_path / "models/default").mkdir(parents=True)  # else the nightly tests would build it
    halves = [f"TESTS=sh -c 'echo outside; exit {outside}'", f"ENGINE_TESTS=sh -c 'echo inside; exit {inside}'"]
    command = [
        "make",
        "--no-print-directory",
        "-f",
        ROOT / "Makefile",
        *(word for need in NEEDS for word in ("-o", need)),
        target,
        *halves,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[:2] == ["outside", "inside"]
    assert bool(done.returncode) == bool(code) and (not code or f"Error {code}" in done.stderr)
    for failed, name in ((outside, "outside the engine"), (inside, "in the engine")):
        assert (f"== the tests {name} failed" in done.stdout) == bool(failed)


def test_unit_tests_that_another_python_leaves_out_exist() -> None:
    (names,) = re.findall(r"(?m)^WITH_ALL := (.+)$", (ROOT / "Makefile").read_text())
    assert [name for name in names.split() if not (ROOT / f"tests/unit/test_{name}.py").exists()] == []
