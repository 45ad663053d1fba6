"""Walks all objects that the plug-in's objects reach: a list of its tables could miss a new one."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import CellType, FunctionType, MethodType
from typing import Any, Final

OURS: Final = ("eviction_client", "lpc", "lpc_apps", "predictor_service", "response_cache")
_CONTAINERS: Final = (dict, list, tuple, set, frozenset, deque)


def reached(root: object, *, beyond: Iterable[object] = ()) -> Iterator[tuple[str, object]]:
    """Yield each object that is reachable from ``root``, once for each object that refers to it, with its path.

    Goes through containers, closures, bound methods and objects of the plug-in, not through other objects.

    Args:
        beyond: objects at which the walk ends.
    """
    ends = {id(one) for one in beyond}
    seen = {id(root): root}  # also keeps them, so that no id is used again
    left: deque[tuple[str, object]] = deque([("", root)])
    yield "", root
    while left:
        path, one = left.popleft()
        for name, other in _parts(one):
            if id(other) in ends:
                continue
            yield path + name, other
            if id(other) not in seen:
                seen[id(other)] = other
                left.append((path + name, other))


def names_in(root: object, is_name: Callable[[object], bool]) -> dict[str, object]:
    """Return what is reachable from ``root`` and accepted, by path."""
    return {path: one for path, one in reached(root) if is_name(one)}


def weigh(root: object, *, beyond: Iterable[object] = ()) -> int:
    """Return the bytes of all objects that are reachable from ``root``. ``beyond``: see :func:`reached`."""
    return sum(map(sys.getsizeof, {id(one): one for _, one in reached(root, beyond=beyond)}.values()))


def lengths(root: object, *, beyond: Iterable[object] = ()) -> dict[str, int]:
    """Return the lengths of all containers that can grow and are reachable from ``root``, by path.

    Args:
        beyond: see :func:`reached`.
    """
    return {path: len(one) for path, one in reached(root, beyond=beyond) if isinstance(one, dict | list | set | deque)}


def tables(root: object, *, beyond: Iterable[object] = ()) -> dict[str, int]:
    """Return the bytes of each container that is reachable from ``root``, by path: itself, its keys, and plain values in it."""
    return {
        path: sys.getsizeof(one) + sum(map(_bytes_of, _entries(one)))
        for path, one in reached(root, beyond=beyond)
        if isinstance(one, _CONTAINERS) and len(one) > 0
    }


def _entries(one: Any) -> Iterator[object]:
    if isinstance(one, dict):
        for entry in dict(one).items():
            yield from entry
    else:
        yield from list(one)


def _bytes_of(entry: object) -> int:
    if isinstance(entry, tuple):
        return sys.getsizeof(entry) + sum(map(_bytes_of, entry))
    return sys.getsizeof(entry) if isinstance(entry, str | bytes | int | float) else 0


def _parts(one: object) -> Iterator[tuple[str, object]]:
    if isinstance(one, MethodType):
        yield ".__self__", one.__self__
        one = one.__func__
    if isinstance(one, FunctionType):
        for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
            yield f"<{name}>", cell
    elif isinstance(one, CellType):
        try:
            yield "", one.cell_contents
        except ValueError:  # still empty
            return
    if isinstance(one, type):
        return
    # Of copies, since another thread may change a container during the walk.
    if isinstance(one, dict):
        for key, value in dict(one).items():
            yield "[key]", key
            yield f"[{type(key).__name__}]", value
    elif isinstance(one, _CONTAINERS):
        for value in list(one):
            yield "[]", value
    if type(one).__module__.partition(".")[0] in OURS:
        yield from ((f".{name}", value) for name, value in _attributes(one))


def _attributes(one: Any) -> Iterator[tuple[str, object]]:
    yield from dict(getattr(one, "__dict__", {})).items()
    for cls in type(one).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(one, name):
                yield name, getattr(one, name)
