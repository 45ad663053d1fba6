"""Nearest stored questions by cosine similarity within a partition.

The search scans a partition's vectors with numpy. It takes 0.7 ms for 10,000 vectors of 384 dimensions (embedding the question
takes 10 ms) and 20 ms for 100,000, during which the event loop is blocked.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


class PartitionIndex:
    """Vectors by partition. Not thread-safe.

    Invariants: an entry is in one partition at most; empty partitions are deleted.
    """

    def __init__(self) -> None:
        self._partitions: dict[bytes, _Partition] = {}
        self._partition_of: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._partition_of)

    def add(self, partition: bytes, entry: bytes, vector: NDArray[Any], expires_at: float) -> None:
        """Add or replace an entry.

        Args:
            partition: the only partition in which it is found.
            entry: id of the entry.
            vector: [dimensions], unit length.
            expires_at: expiry, on the clock of :meth:`nearest`'s ``now``.
        """
        self.remove(entry)
        found = self._partitions.get(partition)
        if found is None:
            found = self._partitions[partition] = _Partition(len(vector))
        found.add(entry, vector, expires_at)
        self._partition_of[entry] = partition

    def remove(self, entry: bytes) -> None:
        """Remove an entry if it exists."""
        partition = self._partition_of.pop(entry, None)
        if partition is None:
            return
        found = self._partitions[partition]
        found.remove(entry)
        if not found.entries:
            del self._partitions[partition]

    def nearest(self, partition: bytes, vector: NDArray[Any], k: int, now: float) -> list[tuple[bytes, float]]:
        """Return ids and cosine similarities of the ``k`` nearest entries that have not expired, nearest first."""
        found = self._partitions.get(partition)
        return [] if found is None else found.nearest(np.asarray(vector, np.float32), k, now)

    def expire(self, now: float) -> int:
        """Remove expired entries; return how many."""
        expired = [entry for found in self._partitions.values() for entry in found.expired(now)]
        for entry in expired:
            self.remove(entry)
        return len(expired)


@dataclass(slots=True)
class _Partition:
    """One partition. The first len(entries) rows of its arrays are in use, in no order."""

    dimensions: int
    entries: list[bytes] = field(default_factory=list)
    rows: dict[bytes, int] = field(default_factory=dict)
    vectors: NDArray[np.float32] = field(init=False)
    ends: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.vectors = np.empty((1, self.dimensions), np.float32)
        self.ends = np.empty(1, np.float64)

    def add(self, entry: bytes, vector: NDArray[Any], expires_at: float) -> None:
        row = len(self.entries)
        if row == len(self.vectors):
            self.vectors = np.concatenate([self.vectors, np.empty_like(self.vectors)])
            self.ends = np.concatenate([self.ends, np.empty_like(self.ends)])
        self.vectors[row], self.ends[row] = vector, expires_at
        self.entries.append(entry)
        self.rows[entry] = row

    def remove(self, entry: bytes) -> None:
        row, last = self.rows.pop(entry), len(self.entries) - 1
        moved = self.entries.pop()
        if row != last:
            self.vectors[row], self.ends[row] = self.vectors[last], self.ends[last]
            self.entries[row], self.rows[moved] = moved, row

    def expired(self, now: float) -> list[bytes]:
        return [self.entries[row] for row in np.flatnonzero(self.ends[: len(self.entries)] <= now)]

    def nearest(self, vector: NDArray[np.float32], k: int, now: float) -> list[tuple[bytes, float]]:
        used = len(self.entries)
        scores = self.vectors[:used] @ vector
        scores[self.ends[:used] <= now] = -np.inf
        best = np.argpartition(scores, used - k)[used - k :] if k < used else np.arange(used)
        best = best[np.argsort(-scores[best], kind="stable")]
        return [(self.entries[row], float(score)) for row, score in zip(best, scores[best], strict=True) if np.isfinite(score)]
