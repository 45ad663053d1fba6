"""Reports known vulnerabilities of what the images install, and the packages that could not be looked up (`make audit`).

Options are pip-audit's, such as `-s osv`. Exit code: 0, all packages were looked up and none is vulnerable; 1 otherwise.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FILES = ("server.txt", "gpu.txt", "train.txt", "cuda.txt", "client.txt", "build.txt")


def found_in(file: Path, options: list[str]) -> list[dict[str, Any]]:
    """Return what pip-audit reports of each package of a lock. Raises ValueError: it reported nothing."""
    # Not --strict, which ends at the first package that cannot be looked up and names no other.
    command = [sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip", "--progress-spinner", "off"]
    done = subprocess.run([*command, "--format", "json", "-r", str(file), *options], capture_output=True, text=True)
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        last = done.stderr.strip().rpartition("\n")[2]
        raise ValueError(f"{file.name}: nothing was checked, no answer or a malformed lock: {last}") from None
    return packages


def main(options: list[str]) -> int:
    """Print what pip-audit found and what it could not look up; return the exit code."""
    try:
        found = {(one["name"], one.get("version")): one for name in FILES for one in found_in(HERE / name, options)}
    except ValueError as error:
        print(f"audit: {error}", file=sys.stderr)
        return 1
    vulnerable = [(one, known) for one in found.values() for known in one.get("vulns", ())]
    for one, known in vulnerable:
        fixed = ", ".join(known["fix_versions"]) or "no version"
        print(f"audit: {one['name']} {one['version']}: {known['id']}, fixed in {fixed}")
    unknown = sorted({name for name, version in found if "skip_reason" in found[name, version]})
    print(f"audit: {len(found)} packages, {len(vulnerable)} known vulnerabilities, {len(unknown)} could not be looked up")
    if unknown:
        print(f"audit: not checked: {', '.join(unknown)}; try AUDIT='-s osv'", file=sys.stderr)
    return int(bool(vulnerable or unknown))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
