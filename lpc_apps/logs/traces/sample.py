"""Spatial sampling of logs that are too large for memory: 1 in N prefix families, for a cache of 1/N of the size.

Between two uses of a block lie 1/N of the log's other blocks, so LRU hits in 1/N of the cache what it hits in the whole one
(SHARDS: Waldspurger et al., "Efficient MRC Construction with SHARDS", FAST'15). All users of a block must be in the sample, or
none: a keyed hash of the *family* decides. That is the first part of a prompt (block or message) behind what many share, such
as a system prompt: otherwise an application would be in the sample as a whole, or not at all.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice, pairwise
from pathlib import Path
from typing import Final, TypeAlias

from lpc_apps.logs.records import DAMAGED, NotSampled, log_files, unpacked

MOST_REQUESTS: Final = 1_000_000
"""Requests of a log that is read as a whole; they take about 2 GB."""
LEAST_BYTES: Final = 20
"""Least size of a record in a compressed file. Smaller files are not counted."""
SHARED_AFTER: Final = 16
"""A prefix with more different successors is shared by many prompts."""
SHARED_BY: Final = 10_000
"""Prompts by which this is decided."""
Prompt: TypeAlias = Iterable[object]
"""The parts of a prompt, from its start; equal parts have equal ``repr``."""
_PIECE: Final = 1 << 20


@dataclass(frozen=True)
class Sample:
    """1 in ``every`` families; 1: all. ``seed``: key of the hash."""

    every: int = 1
    seed: int = 0

    def checker(self, first: Callable[[], Iterable[Prompt]]) -> Callable[[Prompt], None]:
        """Return a function that raises NotSampled for a prompt outside the sample.

        Args:
            first: returns the log's prompts, of which the first SHARED_BY show what many share.
        """
        if self.every == 1:
            return lambda _: None
        families = _Families(str(self.seed).encode(), islice(first(), SHARED_BY))

        def check(prompt: Prompt) -> None:
            if families.of(prompt) % self.every:
                raise NotSampled(f"not in the sample of 1 in {self.every}")

        return check


WHOLE: Final = Sample()


class _Families:
    """Finds the family of each prompt.

    A prefix is shared if over SHARED_AFTER different parts follow it. The family is the part behind the longest shared one.
    """

    def __init__(self, key: bytes, prompts: Iterable[Prompt]) -> None:
        self._key = key
        successors: dict[int, set[int]] = {}
        depth: dict[int, int] = {}
        for prompt in prompts:
            for at, (prefix, following) in enumerate(pairwise(self._prefixes(prompt))):
                known = successors.setdefault(prefix, set())
                if len(known) <= SHARED_AFTER:
                    known.add(following)
                depth[prefix] = at
        self._shared = {prefix for prefix, known in successors.items() if len(known) > SHARED_AFTER}
        self._depth = 1 + max((depth[prefix] for prefix in self._shared), default=-1)
        """Parts of the longest shared prefix."""

    def of(self, prompt: Prompt) -> int:
        """Return a family."""
        prefixes = list(islice(self._prefixes(prompt), self._depth + 1))
        behind = max((at for at, prefix in enumerate(prefixes, 1) if prefix in self._shared), default=0)
        return prefixes[min(behind, len(prefixes) - 1)] if prefixes else 0

    def _prefixes(self, prompt: Prompt) -> Iterator[int]:
        prefix = 0
        for part in prompt:
            digest = blake2b(repr((prefix, part)).encode("utf-8", "replace"), digest_size=8, key=self._key).digest()
            prefix = int.from_bytes(digest, "big")
            yield prefix


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
