"""Every package that the Makefile and the Dockerfile install from an index is pinned, with hashes."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCKS = sorted(path for path in (ROOT / "requirements").glob("*.txt") if path.name != "constraints.txt")
ENTRY = re.compile(r"([A-Za-z0-9][\w.-]*==\S+)(?: ; [^\\]+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n(?:    #.*\n)*")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_requirement_of_a_lock_has_a_version_and_hashes(lock: Path) -> None:
    text = re.sub(r"^(?:#.*\n)+", "", lock.read_text())
    assert ENTRY.search(text) and not ENTRY.sub("", text).strip(), ENTRY.sub("", text)[:200]


@pytest.mark.parametrize("name", ["Makefile", "Dockerfile"])
def test_installs_from_an_index_check_hashes(name: str) -> None:
    text = (ROOT / name).read_text().replace("\\\n", " ").replace("$(LOCKED)", "install --no-deps --require-hashes")
    calls = re.findall(r"pip (?:install|wheel|download)\b[^&|;\n]*", re.sub(r"(?m)^\s*#.*$", "", text))
    assert len(calls) > 5
    for call in calls:
        local = "--no-index" in call or "--editable ." in call
        assert "--no-deps" in call and ("--require-hashes" in call or local), call


def test_starlette_is_one_that_does_not_build_its_path_from_the_host_header() -> None:
    """Before 1.0.1 a Host header with a path changed request.url."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    ranges = [Requirement(text) for names in extras.values() for text in names if text.startswith("starlette")]
    assert len(ranges) == 2 and all(not one.specifier.contains("1.0.0") for one in ranges)
    for lock in LOCKS:
        for pin in re.findall(r"(?m)^starlette==(\S+)", lock.read_text()):
            assert Version(pin) >= Version("1.0.1"), lock.name
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.yaml")]
    assert not [page for page in pages if re.search(r"pip install.*\bstarlette (?!>)", page.read_text())]


def test_pytorch_is_installed_without_what_it_loads_on_a_gpu_only() -> None:
    """A gigabyte in each environment that has PyPI's build: Triton, and the solver that only tensors on a GPU use."""
    names = {path.name: set(re.findall(r"(?m)^([\w.-]+)==", path.read_text())) for path in LOCKS}
    assert names["cuda.txt"] and all(name.startswith("nvidia-") for name in names["cuda.txt"])
    assert "nvidia-cusolver" not in names["cuda.txt"]
    assert {name for name, pins in names.items() if "triton" in pins} == {"sglang.txt"}
