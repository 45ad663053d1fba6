"""The size of a trace's blocks, which its records do not name: found by the lengths of prompts and their numbers of ids."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

from lpc_apps.logs.records import MISFIT_SHARE, Skipped, TraceError, read_records
from lpc_apps.logs.traces.request import ids_of, in_order, tokens

SIZED_BY: Final = 1_000
"""Records that decide."""
LARGEST: Final = 1 << 16
"""Tokens of the largest block that is considered."""
ALIKE_SHARE: Final = 0.98
"""Share of the prompts that fit a size at all, from which on partial last blocks count as alike in all of them."""
_TENS: Final = tuple(digit * power for power in (1, 10, 100, 1_000, 10_000) for digit in (1, 2, 5))
DOMINANT: Final = 4
"""Times by which the roundest size is rounder than another one that then does not count."""
CLOSE: Final = 0.02
"""Share of a size by which likely sizes may differ: hits differ by as much at most."""


def block_tokens_of(path: Path, published: int, arrival: Callable[[dict[str, Any]], float] = lambda _: 0.0) -> int:
    """Return the tokens of a block that fit the lengths of most of the first records that are kept.

    Args:
        published: see below.
        arrival: returns a record's time, and raises WrongRecord for what its reader skips whatever the size is.

    An export of `lpc_apps.logs.traces.anonymous` names its size, and then the first record decides.

    A prompt of L tokens with n ids has blocks of more than L / (n + 1) and fewer than L / (n - 1) tokens: its last, partial
    block may have an id or not. Mostly it is alike in all prompts of a trace, which halves this range and more.
    Of equally good sizes it is ``published``, a power of two, or the roundest one.

    Raises:
        TraceError: the records cannot be read, or sizes that differ by more than CLOSE fit equally well.
    """

    def parse(record: dict[str, Any]) -> list[tuple[float, int, int, int | None]]:
        return [(arrival(record), *_lengths(record))]

    kept = in_order(islice(read_records(path, parse, Skipped()), SIZED_BY), lambda found: found[:1], Skipped())
    return fitting_size(path, (found[1:] for found in kept), published)


def fitting_size(path: Path, lengths: Iterable[tuple[int, int, int | None]], published: int) -> int:
    """Return the tokens of a block that fit most prompts: their tokens, numbers of ids, and tokens of a block if known.

    Raises TraceError: see `block_tokens_of`.
    """
    prompts: list[tuple[int, int]] = []
    for length, count, named in lengths:
        if named is not None:
            return named
        prompts += [(length, count)] if count else []
    most, mixed = _best(prompts, partial=None)
    alike = (_best(prompts, partial=partial) for partial in (True, False))
    sizes = [size for fits, found in alike if fits >= ALIKE_SHARE * most for size in found] or mixed
    best = max(sizes, key=lambda size: (size == published, _is_power(size), _roundness(size), -size), default=published)
    if best == published or _is_power(best) or most < (1 - MISFIT_SHARE) * len(prompts):
        return best  # the reader refuses a trace whose other prompts it must leave out
    # Another round size, such as 500 next to 480, may be as likely.
    rivals = [size for size in sizes if DOMINANT * _roundness(size) > _roundness(best)]
    if max(rivals) - min(rivals) > CLOSE * best:
        raise TraceError(
            f"blocks of {min(sizes)} to {max(sizes)} tokens fit input_length and hash_ids of {path}: write their size in each "
            "row as block_size, or give more of the trace"
        )
    return best


def _best(prompts: Iterable[tuple[int, int]], *, partial: bool | None) -> tuple[int, list[int]]:
    """Return the largest number of prompts that a size fits, and the sizes that fit as many.

    Args:
        partial: whether a partial last block has an id; None: of some prompts.
    """
    changes = Counter[int]()
    for length, count in prompts:
        low = -(-length // count) if partial else length // (count + 1) + 1
        high = length // count + 1 if partial is False else -(-length // (count - 1)) if count > 1 else LARGEST + 1
        if low < high <= LARGEST + 1:
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
    return most, [size for sizes in best for size in sizes]


def _is_power(size: int) -> bool:
    return size & (size - 1) == 0


def _roundness(size: int) -> int:
    """Return the largest power of two, or 1, 2 or 5 times a power of ten, that divides a size."""
    return max(size & -size, *(one for one in _TENS if size % one == 0))


def _lengths(record: dict[str, Any]) -> tuple[int, int, int | None]:
    length, ids = tokens(record, "input_length", 1), ids_of(record, "hash_ids")
    return length, len(ids), tokens(record, "block_size", 1) if "block_size" in record else None
