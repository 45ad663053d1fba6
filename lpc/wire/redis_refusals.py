"""Commands that a Redis refuses while it answers others: it is full, or a key holds another type."""

import logging
import re
from collections.abc import Callable
from typing import Final

import redis

from lpc.wire.bugs import log_bug

log = logging.getLogger(__name__)

ADVICE: Final = {
    "OOM": ": it is full, so nothing new is stored until there is room: raise maxmemory",
    "WRONGTYPE": ": a key holds another type: let no other program write into this Redis",
    "NOPERM": ": its user lacks a permission (docs/how-to/security.md)",
    "READONLY": ": it is a replica: connect to the primary",
    "MISCONF": ": it cannot write its data to disk: see its log",
    "NOREPLICAS": ": too few replicas are connected: see its log",
    "other": "",
}
"""Why Redis refuses a command, as labels of metrics, and what to do about it."""
_KINDS: Final = {
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.ReadOnlyError: "READONLY",
}
_CODE: Final = re.compile(r"\b(OOM|WRONGTYPE|NOPERM|READONLY|MISCONF|NOREPLICAS)\b")


def cause_of(error: Exception) -> str:
    """Return why Redis refused a command: a key of ADVICE."""
    for kind, cause in _KINDS.items():
        if isinstance(error, kind):
            return cause
    # Inside a script, and in some versions, the code stands in the text.
    found = _CODE.search(str(error))
    return found[1] if found else "other"


class Refusals:
    """Counts the commands that one Redis refuses, and logs the first of each cause.

    Args:
        what: the server is for, for the log.
        where: the server is, for the log.
        count: called with the cause of each refusal.
    """

    def __init__(self, what: str, where: str, count: Callable[[str], object]) -> None:
        self._what = what
        self._where = where
        self._count = count
        self._logged: set[str] = set()

    def note(self, error: Exception) -> str:
        """Take a refusal; return its cause."""
        if not isinstance(error, redis.ResponseError):
            log_bug(log, f"a command to Redis {self._what}", error)  # redis-py did not even send it
        cause = cause_of(error)
        self._count(cause)
        if cause not in self._logged:
            self._logged.add(cause)
            # Its kind alone: a message of Redis may quote a command.
            kind = type(error).__name__
            log.error("Redis %s at %s refuses commands (%s, %s)%s", self._what, self._where, cause, kind, ADVICE[cause])
        return cause
