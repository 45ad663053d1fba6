"""Lines of the log that are written once in an engine's life, over all connections."""

import logging

logger = logging.getLogger("eviction_client")


class Said:
    """Remembers what has been said. Its kinds are few, so it is bounded."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def once(self, what: str, level: int, text: str, *values: object) -> None:
        """Log, unless a line of this kind has been written."""
        if what not in self._said:
            self._said.add(what)
            logger.log(level, "learned prefix cache: " + text, *values)
