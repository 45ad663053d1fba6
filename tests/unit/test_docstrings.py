"""Docstrings and comments name modules and files that exist."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (
    *("lpc", "lpc_apps", "lpc_cli", "eviction_client", "predictor_service", "response_cache"),
    *("testing", "benchmarks", "tests"),
)
FOLDERS: Final = (*PACKAGES, "docs", "deploy", "proto", "clients")
PROTOCOLS: Final = "".join(file.read_text() for file in sorted((ROOT / "proto").rglob("*.proto")))
STUBS: Final = ("lpc/v1", "lpc/cache")
"""Generated from `proto/`, with the comments of their generator."""
ELSEWHERE: Final = {"benchmarks/profiler_utils.py"}
"""Files of other projects in folders that are named like ours."""
MODULE: Final = re.compile(rf"(?<![\w./-])(?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+")
FILE: Final = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./-]*\w")


def prose(source: str) -> Iterator[str]:
    """Yield the docstrings, also those of attributes, and the comments of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


@cache
def identifiers(file: Path) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", file.read_text()))


def exists(name: str) -> bool:
    """Return whether a dotted name is a module, a name in one, or a message or service of `proto/`."""
    parts = name.split(".")
    if name.startswith(("lpc.v1.", "lpc.cache.v1.")):
        return re.search(rf"\b(?:message|service|enum) {parts[-1]}\b", PROTOCOLS) is not None
    for length in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:length])
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if file.exists():
            return set(parts[length:]) <= identifiers(file)
    return False


def dead(text: str) -> list[str]:
    """Return the modules and files that a text names and that do not exist."""
    modules = [found for found in MODULE.findall(text) if not exists(found)]
    return modules + [found for found in FILE.findall(text) if found not in ELSEWHERE and not (ROOT / found).exists()]


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_and_comments_name_modules_and_files_that_exist(package: str) -> None:
    files = [file for file in (ROOT / package).rglob("*.py") if not file.relative_to(ROOT).as_posix().startswith(STUBS)]
    found = [(str(file.relative_to(ROOT)), name) for file in files for text in prose(file.read_text()) for name in dead(text)]
    assert files
    assert found == []


def test_dead_names_are_found() -> None:
    source = (
        '"""See `lpc.wire.nowhere`, lpc_apps.logs.log.Log and docs/none.md."""\nA = 1\n"""As lpc.v1.Nothing."""\n# tests/a.py\n'
    )
    found = [name for text in prose(source) for name in dead(text)]
    assert found == ["lpc.wire.nowhere", "docs/none.md", "lpc.v1.Nothing", "tests/a.py"]
