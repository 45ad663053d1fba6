"""Files that are read again when they change: certificates and tokens."""

from collections.abc import Sequence
from pathlib import Path


class WatchedFiles:
    """Tells whether files changed since they were last looked at: replaced, written, gone or back."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._seen: object = self._state()

    def changed(self) -> bool:
        """Look, and remember what was seen."""
        state = self._state()
        changed, self._seen = state != self._seen, state
        return changed

    def look_again(self) -> None:
        """Let the next look find a change: what was read may be half of one."""
        self._seen = None

    def _state(self) -> object:
        states: list[tuple[int, int, int] | None] = []
        for path in self._paths:
            try:
                found = path.stat()
            except OSError:
                states.append(None)
            else:
                states.append((found.st_ino, found.st_mtime_ns, found.st_size))
        return states
