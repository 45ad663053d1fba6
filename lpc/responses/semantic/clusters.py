"""Which labels hang together: those of one stored question, and of the questions that were found to mean the same.

Sixty rewordings of one question that fit its answer say one thing sixty times. Where a label says `same`, the new question
joins its candidate's cluster; the labels of a cluster are taken as fully dependent (the design effect of cluster sampling,
Kish 1965). In memory, and bounded: what was forgotten begins a new cluster.
"""

from collections import OrderedDict
from typing import Final

REMEMBERED: Final = 100_000


class Clusters:
    """Clusters of entries by their ids. Not thread-safe."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._roots: OrderedDict[bytes, bytes] = OrderedDict()
        self._labels: OrderedDict[bytes, int] = OrderedDict()
        self._remembered = remembered

    def count(self, candidate: bytes, *, same: bool, entry: bytes | None = None) -> int:
        """Count a label of a candidate; return the how-many-th of its cluster it is, from 1 on.

        Args:
            candidate: the id of the entry that would have been served.
            same: what the label says.
            entry: the id under which the engine's own answer was stored, where it was.
        """
        root = self._roots.get(candidate, candidate)
        if same and entry is not None and entry != candidate:
            _keep(self._roots, entry, root, self._remembered)
        nth = self._labels.get(root, 0) + 1
        _keep(self._labels, root, nth, self._remembered)
        return nth


def _keep(memory: "OrderedDict[bytes, bytes] | OrderedDict[bytes, int]", key: bytes, value: bytes | int, size: int) -> None:
    memory[key] = value  # type: ignore[assignment]
    memory.move_to_end(key)
    if len(memory) > size:
        memory.popitem(last=False)
