"""The size of a trace's blocks, which its records do not name: found by the lengths of prompts and their numbers of ids."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

from lpc_apps.logs.records import Skipped, read_records
from lpc_apps.logs.traces.request import ids_of, in_order, tokens

SIZED_BY: Final = 1_000
"""Records that decide."""
LARGEST: Final = 1 << 16
"""Tokens of the largest block that is considered."""


def block_tokens_of(path: Path, published: int, arrival: Callable[[dict[str, Any]], float] = lambda _: 0.0) -> int:
    """Return the tokens of a block that fit the lengths of most of the first records that are kept. Raises TraceError.

    Args:
        published: see below.
        arrival: returns a record's time, and raises WrongRecord for what its reader skips whatever the size is.

    An export of `lpc_apps.logs.traces.anonymous` names its size, and then the first record decides.

    A prompt of L tokens with n ids has blocks of more than L / (n + 1) and fewer than L / (n - 1) tokens: its last, partial
    block may have an id or not. Of equally good sizes it is ``published``, or the one that the highest power of two divides.
    """

    def parse(record: dict[str, Any]) -> list[tuple[float, int, int, int | None]]:
        return [(arrival(record), *_lengths(record))]

    kept = in_order(islice(read_records(path, parse, Skipped()), SIZED_BY), lambda found: found[:1], Skipped())
    return fitting_size((found[1:] for found in kept), published)


def fitting_size(lengths: Iterable[tuple[int, int, int | None]], published: int) -> int:
    """Return the tokens of a block that fit most prompts: their tokens, numbers of ids, and tokens of a block if known."""
    changes = Counter[int]()
    for length, count, named in lengths:
        if named is not None:
            return named
        low, high = length // (count + 1) + 1, -(-length // (count - 1)) if count > 1 else LARGEST + 1
        if count and low < high <= LARGEST + 1:
            changes[low] += 1
            changes[high] -= 1
    fits = most = 0
    best: list[range] = []
    for size, following in pairwise(sorted(changes)):
        fits += changes[size]
        if fits > most:
            most, best = fits, []
        if fits == most:
            best.append(range(size, following))
    found = (size for sizes in best for size in sizes)
    return max(found, key=lambda size: (size == published, size & -size, -size), default=published)


def _lengths(record: dict[str, Any]) -> tuple[int, int, int | None]:
    length, ids = tokens(record, "input_length", 1), ids_of(record, "hash_ids")
    return length, len(ids), tokens(record, "block_size", 1) if "block_size" in record else None
