"""An infinite prefix cache of units: how many characters of a prompt an earlier prompt, or its reply, began with."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lpc_apps.logs.traces.chat import BLOCK_CHARS
from lpc_apps.why.prompts import Unit


class Entry(NamedTuple):
    """A unit of a prompt to replay. ``own``: characters of it that the logged prompt has as well."""

    unit: Unit
    own: int


class _Node:
    __slots__ = ("children", "starts")

    def __init__(self) -> None:
        self.children: dict[Unit, _Node] = {}
        self.starts: set[int] = set()
        """Hashes of the starts of children up to each end of a block."""


class PrefixCache:
    """Prompts as a tree of units. Blocks of BLOCK_CHARS characters are cut from the prompt's start, as in `lpc simulate`."""

    def __init__(self) -> None:
        self._roots: dict[tuple[str, ...], _Node] = {}

    def hit(self, scope: tuple[str, ...], entries: Sequence[Entry]) -> int:
        """Return the cached characters of a prompt that the logged one has as well, in whole blocks of it."""
        node = self._roots.get(scope)
        at = own = 0
        for unit, of_log in entries:
            child = None if node is None else node.children.get(unit)
            if child is None:
                if node is not None:
                    common = 0
                    for end, start in _starts(unit, at):
                        if start not in node.starts:
                            break
                        common = end
                    own += min(common, of_log)
                break
            node, at, own = child, at + unit.length, own + of_log
        return own // BLOCK_CHARS * BLOCK_CHARS

    def add(self, scope: tuple[str, ...], entries: Sequence[Entry], reply: Sequence[Unit]) -> None:
        """Cache a prompt and its reply."""
        node, at = self._roots.setdefault(scope, _Node()), 0
        for unit in (*(entry.unit for entry in entries), *reply):
            child = node.children.get(unit)
            if child is None:
                child = node.children[unit] = _Node()
                node.starts.update(start for _, start in _starts(unit, at))
            node, at = child, at + unit.length


def _starts(unit: Unit, at: int) -> Iterator[tuple[int, int]]:
    """Yield the ends of blocks in a unit that begins at a depth, in characters, with a hash of the unit up to each."""
    text, before, hashed = unit.text, 0, 0
    for end in range(BLOCK_CHARS - at % BLOCK_CHARS, len(text) + 1, BLOCK_CHARS):
        hashed = hash((hashed, text[before:end]))
        before = end
        yield end, hashed
