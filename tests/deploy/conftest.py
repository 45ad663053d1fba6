"""Fixtures that tests of several deployments share."""

from pathlib import Path

import pytest

from tests.tiny_model import build_tiny_artifact


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model under the name that the manifests serve, as the image carries one."""
    root = tmp_path_factory.mktemp("image") / "models"
    root.mkdir()
    build_tiny_artifact(root, name="default")
    return root
