"""Pins the images of others by digest, in the Dockerfile, docker-compose.yml and the deployments (`make digests`).

Asks the registry, by skopeo or `docker buildx`, for the digest that each tag has now. Our own images (lpc-*) have
none before they are built and pushed.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
IMAGES: Final = (
    "grafana/grafana:12.1.1",
    "lmcache/standalone:v0.5.6",
    "prom/prometheus:v3.5.0",
    "python:3.11.14-slim-bookworm",
    "redis:7.4.6-alpine",
    "vllm/vllm-openai-cpu:v0.32.0-x86_64",
    "vllm/vllm-openai:v0.32.0",
)
DIGEST: Final = r"@sha256:[0-9a-f]{64}"


def files(root: Path) -> list[Path]:
    """Return the files that name images."""
    return [root / "Dockerfile", root / "docker-compose.yml", *sorted((root / "deploy").rglob("*.yaml"))]


def reference(image: str) -> re.Pattern[str]:
    """Return what finds an image in a file: name and tag in one, or the tag alone where the name is on a line before."""
    name, _, tag = image.rpartition(":")
    return re.compile(
        rf"(?:(?<![\w./-]){re.escape(name)}:|(?m:^.*(?:newTag|tag): )){re.escape(tag)}(?P<digest>{DIGEST})?(?![\w.-])"
    )


def resolve(image: str) -> str:
    """Return the digest of a tag. Raises subprocess.CalledProcessError: the registry does not answer, or has no such tag."""
    if shutil.which("skopeo"):
        name, _, _ = image.partition(":")
        full = f"docker.io/{image}" if "/" in name else f"docker.io/library/{image}"
        command = ["skopeo", "inspect", "--no-tags", "--format", "{{.Digest}}", f"docker://{full}"]
    else:
        command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", image]
    digest = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    if not re.fullmatch(DIGEST, f"@{digest}"):
        raise ValueError(f"{command[0]} returned no digest of {image}")
    return digest


def pin(root: Path, image: str, digest: str) -> int:
    """Write the digest behind each reference to an image; return how many there are."""
    found = 0
    for file in files(root):
        text, count = reference(image).subn(
            lambda match: match[0].removesuffix(match["digest"] or "") + f"@{digest}", file.read_text()
        )
        if count:
            file.write_text(text)
            found += count
    return found


def main(root: Path = ROOT) -> int:
    """Pin all images; return the exit code."""
    failed = False
    for image in IMAGES:
        try:
            digest = resolve(image)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            print(f"digests: {image} stays as it is: {error}", file=sys.stderr)
            failed = True
            continue
        print(f"{image}@{digest}: {pin(root, image, digest)} references")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
