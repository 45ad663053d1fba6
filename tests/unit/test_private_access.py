"""Tests ask the code through its public names: a count of the private ones that they still use.

Counted are private names (one underscore) of other modules' objects:

- an attribute: ``queue._runs``, once for each private name in a chain,
- a name or module in an import: ``from lpc.files import _MOUNTS``,
- a name in a string that is set, read, deleted or replaced: ``monkeypatch.setattr(files, "_MOUNTS", ...)``.

Not counted are ``self._x``, ``cls._x`` and ``super()._x``, which are a test's own; the methods of named tuples; and
`os._exit`, which Python documents. Names of vLLM, SGLang and PyTorch without a public equivalent stand once, in
`testing/engine_internals.py`; in tests they count like others.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
MOST: Final = 60
"""Private accesses of all tests. It may only fall."""
ENGINES: Final = "testing/engine_internals.py"
PUBLIC: Final = {"_replace", "_asdict", "_fields", "_make", "_field_defaults", "_exit"}
BY_NAME: Final = {"setattr", "getattr", "delattr", "hasattr", "attrgetter", "patch", "object"}
"""Functions that take the name of an attribute as a string."""


def is_private(name: str) -> bool:
    return name.startswith("_") and name.strip("_") != "" and not name.endswith("__") and name not in PUBLIC


def private_in(dotted: str) -> int:
    return sum(map(is_private, dotted.split(".")))


def is_own(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        node = node.func
        return isinstance(node, ast.Name) and node.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def accesses(source: str) -> Iterator[int]:
    """Yield the line of each private access."""
    for node in ast.walk(ast.parse(source)):
        count = 0
        if isinstance(node, ast.Attribute):
            count = is_private(node.attr) and not is_own(node.value)
        elif isinstance(node, ast.Import):
            count = sum(private_in(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            count = private_in(node.module or "") + sum(is_private(alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in BY_NAME:
            names = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            count = sum(private_in(name) for name in names if name.replace(".", "").isidentifier())
        yield from [node.lineno] * count if count else ()


def found_in(folder: str) -> list[str]:
    return [
        f"{file.relative_to(ROOT)}:{line}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        if file.relative_to(ROOT).as_posix() != ENGINES
        for line in accesses(file.read_text())
    ]


def test_private_accesses_become_fewer() -> None:
    found = found_in("tests") + found_in("benchmarks/tests")
    assert len(found) == MOST, "lower MOST, or use a public name:\n" + "\n".join(found)


def test_private_names_of_engines_stand_in_one_module() -> None:
    assert found_in("testing") == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("queue._runs", 1),
        ("client._channel._probed_at", 2),
        ("from lpc.files import _MOUNTS, writing", 1),
        ("from lpc._hidden import writing", 1),
        ("import lpc._hidden", 1),
        ('monkeypatch.setattr(files, "_MOUNTS", x)', 1),
        ('monkeypatch.setattr("lpc.files._MOUNTS", x)', 1),
        ('patch.object(checks, "_redis", x)', 1),
        ("self._runs.length + cls._count + super()._runs", 0),
        ("self._queue._runs", 1),
        ("record._replace(a=1)", 0),
        ("os._exit(1)", 0),
        ("one.__class__.__name__", 0),
        ("for _, a in b: _(a)", 0),
        ('print("_not a name_")', 0),
    ],
)
def test_each_way_to_a_private_name_counts(source: str, count: int) -> None:
    assert len(list(accesses(source))) == count
