"""The cached prefix of a prompt."""

from collections.abc import Callable


def cached_prefix(cached: Callable[[int], bool], length: int, known: int) -> int:
    """Return how many blocks of a chain are cached from its start: 2 lookups if unchanged, else a binary search.

    Chains lose their end first. For a chain with a hole the result is the end of one of its cached gap spans.

    Args:
        cached: returns whether the block with this index is in the cache.
        length: number of blocks in the chain.
        known: the previous result, where the search starts.
    """
    low, high = min(known, length), length + 1
    # Invariant from here on: block low - 1 is cached (or low is 0), and block high - 1 is not (or does not exist).
    if low and not cached(low - 1):
        step, high = 1, low
        while True:
            low = max(high - step, 0)
            if not low or cached(low - 1):
                break
            high = low
            step *= 2
    else:
        step = 1
        while low < length:
            probe = min(low + step, length)
            if not cached(probe - 1):
                high = probe
                break
            low = probe
            step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if cached(middle - 1):
            low = middle
        else:
            high = middle
    return low
