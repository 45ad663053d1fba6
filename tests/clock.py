"""A manual clock."""


class Clock:
    """Call it for the time in seconds."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
