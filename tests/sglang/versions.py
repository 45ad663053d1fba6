"""Runs the tests against the radix cache of other SGLang releases (`make sglang-versions`): each must pass or be refused.

It unpacks the Python sources and the Rust core of each release's wheel and puts them before the installed ones on the path.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from eviction_client.engines.sglang.versions import find_incompatibility

ROOT = Path(__file__).resolve().parents[2]


def unpack(version: str, folder: Path) -> Path:
    """Return the folder of a release."""
    target = folder / version
    if not (target / "sglang").exists():
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check")
        subprocess.run([*pip, f"sglang=={version}", "--dest", str(folder)], check=True)
        (wheel,) = folder.glob(f"sglang-{version}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
        wheel.unlink()
    return target


def main(folder: Path, versions: list[str]) -> int:
    """Print the result of each release; return 1 if one neither passes nor is refused."""
    bad = 0
    for version in versions:
        sources = unpack(version, folder)
        reason = find_incompatibility(sources / "sglang")
        # Do not import a refused release: its test only reads its files.
        test, path = ("test_radix_cache.py", f"{sources}:{ROOT}") if reason is None else ("test_older.py", str(ROOT))
        command = [sys.executable, "-m", "pytest", "-q", "--confcutdir=tests/sglang", "-o", "filterwarnings=default"]
        result = subprocess.run(
            [*command, "-p", "no:cacheprovider", f"tests/sglang/{test}"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "LPC_TEST_OLDER_SGLANG": str(sources)},
            capture_output=True,
            text=True,
        )
        bad |= result.returncode
        said = result.stdout.splitlines()[-1] if result.stdout else result.stderr[-500:]
        print(f"{version}: {'' if reason is None else f'refused: {reason}; '}{said}", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
