"""Reports known vulnerabilities of what the images install, and the packages that could not be looked up (`make audit`).

Options are pip-audit's, such as `-s osv`. Exit code: 0, all packages were looked up and none is vulnerable; 1 otherwise.
"""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FILES = ("server.txt", "gpu.txt", "train.txt", "cuda.txt", "client.txt", "build.txt")


def main(options: list[str]) -> int:
    """Run pip-audit over the locks; print what it found and what it did not find; return the exit code."""
    files = [word for name in FILES for word in ("-r", str(HERE / name))]
    # Not --strict, which ends at the first package that cannot be looked up and names no other.
    command = [sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip", "--progress-spinner", "off"]
    done = subprocess.run([*command, "--format", "json", *files, *options], capture_output=True, text=True)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        last = done.stderr.strip().rpartition("\n")[2]
        print(
            f"audit: nothing was checked, the advisory service does not answer or the locks are wrong: {last}", file=sys.stderr
        )
        return 1
    vulnerable = [(one, known) for one in found for known in one.get("vulns", ())]
    for one, known in vulnerable:
        fixed = ", ".join(known["fix_versions"]) or "no version"
        print(f"audit: {one['name']} {one['version']}: {known['id']}, fixed in {fixed}")
    unknown = sorted({one["name"] for one in found if "skip_reason" in one})
    print(f"audit: {len(found)} packages, {len(vulnerable)} known vulnerabilities, {len(unknown)} could not be looked up")
    if unknown:
        print(f"audit: not checked: {', '.join(unknown)}; try AUDIT='-s osv'", file=sys.stderr)
    return int(bool(vulnerable or unknown))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
