"""Fixtures for all tests."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from lpc.wire import bugs
from tests.authority import authority
from tests.guarded_redis import guarded_redis, guarded_session
from tests.redis_server import redis_server, redis_session

# One core: else each small simulation starts processes, in which the tests' monkeypatches have no effect.
os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")

# No deadline: property tests must not fail on a loaded machine.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

__all__ = ["authority", "guarded_redis", "guarded_session", "redis_server", "redis_session", "tiny_models"]


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository with one version of the tiny model. Do not change it: copy it."""
    from tests.tiny_model import build_tiny_artifact  # PyTorch, which `make test-python` does not install

    root = tmp_path_factory.mktemp("models")
    build_tiny_artifact(root)
    return root


@pytest.fixture(autouse=True)
def forget_reported_bugs() -> None:
    """Reset the reports of bugs, so that each test sees the first one."""
    bugs.forget_reports()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting a small file system takes the rights of root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
