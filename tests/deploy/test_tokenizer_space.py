"""The files and the process of offered tokenizers fit the volumes and the memory of every deployment."""

import re
from collections.abc import Iterator

import pytest

from predictor_service.requests.loading import MAX_WRITTEN, MEMORY_BYTES
from predictor_service.requests.marked_text import MAX_VOCABULARY
from predictor_service.requests.served_models import LOADERS, MAX_LOADED_TOKENS
from predictor_service.requests.uploads import MAX_UPLOADED
from tests.deploy.chart import VALUES, charted
from tests.deploy.test_compose import configured
from tests.deploy.test_kubernetes import EXAMPLES, OVERLAYS, Object, example, pods, rendered
from tests.dockerfile import ROOT

MIB = 2**20
RESULT = MAX_WRITTEN + 4 * MAX_VOCABULARY + MIB
"""Bytes that a loading process writes at most: the decoder, the lengths, the markup."""
ON_DISK = MAX_UPLOADED + (1 + LOADERS) * RESULT
IN_MEMORY = MEMORY_BYTES + MAX_LOADED_TOKENS * 80_000_000 // 262_144
SIDECAR = 600 * MIB
"""Memory of a sidecar with a model and without offered tokenizers."""


def bytes_of(size: str) -> int:
    number, unit = re.fullmatch(r"(\d+)\s*([KMG])I?B?", size.upper()).groups()  # type: ignore[union-attr]
    return int(number) * {"K": 2**10, "M": 2**20, "G": 2**30}[unit]


def sidecars(objects: list[Object]) -> Iterator[tuple[Object, Object]]:
    """Yield the containers that run `lpc serve`, with their pods."""
    for _, pod in pods(objects):
        for container in pod["spec"]["containers"]:
            if "lpc-sidecar" in container["image"] and container.get("args") == ["serve"]:
                yield container, pod


def deployments() -> Iterator[tuple[str, list[Object]]]:
    yield from ((name, rendered(name)) for name in OVERLAYS)
    yield from ((name, example(name)) for name in EXAMPLES)
    yield from ((f"chart: {name}", charted(name)) for name in VALUES)


def test_the_volume_and_the_memory_of_every_pod_hold_the_largest_tokenizers() -> None:
    seen = set()
    for name, objects in deployments():
        for container, pod in sidecars(objects):
            seen.add(name)
            (mounted,) = (mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == "/tmp")
            (volume,) = (volume for volume in pod["spec"]["volumes"] if volume["name"] == mounted)
            assert bytes_of(volume["emptyDir"]["sizeLimit"]) >= ON_DISK, name
            assert "medium" not in volume["emptyDir"], "its files would count as memory"
            assert bytes_of(container["resources"]["limits"]["memory"]) >= IN_MEMORY + SIDECAR, name
    assert seen >= {*OVERLAYS, "vllm-one-pod", *(f"chart: {name}" for name in VALUES)}


@pytest.mark.parametrize("name", ["predictor", "predictor-gpu"])
def test_the_temporary_folder_of_compose_holds_the_largest_tokenizers(name: str) -> None:
    (folder,) = configured()[name]["tmpfs"]
    assert folder.startswith("/tmp:size=") and bytes_of(folder.removeprefix("/tmp:size=")) >= ON_DISK


def test_the_page_about_images_names_the_same_size() -> None:
    (size,) = re.findall(r"--tmpfs /tmp:size=(\w+)", (ROOT / "docs/how-to/deploy.md").read_text())
    assert bytes_of(size) >= ON_DISK
