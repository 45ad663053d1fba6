"""What tiers served and prefetched."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


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
