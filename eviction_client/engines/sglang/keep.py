"""Keep in SGLang: the leaf that ends what a waiting request will hit is evicted last, that of the first to come the very last.

Only leaves are evicted, so that the deepest node of a request's cached prefix keeps those above it. The node remembers which
requests wait for it. A request is let go of when its prompt is computed, or when SGLang drops it, which no call announces.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, finalize, ref

from eviction_client.waits import KEPT_REQUESTS


class Keep:
    """The waiting requests of one radix cache.

    Args:
        dropped: called with the id of a request that is gone before it was computed.
    """

    def __init__(self, dropped: Callable[[str], None]) -> None:
        self._numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._came = 0
        self._dropped = dropped

    def __contains__(self, req: Any) -> bool:
        return req in self._numbers

    def join(self, req: Any, node: Any | None) -> bool:
        """Take in a request that waits from now on, and the deepest node that it will hit; return whether it counts."""
        if len(self._numbers) >= KEPT_REQUESTS:
            return False
        self._came += 1
        self._numbers[req] = self._came
        finalize(req, self._dropped, req.rid).atexit = False
        if node is not None:
            if not hasattr(node, "lpc_waits"):
                node.lpc_waits = []
            node.lpc_waits.append(ref(req))
        return True

    def leave(self, req: Any) -> None:
        """Let go of a request; nothing if it did not count."""
        self._numbers.pop(req, None)

    def first(self, node: Any) -> int | None:
        """Return the number of the first request to come that waits for a node; None: none does."""
        waits = getattr(node, "lpc_waits", None)
        if not waits:
            return None
        waits[:] = [each for each in waits if each() in self._numbers]
        return min((self._numbers[each()] for each in waits), default=None)
