"""Simulates an environment with fewer packages: a `sitecustomize` that hides packages from a process."""

import importlib.metadata
import re
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
OWN = "learned-prefix-cache"

HIDE = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_installed(name, path=None, target=None):
    return None if name.partition(".")[0] in {missing} else find(name, path, target)

PathFinder.find_spec = find_installed
"""


def hide_all_but(installed: Iterable[str], folder: Path) -> Path:
    """Write a `sitecustomize` for PYTHONPATH into a new folder: only these distributions and ours can be imported."""
    kept = {plain(name) for name in (*installed, OWN, "pip", "setuptools")}
    owners = importlib.metadata.packages_distributions()
    missing = {module for module, names in owners.items() if not {plain(name) for name in names} & kept}
    assert {"torch", "sklearn", "pytest"} <= missing
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HIDE.format(missing=missing))
    return folder


def pinned(requirements: str) -> set[str]:
    """Return the distributions pinned by a file of `requirements/`."""
    lines = (ROOT / "requirements" / requirements).read_text().splitlines()
    return {line.partition("==")[0] for line in lines if "==" in line}


def base_install() -> set[str]:
    """Return the distributions that `pip install learned-prefix-cache` installs without extras."""
    found: set[str] = set()
    asked = [OWN]
    while asked:
        name = asked.pop()
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if wanted and plain(requirement.name) not in found:
                found.add(plain(requirement.name))
                asked.append(requirement.name)
    return found


def plain(name: str) -> str:
    """Return a distribution's normalised name."""
    return re.sub(r"[-_.]+", "-", name).lower()
