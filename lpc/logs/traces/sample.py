"""Spatial sampling of logs that are too large for memory: 1 in N conversations, for a cache of 1/N of the size.

A keyed hash of the conversation decides, so all its requests are in the sample or none is. Between two uses of a block then lie
1/N of the other blocks, and LRU hits in a cache of 1/N of the size what it hits in the whole one (SHARDS: Waldspurger et al.,
"Efficient MRC Construction with SHARDS", FAST'15). Blocks that many conversations share take N times their part of the cache.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from lpc.logs.records import DAMAGED, OtherRecord, log_files, unpacked

MOST_REQUESTS: Final = 1_000_000
"""Requests of a log that is read as a whole; they take about 2 GB."""
LEAST_BYTES: Final = 20
"""Of a record in a compressed file. Smaller files are not counted."""
_PIECE: Final = 1 << 20


@dataclass(frozen=True)
class Sample:
    """1 in ``every`` conversations; 1: all. ``seed``: key of the hash."""

    every: int = 1
    seed: int = 0

    def check(self, conversation: Hashable) -> None:
        """Raise OtherRecord if a conversation is not in the sample."""
        if self.every > 1:
            found = blake2b(repr(conversation).encode("utf-8", "replace"), digest_size=8, key=str(self.seed).encode()).digest()
            if int.from_bytes(found, "big") % self.every:
                raise OtherRecord(f"not in the sample of 1 in {self.every} conversations")


WHOLE: Final = Sample()


def every_for(path: Path, most: int = MOST_REQUESTS) -> int:
    """Return N so that 1 in N of a log's lines are at most ``most``. Raises OSError, DatasetError."""
    files = log_files(path)
    if sum(file.stat().st_size for file in files) < LEAST_BYTES * most:
        return 1
    lines = 0
    for file in files:
        try:
            with unpacked(file) as stream:
                while piece := stream.read(_PIECE):
                    lines += piece.count(b"\n")
        except DAMAGED:
            continue
    return max(1, -(-lines // most))
