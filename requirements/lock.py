"""Renews the pinned requirement files from pyproject.toml (`make lock`).

dev.txt: what `make run` and `make test` need; run.txt: the part of it that `make run` installs; server.txt and gpu.txt: the
images of the sidecar; train.txt: the image that trains. torch is pinned to a plain version, without the local part that a CPU
build carries, so that one file serves whichever build an index offers.
"""

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FILES = {
    "dev.txt": ["--extra", "sim", "--extra", "minilm", "--extra", "test"],
    "run.txt": ["--extra", "demo", "--constraint", str(HERE / "dev.txt")],
    "server.txt": ["--extra", "server", "--extra", "otel", "--extra", "cache-large", "--extra", "gateway"],
    "gpu.txt": ["--extra", "gpu", "--extra", "otel", "--extra", "cache-large", "--extra", "gateway"],
    "train.txt": ["--extra", "train", "--extra", "cluster"],
}

# What redis-py needs on Pythons older than the one that may run this, Debian 12's 3.11.2 among them.
OLDER = 'async-timeout==5.0.1 ; python_full_version < "3.11.3"\n    # via redis\n'

for name, selection in FILES.items():
    output = HERE / name
    subprocess.run(
        [
            *(sys.executable, "-m", "piptools", "compile", "--quiet", "--upgrade", "--strip-extras", "--allow-unsafe"),
            *("--no-header", "--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host"),
            *("--constraint", str(HERE / "constraints.txt"), "--output-file", str(output), *selection),
            "pyproject.toml",
        ],
        cwd=HERE.parent,
        check=True,
    )
    pins = re.sub(r"(==[\w.]+)\+cpu\b", r"\1", output.read_text())
    pins = re.sub(r"(?m)^(--.*|learned-prefix-cache .*)\n(    # .*\n)*", "", pins)
    pins = re.sub(r"(?m)^    #   -c .*\n", "", pins)  # it names a folder of this machine
    pins = re.sub(r"(?m)^async-timeout==.*\n(    # .*\n)*", "", pins)
    output.write_text(f"# Made by `make lock` from pyproject.toml.\n{OLDER}{pins.rstrip()}\n")
