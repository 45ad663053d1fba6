"""Tests with vLLM itself, run by `make test-engine` in their own environment. Elsewhere none is collected."""

import importlib.util

import pytest

from lpc.wire import bugs

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def forget_reported_bugs() -> None:
    """Reset the reports of bugs, so that each test sees the first one, whichever ran before it in the process."""
    bugs.forget_reports()


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    """Whether vLLM's scheduler schedules a step ahead."""
    return bool(request.param)


@pytest.fixture(params=[None, 64], ids=["full", "hybrid"])
def window(request: pytest.FixtureRequest) -> int | None:
    """Tokens of the sliding window of a hybrid model."""
    return request.param
