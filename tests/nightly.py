"""Long tests of `make test-nightly`, which sets LPC_TEST_LONG: Monte Carlo, faults, load and fuzzing.

Without it, tests marked ``nightly`` are skipped, and others are shorter (:data:`LONG`).
"""

import os
from typing import Final

import pytest

LONG: Final = "LPC_TEST_LONG" in os.environ
EXAMPLES: Final = 10_000 if LONG else 100
"""Number of inputs of a fuzz test."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "nightly: left out unless LPC_TEST_LONG is set (`make test-nightly`)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not LONG:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("nightly")])
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
