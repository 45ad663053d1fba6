"""Sources of prompt tokens: of a hit, whose text it is; of a miss, why no cache had it.

The words are those of a live engine (`eviction_client.observability.misses`), which `lpc report` prints. The same requests use
all blocks of a segment, so it has one record.
"""

from typing import Final

from eviction_client.observability.misses import UNUSED
from eviction_client.policy.request import gap_class
from lpc_apps.simulator.segments import Path, Segment
from lpc_apps.simulator.workload import Turn

HITS: Final = ("shared", "own")
"""- ``shared``: blocks that several conversations have used, such as a system prompt.
- ``own``: blocks that only this conversation has used: its history."""
MISSES: Final = ("evicted", "changed", "new", "short")
"""- ``evicted``: an earlier request used the block.
- ``changed``: no request has used it, and the conversation's previous request had another block at this position.
- ``new``: no request has used it.
- ``short``: the incomplete last block of a prompt, or its last full block, because engines compute at least one token."""


class _Use:
    """Last use of a segment.

    Attributes:
        at: seconds.
        by: the only conversation that has used it; None if there are several.
    """

    __slots__ = ("at", "by")

    def __init__(self, at: float, by: str) -> None:
        self.at = at
        self.by: str | None = by


class Sources:
    """Counts the tokens of prompts by source. Its memory is unbounded, as the log's length is known.

    Attributes:
        tokens: prompt tokens by source, one of HITS or MISSES.
        unused: evicted tokens by the time since the last request with their blocks started; see `misses.UNUSED`.
    """

    def __init__(self, block_tokens: int) -> None:
        self.tokens: dict[str, int] = dict.fromkeys((*HITS, *MISSES), 0)
        self.unused: dict[str, int] = dict.fromkeys(UNUSED, 0)
        self._size = block_tokens
        self._used: dict[Segment, _Use] = {}
        self._lengths: dict[str, int] = {}

    def start(self, turn: Turn, path: Path, hits: int, servable: int, now: float, *, counted: bool) -> int:
        """Record the start of a request; return its evicted tokens.

        Args:
            hits: blocks at the start of its prompt that the cache serves.
            servable: blocks of its prompt that a cache may serve.
            counted: whether its tokens count, or only what it used.
        """
        used, conversation = self._used, turn.conversation
        shared = evicted = unknown = changed = 0
        length = self._lengths.get(conversation, 0)
        for segment in path:
            use = used.get(segment)
            if use is None:
                used[segment] = _Use(now, conversation)
            else:
                unused, use.at = now - use.at, now
                if use.by != conversation:
                    use.by = None
            depth = segment.depth
            if depth >= servable:
                continue
            end = min(depth + segment.size, servable)
            if depth < hits:
                if use is not None and use.by is None:
                    shared += min(end, hits) - depth
                if end <= hits:
                    continue
                depth = hits
            if use is not None:
                evicted += end - depth
                if counted:
                    self.unused[UNUSED[gap_class(unused) - 1]] += (end - depth) * self._size
            else:
                unknown += end - depth
                changed += max(min(end, length) - depth, 0)
        self._lengths[conversation] = len(turn.all_contents)
        if counted:
            size, tokens = self._size, self.tokens
            tokens["shared"] += shared * size
            tokens["own"] += (hits - shared) * size
            tokens["evicted"] += evicted * size
            tokens["changed"] += changed * size
            tokens["new"] += (unknown - changed) * size
            tokens["short"] += turn.input_tokens - servable * size
        return evicted * self._size
