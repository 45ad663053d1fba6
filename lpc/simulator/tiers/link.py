"""The way from a tier: what requests ask for goes first, prefetches have what is left of its time."""


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
