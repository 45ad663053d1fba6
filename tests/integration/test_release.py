"""`make release` makes the same bytes again. The whole of it: run it twice and compare SHA256SUMS."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy import digests, release
from lpc import distribution
from tests.deploy.test_digests import UNPINNED
from tests.integration.test_wheel import ROOT, SOURCES

TIME = 1_700_000_000


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_wheel_and_sdist_are_the_same_bytes_wherever_they_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for name in ("one", "other"):
        source = tmp_path / name
        source.mkdir()
        for each in SOURCES:
            if (ROOT / each).is_dir():
                shutil.copytree(ROOT / each, source / each, ignore=shutil.ignore_patterns("__pycache__", "*_pb2*"))
            else:
                shutil.copy(ROOT / each, source / each)
        monkeypatch.setattr(release, "ROOT", source)
        release.packages(tmp_path / f"dist-{name}", TIME)
        made.append({path.name: path.read_bytes() for path in (tmp_path / f"dist-{name}").iterdir()})
    assert {path.rpartition(".")[2] for path in made[0]} == {"whl", "gz"}
    assert made[0] == made[1]


@pytest.mark.parametrize("name", release.BILLS)
def test_a_bill_of_materials_names_every_pin_and_is_the_same_again(name: str) -> None:
    bill = json.loads(release.bill(name, "1.2.3", TIME))
    assert bill["bomFormat"] == "CycloneDX"
    assert json.loads(release.bill(name, "1.2.3", TIME)) == bill
    pins = re.findall(r"(?m)^([\w.-]+)==", (ROOT / f"requirements/{name}.txt").read_text())
    assert sorted(component["name"] for component in bill["components"]) == sorted(pins)
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/learned-prefix-cache@1.2.3"


def test_a_release_names_what_it_still_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = release.undone()
    assert {line.partition(" has no digest")[0] for line in found if "make digests" in line} == UNPINNED
    assert any("lpc/distribution.py" in line for line in found) == (distribution.SOURCE != distribution.NAME)
    monkeypatch.setattr(distribution, "SOURCE", distribution.NAME)
    monkeypatch.setattr(digests, "IMAGES", ())
    assert release.undone() == []


def test_the_images_are_the_dockerfiles_targets() -> None:
    text = (ROOT / "Dockerfile").read_text()
    for flags in release.IMAGES.values():
        target = re.search(r"--target (\S+)", flags)
        assert target and re.search(rf"(?m)^FROM .* AS {target[1]}$", text)
        for argument in re.findall(r"--build-arg (\w+)=", flags):
            assert f"ARG {argument}=" in text


def test_the_checksums_are_those_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").write_text("y")
    release.sums(tmp_path)
    done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "a: OK\nb: OK\n"
