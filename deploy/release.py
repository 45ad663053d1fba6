"""Makes everything that a release publishes (`make release`), into `dist/`: the same bytes for the same commit.

Wheel and sdist, the Helm chart, Prometheus' rules, a CycloneDX bill of materials of each image's Python packages, the command
that builds each image, and SHA256SUMS of it all. Times in the files are the commit's, or SOURCE_DATE_EPOCH. Publishing:
docs/contributing/publish.md.
"""

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import yaml
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from deploy import digests
from lpc import distribution

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy/helm/learned-prefix-cache"
RUNBOOK = "docs/how-to/runbook.md"
SUMS = "SHA256SUMS"
BILLS = ("server", "gpu", "train")
IMAGES = {
    "lpc-sidecar:{version}-cpu": "--target cpu",
    "lpc-sidecar:{version}-gpu": "--target gpu --build-arg PRECISION=fp16",
    "lpc-caches:{version}": "--target caches",
    "lpc-trainer:{version}": "--target trainer",
    "lpc-engine:{version}": "--target engine",
}


def main(dist: Path) -> None:
    """Make all, and say what to do with it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    version, repository = project["project"]["version"], project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
    time = epoch()
    if dist.exists():
        shutil.rmtree(dist)
    dist.mkdir(parents=True)
    packages(dist, time)
    chart(dist, repository, time)
    (dist / "prometheus-rules.yml").write_text(rules(repository))
    for name in BILLS:
        (dist / f"sbom-{name}.cdx.json").write_text(bill(name, version, time))
    labels = labelled(version, repository)
    (dist / "images.txt").write_text(
        "".join(f"{tag} docker build {flags} {labels} --tag {tag} .\n".format(version=version) for tag, flags in IMAGES.items())
    )
    sums(dist)
    print((dist / SUMS).read_text())
    for left in undone():
        print(f"not ready to publish: {left}")
    print("to publish: docs/contributing/publish.md")


def undone() -> list[str]:
    """Return what a release still needs, each with what to do."""
    unpinned = sorted(
        {
            image
            for file in digests.files(ROOT)
            for image in digests.IMAGES
            for found in digests.reference(image).finditer(file.read_text())
            if found["digest"] is None
        }
    )
    found = [f"{image} has no digest: make digests" for image in unpinned]
    if distribution.SOURCE != distribution.NAME:
        found.append("pages install from a checkout: set SOURCE in lpc/distribution.py")
    return found


def epoch() -> int:
    """Return SOURCE_DATE_EPOCH, else the time of the commit, seconds."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        given = subprocess.run(
            ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    return int(given)


def packages(dist: Path, time: int) -> None:
    """Write wheel and sdist."""
    tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # protoc looks there for its plug-ins
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(dist.resolve())],
        cwd=ROOT,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(time), "PATH": tools},
        check=True,
    )


def labelled(version: str, repository: str) -> str:
    """Return the build arguments that become an image's labels."""
    commit = ["git", "rev-parse", "HEAD"]
    revision = subprocess.run(commit, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    arguments = {"VERSION": version, "REVISION": revision}
    if repository:
        arguments |= {"SOURCE": repository, "DOCUMENTATION": f"{repository}/blob/main/docs/index.md"}
    return " ".join(f"--build-arg {name}={value}" for name, value in arguments.items())


def rules(repository: str) -> str:
    """Return Prometheus' rules, whose alerts link to the repository's runbook."""
    text = (ROOT / "deploy/prometheus/rules.yml").read_text()
    return text.replace(RUNBOOK, f"{repository}/blob/main/{RUNBOOK}") if repository else text


def chart(dist: Path, repository: str, time: int) -> None:
    """Write the Helm chart as `helm package` does, with addresses in the repository, and with one time in all entries."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / CHART.name
        shutil.copytree(CHART, copy)
        if repository:
            about = yaml.safe_load((copy / "Chart.yaml").read_text()) | {"home": repository, "sources": [repository]}
            (copy / "Chart.yaml").write_text(yaml.safe_dump(about, sort_keys=False))
            values = (copy / "values.yaml").read_text()
            (copy / "values.yaml").write_text(values.replace(RUNBOOK, f"{repository}/blob/main/{RUNBOOK}"))
        helm = shutil.which("helm", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        if helm is None:
            raise SystemExit("helm is needed: make deploy-tools")
        subprocess.run([helm, "package", copy, "--destination", folder], check=True, capture_output=True)
        (made,) = Path(folder).glob("*.tgz")
        with tarfile.open(made) as package:
            files = {entry.name: package.extractfile(entry) for entry in package.getmembers()}
            contents = {name: file.read() for name, file in files.items() if file is not None}
        with (
            (dist / made.name).open("wb") as out,
            gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=time) as packed,
            tarfile.open(fileobj=packed, mode="w") as package,
        ):
            for name, content in sorted(contents.items()):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime = len(content), time
                package.addfile(entry, io.BytesIO(content))


def bill(requirements: str, version: str, time: int) -> str:
    """Return the bill of materials of a requirements file as CycloneDX 1.6 JSON."""
    bom = Bom()
    # Neither random nor now, so that the same packages give the same file.
    bom.serial_number = uuid5(NAMESPACE_URL, f"learned-prefix-cache/{version}/{requirements}/{time}")
    bom.metadata.timestamp = datetime.fromtimestamp(time, UTC)
    own = PackageURL("pypi", name="learned-prefix-cache", version=version)
    bom.metadata.component = Component(
        name=own.name, version=version, type=ComponentType.APPLICATION, purl=own, bom_ref=own.to_string()
    )
    parts = []
    for name, pin in re.findall(r"(?m)^([\w.-]+)==(\S+)", (ROOT / f"requirements/{requirements}.txt").read_text()):
        purl = PackageURL("pypi", name=name, version=pin)
        parts.append(Component(name=name, version=pin, type=ComponentType.LIBRARY, purl=purl, bom_ref=purl.to_string()))
    bom.components.update(parts)
    bom.register_dependency(bom.metadata.component, parts)
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2) + "\n"


def sums(folder: Path) -> None:
    """Write the checksums of all files of a folder, as `sha256sum --check` reads them."""
    lines = []
    for path in sorted(path for path in folder.iterdir() if path.name != SUMS):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (folder / SUMS).write_text("".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
