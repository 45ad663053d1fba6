"""Renews the locked requirements, with the hashes of all files that PyPI has of each version (`make lock`).

From pyproject.toml, for Linux and Python 3.11 to 3.13:
    run.txt     what `make run` installs                  dev.txt     what `make test` needs
    server.txt  the sidecar's image                       gpu.txt     the sidecar's image with CUDA
    models.txt  the images' model                         train.txt   the image that trains
    build.txt   what builds the package
From the names in NAMED:
    python.txt, tools.txt, docs.txt
From the versions in PEERS, each for an environment of its own (`python -m benchmarks fleet`, `make aiperf`):
    smg.txt, vllm-router.txt, sglang-router.txt, aiperf.txt
From the pins in the file itself, which a person chooses:
    engine.txt, lmcache.txt, lmcache-newest.txt, sglang.txt, client.txt, kubectl.txt

torch has the hashes of PyPI's build, for CUDA, and of PyTorch's own build for CPUs. What only the
build for CUDA needs to be imported is in cuda.txt; nothing here runs PyTorch on a GPU.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
LOCKED = {
    "dev.txt": ["--extra", "test"],
    "run.txt": ["--extra", "demo", "--constraint", "requirements/dev.txt"],
    "models.txt": ["--extra", "server", "--constraint", "requirements/dev.txt"],
    "server.txt": ["--extra", "cpu", "--extra", "cache"],
    "gpu.txt": ["--extra", "gpu", "--extra", "cache"],
    "train.txt": ["--extra", "train"],
}
NAMED = {
    "build.txt": [*tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"], "editables"],
    # With run.txt, for another Python: `make test-python`.
    "python.txt": ["hypothesis", "pytest", "pytest-asyncio", "pytest-timeout"],
    "tools.txt": ["uv"],
    # The documentation's site: `make docs`.
    "docs.txt": ["mkdocs-material"],
}
PEERS = {
    "smg.txt": "smg==1.13.0",
    "vllm-router.txt": "vllm-router==0.1.17",
    "sglang-router.txt": "sglang-router==0.3.2",
    "aiperf.txt": "aiperf==0.13.0",
}
CHOSEN = ("engine.txt", "lmcache.txt", "lmcache-newest.txt", "sglang.txt", "client.txt", "kubectl.txt")
_ENTRY = r"(?m)^(?:%s).*\n(?:    .*\n)*"
CUDA = re.compile(_ENTRY % "nvidia-|cuda-|triton==")
UNUSED = re.compile(_ENTRY % "cuda-|nvidia-cusolver==|triton==")
"""What PyPI's build of torch names as its requirement, and loads on a GPU only: 1 GB in each environment."""
ELSEWHERE = re.compile(_ENTRY % r"[^ #]+ ; (?:.* and )?sys_platform == '(?:win32|darwin|emscripten)'")
TORCH = re.compile(r"(?m)^torch==2\.13\.0( ;.*)? \\\n")
TORCH_FOR_CPUS = (
    "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",  # cp311, x86_64
    "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7",  # cp311, aarch64
    "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",  # cp312, x86_64
    "6f307c2c32d764ffc6ff6893b801fad6d4752f3e67966cb8abf1843427c02604",  # cp312, aarch64
    "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",  # cp313, x86_64
    "0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d",  # cp313, aarch64
)
"""As PyTorch's index of builds for CPUs lists them."""


def lock(name: str, source: str, *options: str, names: str | None = None) -> str:
    """Write the lock of a file of requirements, or with source - of ``names``, and return it.

    Raises subprocess.CalledProcessError: no versions fit together, or PyPI does not answer.
    """
    file = HERE / name
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
    command += ["--fork-strategy", "fewest", "--generate-hashes", "--no-header", "--no-emit-index-url", "--no-emit-find-links"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    subprocess.run(
        [*command, *options, "--output-file", str(file.relative_to(ROOT)), source],
        cwd=ROOT,
        env=environment,
        input=names,
        stdout=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return file.read_text()


def write(name: str, head: str, text: str) -> None:
    """Write a lock file: without packages of other systems, with the hashes of both builds of torch."""
    hashes = "".join(f"    --hash=sha256:{digest} \\\n" for digest in TORCH_FOR_CPUS)
    if TORCH_FOR_CPUS[0] not in text:
        text = TORCH.sub(lambda found: found[0] + hashes, text)
    (HERE / name).write_text(head + ELSEWHERE.sub("", text))


def main(upgrade: bool) -> None:
    """Renew all files; with ``upgrade`` to the newest versions, else to those in the files where they still fit."""
    options = ["--constraint", "requirements/constraints.txt", *(["--upgrade"] if upgrade else [])]
    for name, selection in LOCKED.items():
        text = lock(name, "pyproject.toml", *options, *selection)
        if TORCH.search(text):
            found = UNUSED.sub("", "".join(CUDA.findall(text)))
            write("cuda.txt", "# Made by `make lock`: what PyPI's build of torch needs to be imported.\n", found)
            text = CUDA.sub("", text)
        write(name, "# Made by `make lock`.\n", text)
    for name, names in NAMED.items():
        aligned = {"build.txt": "server.txt"}.get(name, "dev.txt")
        write(
            name,
            "# Made by `make lock`.\n",
            lock(name, "-", *options, "--constraint", f"requirements/{aligned}", names="\n".join(names)),
        )
    for name, peer in PEERS.items():
        write(name, "# Made by `make lock`.\n", lock(name, "-", *options[2:], "--no-annotate", names=peer))
    for name in CHOSEN:
        head = re.match(r"(?:#.*\n)*", (HERE / name).read_text())
        assert head is not None
        write(name, head[0], lock(name, f"requirements/{name}", "--no-deps", "--no-annotate"))


if __name__ == "__main__":
    main(upgrade="--keep" not in sys.argv[1:])
