"""The misses of an adapter's lookups until the answers arrive: a later store refers to its miss."""

import threading
from collections import OrderedDict
from hashlib import sha256
from typing import Final

from lpc.cache.v1 import response_cache_pb2 as pb

MAX_MISSES: Final = 10_000
"""Limit, since a request that fails never stores an answer."""


class PendingMisses:
    """Misses by request. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._misses: OrderedDict[bytes, pb.Miss] = OrderedDict()

    def add(self, request: pb.Request, miss: pb.Miss) -> None:
        """Record the miss of a request; above `MAX_MISSES` the oldest one is dropped."""
        with self._lock:
            self._misses[_digest(request)] = miss
            if len(self._misses) > MAX_MISSES:
                self._misses.popitem(last=False)

    def pop(self, request: pb.Request) -> pb.Miss:
        """Remove and return the miss of a request; an empty one if there is none."""
        with self._lock:
            return self._misses.pop(_digest(request), pb.Miss())


def _digest(request: pb.Request) -> bytes:
    return sha256(request.SerializeToString(deterministic=True)).digest()
