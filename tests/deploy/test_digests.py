"""Images of others are pinned by digest, and `make digests` pins the others where a registry is in reach."""

import re
import shutil
from pathlib import Path

import pytest

from deploy import digests

UNPINNED = {"lmcache/standalone:v0.5.6", "vllm/vllm-openai-cpu:v0.32.0-x86_64", "vllm/vllm-openai:v0.32.0"}
"""No registry was in reach when these were named: `make digests` pins them."""
NAMED = re.compile(r"^#? *(?:FROM|- ?image:|image:|ARG \w+_IMAGE=|args: .*_IMAGE:) ?([\w./-]+:[\w.@:-]+)", re.MULTILINE)
NEW = "sha256:" + "0123456789abcdef" * 4


def test_the_images_that_are_not_pinned_by_digest_are_these() -> None:
    unpinned = set()
    for file in digests.files(digests.ROOT):
        for image in digests.IMAGES:
            unpinned |= {image for match in digests.reference(image).finditer(file.read_text()) if match["digest"] is None}
    assert unpinned == UNPINNED


def test_every_image_of_others_that_a_file_names_is_known_to_make_digests() -> None:
    found = {name.partition("@")[0] for file in digests.files(digests.ROOT) for name in NAMED.findall(file.read_text())}
    others = {name for name in found if not name.startswith(("lpc-", "registry.example/"))}
    assert others and others <= set(digests.IMAGES)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for file in digests.files(digests.ROOT):
        copy = tmp_path / file.relative_to(digests.ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    return tmp_path


def registry(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a skopeo that answers for a registry before the path."""
    folder.mkdir()
    program = folder / "skopeo"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_make_digests_pins_every_reference(
    tree: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry(tmp_path_factory.mktemp("path") / "bin", f"echo {NEW}", monkeypatch)
    assert digests.main(tree) == digests.main(tree) == 0  # pinning again changes nothing but the digest
    for image in digests.IMAGES:
        matches = [m for file in digests.files(tree) for m in digests.reference(image).finditer(file.read_text())]
        assert matches and {match["digest"] for match in matches} == {f"@{NEW}"}
    assert 'base.name="docker.io/library/python:3.11.14-slim-bookworm"' in (tree / "Dockerfile").read_text()
