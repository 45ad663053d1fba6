"""Keeps the cached prefixes of waiting requests in SGLang: they are evicted last, that of the oldest request last of all.

SGLang evicts only leaves, so keeping the deepest node of a prefix keeps those above it. The node stores which requests wait for
it. A request leaves when its prompt is computed. If SGLang drops the request, a finalizer reports it, as no call does.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, finalize, ref

from eviction_client.observability.waiting_stats import KEPT_REQUESTS
from lpc.wire.session import key_of


class WaitingPrefixes:
    """The waiting requests of one radix cache.

    Args:
        dropped: called with the id of a request when SGLang has dropped the request.

    Attributes:
        enabled: whether anything is kept. Requests join and leave nevertheless.
    """

    def __init__(self, dropped: Callable[[str], None]) -> None:
        self._numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._added = 0
        self._dropped = dropped
        self.enabled = True

    def __contains__(self, req: Any) -> bool:
        return req in self._numbers

    def join(self, req: Any, node: Any | None) -> bool:
        """Add a waiting request and the deepest node that it will hit; return false if too many requests wait."""
        if len(self._numbers) >= KEPT_REQUESTS:
            return False
        self._added += 1
        self._numbers[req] = self._added
        finalize(req, self._dropped, key_of(str(req.rid))).atexit = False
        if node is not None:
            waits = node.lpc_waits = getattr(node, "lpc_waits", None) or []
            if len(waits) >= 2 * KEPT_REQUESTS:  # a node that is used all the time is never looked at for eviction
                self._forget_gone(waits)
            waits.append(ref(req))
        return True

    def leave(self, req: Any) -> None:
        """Remove a request if it was added."""
        self._numbers.pop(req, None)

    def _forget_gone(self, waits: list[Any]) -> None:
        waits[:] = [each for each in waits if each() in self._numbers]

    def first(self, node: Any) -> int | None:
        """Return the number of the oldest request for which a node is kept; None without one."""
        waits = getattr(node, "lpc_waits", None)
        if not waits or not self.enabled:
            return None
        self._forget_gone(waits)
        return min((self._numbers[each()] for each in waits), default=None)
