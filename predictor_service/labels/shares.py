"""Turns in order of arrival, of which clients hold equal shares: of too many, the client with most of them loses its oldest."""

from collections import OrderedDict
from collections.abc import Iterator

from predictor_service.labels.turn import Turn


class SharedTurns:
    """Turns of several clients, oldest first. Not thread-safe."""

    def __init__(self) -> None:
        self._turns: OrderedDict[Turn, None] = OrderedDict()
        self._of_client: dict[str, OrderedDict[Turn, None]] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, turn: object) -> bool:
        return turn in self._turns

    def __iter__(self) -> Iterator[Turn]:
        return iter(self._turns)

    def add(self, turn: Turn) -> None:
        """Add a turn as the latest one."""
        self._turns[turn] = None
        self._of_client.setdefault(turn.sent.client, OrderedDict())[turn] = None

    def discard(self, turn: Turn) -> None:
        """Remove a turn if it is here."""
        if turn not in self._turns:
            return
        del self._turns[turn]
        own = self._of_client[turn.sent.client]
        del own[turn]
        if not own:
            del self._of_client[turn.sent.client]

    def surplus(self) -> Turn:
        """Return the oldest turn of the client with most turns."""
        most = max(self._of_client, key=lambda client: len(self._of_client[client]))
        return next(iter(self._of_client[most]))

    def clear(self) -> None:
        """Remove all turns."""
        self._turns.clear()
        self._of_client.clear()
