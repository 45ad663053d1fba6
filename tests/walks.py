"""The walks of docs/explanation/architecture.md, measured: one value goes through the real code, and a profiler looks on.

A *file* is on a walk if one of its functions runs from the value's arrival to the result. A *type* is on it if an object of the
type arises on the way and two files hand it on, as an argument or result. Tests compare both with the page.
"""

import gc
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "explanation" / "architecture.md"
PACKAGES: Final = frozenset({"lpc", "lpc_apps", "lpc_cli", "eviction_client", "predictor_service", "response_cache"})
MESSAGES: Final = frozenset({"lpc.v1.predictor_pb2", "lpc.cache.v1.response_cache_pb2"})

AROUND: Final[Mapping[str, str]] = {
    "lpc.clock": "tells the time",
    "lpc.progress": "shows progress",
    "lpc.wire.terminal": "shows results",
    "lpc.wire.background": "runs rounds of its own",
    "predictor_service.process": "runs rounds of its own",
    "predictor_service.server": "runs rounds of its own",
    "predictor_service.serving": "loads new versions",
    "predictor_service.repository": "loads new versions",
    "lpc.files": "writes state",
    "lpc.wire.listening": "accepts connections",
    "lpc.wire.http_server": "accepts connections",
    "lpc.wire.redis_health": "notes whether Redis answers",
    "predictor_service.rpc.listening": "accepts connections",
    "predictor_service.rpc.health": "notes whether the service runs",
    "*.metrics": "counts",
    "*.plugin_metrics": "counts",
    "eviction_client.observability.*": "counts and logs what was decided",
    "eviction_client.pace": "yields the interpreter's lock",
    "eviction_client.background": "starts the thread",
    "eviction_client.operators_file": "looks for the operator's file",
    "lpc.v1.*": "generated",
    "lpc.cache.*": "generated",
}
"""Modules that run during a walk and do not touch its value, with what they do; a walk has more of its own."""


class Walk:
    """What runs in this process while it is followed.

    Args:
        around: further modules that do not touch the value, with what they do.
        aside: names of types that do not carry the value, with what they do.

    Attributes:
        modules: of the functions that ran. If values are followed one after the other, those that ran for each of them: what
            runs by the clock is not on the walk.
        types: modules that were handed an object of a type, by the type's module and name; likewise.
    """

    def __init__(self, around: Mapping[str, str] = {}, aside: Mapping[str, str] = {}) -> None:
        self.modules: set[str] = set()
        self.types: dict[tuple[str, str], set[str]] = {}
        self._ran: set[str] = set()
        self._handed: dict[tuple[str, str], set[str]] = {}
        self._values = 0
        self._around = {**AROUND, **around}
        self._aside = aside
        self._on = False
        self._objects: list[Any] = []
        """Objects of before the walk, which are not on it, and those seen since: while they live, their ids belong to them."""
        self._before: set[int] = set()

    def begin(self) -> None:
        """Note what exists: a value arrives now."""
        self._ran, self._handed = set(), {}
        self._objects = [one for one in gc.get_objects() if _module_of(type(one)) is not None]
        self._before = {id(one) for one in self._objects}
        self._on = True

    def end(self, *, counts: bool = True) -> None:
        """Stop: the result is there. ``counts``: whether it is the one that was wanted."""
        self._on = False
        if not counts:
            return
        if not self._values:
            self.modules, self.types = self._ran, self._handed
        self._values += 1
        self.modules = self.modules & self._ran
        self.types = {of: seen & self._handed.get(of, set()) for of, seen in self.types.items()}

    def files(self) -> set[str]:
        """Return the files on the walk, as paths from the root."""
        return {path_of(name) for name in self.modules if not self._is_around(name)}

    def type_names(self) -> list[str]:
        """Return the names of the types on the walk, the first met first. A name that two of them have is there twice."""
        return [name for (_, name), modules in self.types.items() if len(modules) > 1 and name not in self._aside]

    def _is_around(self, module: str) -> bool:
        return any(fnmatch(module, pattern) for pattern in self._around)

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        """Note a call or a return, as a profiler of `sys.setprofile`."""
        code = frame.f_code
        if not self._on or event not in ("call", "return") or not code.co_flags & CO_OPTIMIZED:
            return
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in PACKAGES:
            return
        self._ran.add(module)
        if event == "return":
            self._hand(value, module)
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for argument in map(frame.f_locals.get, names):
            self._hand(argument, module)

    def _hand(self, value: Any, module: str) -> None:
        for one in value[:3] if type(value) in (list, tuple) else (value,):
            of = _module_of(type(one))
            if of is not None and id(one) not in self._before:
                self._objects.append(one)
                self._handed.setdefault((of, type(one).__name__), set()).add(module)


def _module_of(kind: type) -> str | None:
    """Return the module of one of our classes; None: it is not ours."""
    module = kind.__module__
    return module if isinstance(module, str) and (module.partition(".")[0] in PACKAGES or module in MESSAGES) else None


@contextmanager
def following(walk: Walk) -> Iterator[None]:
    """Let a walk see this thread and all threads that start within the block."""
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        yield
    finally:
        threading.setprofile(None)
        sys.setprofile(None)


def path_of(module: str) -> str:
    """Return a module's file, as a path from the root."""
    path = Path(*module.split("."))
    return str(path / "__init__.py" if (ROOT / path).is_dir() else path.with_suffix(".py"))


def section(number: int) -> str:
    """Return the page's section on a walk."""
    _, _, rest = PAGE.read_text().partition(f"\n## Walk {number}:")
    return rest.partition("\n## ")[0]


def paths_of(text: str) -> set[str]:
    """Return the files that a text names: links to them, and paths in backquotes."""
    return {link or quoted for link, quoted in re.findall(r"\]\(\.\./\.\./([\w/]+\.py)\)|`([\w/]+\.py)`", text)}


def stated_files(number: int) -> set[str]:
    """Return the files that the page names for a walk."""
    return paths_of(section(number))


def stated_types(number: int) -> list[str]:
    """Return the types that the page names for a walk, in its order."""
    (line,) = re.findall(r"^Types, in order of the walk: (.*)$", section(number), re.MULTILINE)
    return re.findall(r"`(\w+)`", line)


def stated_counts(number: int) -> tuple[int, int]:
    """Return the numbers of files and types that the page states for a walk."""
    return counts_in(r"\*\*(\d+) files, (\d+) types\.\*\*", section(number))


def counts_in(pattern: str, text: str) -> tuple[int, int]:
    """Return the two numbers in the only match of a pattern."""
    ((files, types),) = re.findall(pattern, text)
    return int(files), int(types)


def compare(number: int, walk: Walk) -> list[str]:
    """Return how the page differs from a walk."""
    files, types = walk.files(), walk.type_names()
    stated = stated_types(number)
    found = [f"the page lacks the file {one}" for one in sorted(files - stated_files(number))]
    found += [f"{one} is not on the walk" for one in sorted(stated_files(number) - files)]
    found += [f"the page lacks the type {one}" for one in (Counter(types) - Counter(stated)).elements()]
    found += [f"{one} is not handed on" for one in (Counter(stated) - Counter(types)).elements()]
    if stated_counts(number) != (len(files), len(types)):
        found.append(f"the page states {stated_counts(number)} files and types, it is {(len(files), len(types))}")
    return found
