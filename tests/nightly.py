"""What only `make test-nightly` runs: Monte Carlo, long fault, load and fuzz tests. It sets LPC_TEST_LONG.

A test marked ``nightly`` is left out without it; others ask :data:`LONG` for their size.
"""

import os
from typing import Final

import pytest

LONG: Final = "LPC_TEST_LONG" in os.environ
EXAMPLES: Final = 10_000 if LONG else 100
"""Inputs that a fuzz test draws."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "nightly: left out unless LPC_TEST_LONG is set (`make test-nightly`)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not LONG:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("nightly")])
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
