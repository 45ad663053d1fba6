"""One tier behind the cache (CPU memory, disk), the link from it, and what it served."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lpc.simulator.tiers.order import Order


@dataclass
class TierFigures:
    """What the tiers of one engine, or several, served. Tokens, of requests that arrived while hits were counted.

    Attributes:
        loaded: by tier.
        prefetched: moved before they were asked for.
        used: of these, loaded by a request from where they had been brought.
        returning: seconds to the first token, of turns after their conversation's first.
        waited_s: seconds that requests waited for loads.
    """

    loaded: dict[str, int] = field(default_factory=dict)
    prefetched: int = 0
    used: int = 0
    returning: list[float] = field(default_factory=list, repr=False)
    waited_s: float = 0.0

    def figures(self, prompt_tokens: int, seconds: float) -> dict[str, Any]:
        """Return plain numbers. ``seconds``: during which hits were counted."""
        times = np.array(self.returning) if self.returning else np.zeros(1)
        return {
            "tiers": {name: count / max(prompt_tokens, 1) for name, count in self.loaded.items()},
            "prefetched_tokens": self.prefetched,
            "prefetched_tokens_s": self.prefetched / max(seconds, 1e-9),
            "prefetch_used": self.used / self.prefetched if self.prefetched else None,
            "prefetch_useless_tokens": self.prefetched - self.used,
            "ttft_returning_mean_s": float(times.mean()),
            "ttft_returning_p50_s": float(np.quantile(times, 0.5)),
            "ttft_returning_p99_s": float(np.quantile(times, 0.99)),
            "load_wait_s": self.waited_s,
        }


class Link:
    """A rate shared by all loads from one tier. Loads that requests wait for follow one another.

    Prefetches use the time in which nobody waits. Nobody waits for a prefetched block that has begun, either (10 ms at 512
    tokens and 50,000 tokens a second): a simplification.

    Args:
        tokens_s: per second.
        latency_s: seconds until the first of a load is there; loads under way hide that of those behind them.
    """

    def __init__(self, tokens_s: float, latency_s: float) -> None:
        self.tokens_s = tokens_s
        self.latency_s = latency_s
        self._busy_until = 0.0
        self._given_until = 0.0

    def load(self, tokens: int, now: float) -> float:
        """Return when a load asked for now is through, seconds."""
        self._busy_until = max(now, self._busy_until) + tokens / self.tokens_s
        return self._busy_until + self.latency_s

    def spare(self, now: float) -> float:
        """Return how many tokens prefetches could move from the last call until now. Call it before the loads of now."""
        start = max(self._given_until, self._busy_until)
        if now <= start:
            return 0.0
        self._given_until = now
        return (now - start) * self.tokens_s


class Tier:
    """Content ids of at most ``capacity`` blocks.

    Attributes:
        name: in tables.
        exclusive: what is loaded from it leaves it; else it stays, as in vLLM's CPU tier.
        order: says what goes first.
        link: the way from here.
    """

    def __init__(self, name: str, capacity: int, order: Order, link: Link, *, exclusive: bool = False) -> None:
        self.name = name
        self.exclusive = exclusive
        self.capacity = capacity
        self.order = order
        self.link = link
        self._contents: set[int] = set()

    def store(self, contents: Sequence[int], now: float, *, soon: bool = False) -> list[int]:
        """Take blocks in; return what is given up for them.

        Args:
            soon: they are needed within seconds.
        """
        here = self._contents
        known = [content for content in contents if content in here]
        new = [content for content in contents if content not in here]
        if known:
            self.order.touch(known, now)
        here.update(new)
        self.order.enter(new, now, soon=soon)
        over = len(here) - self.capacity
        if over <= 0:
            return []
        gone = self.order.evict(over, now)
        here.difference_update(gone)
        return gone

    def load(self, contents: Sequence[int], now: float) -> None:
        """Learn that blocks that are here were loaded."""
        if self.exclusive:
            self.order.leave(contents)
            self._contents.difference_update(contents)
        else:
            self.order.touch(contents, now)

    def __contains__(self, content: object) -> bool:
        return content in self._contents

    def __len__(self) -> int:
        return len(self._contents)
