"""Requests that wait in the engines, as the plug-ins announce them (:mod:`eviction_client.announce`).

vLLM asks LMCache about a request only when it serves it; from then on the nodes lock the chunks that the request reads.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from eviction_client.announce import AGAIN_S, ANNOUNCED
from lpc_apps.lmcache.tree import Cache, Chunk, Conversation

ENGINE_TIMEOUT_S: Final = 3.0 * AGAIN_S
"""Time without an update after which an engine's requests are dropped."""


class Request(NamedTuple):
    """Identifies a request across all engines."""

    engine: str
    id: str


class Waiting:
    """Waiting requests in order of arrival, and the caches that rank their chunks last. Not thread-safe."""

    def __init__(self) -> None:
        self._chunks: dict[Request, list[Chunk]] = {}
        self._caches: dict[Request, list[Cache]] = {}
        self._updated_at: dict[str, float] = {}
        """Time of each engine's latest update, seconds."""

    def __len__(self) -> int:
        return len(self._chunks)

    def replace(self, engine: str, requests: Sequence[tuple[str, list[Chunk] | None]], now: float) -> None:
        """Replace an engine's waiting requests. ``requests``: each id, with the known chunks if the request is new."""
        requests = requests[:ANNOUNCED]
        names = {Request(engine, id_) for id_, _ in requests}
        for request in [request for request in self._chunks if request.engine == engine and request not in names]:
            self._served(request)
        for id_, chunks in requests:
            request = Request(engine, id_)
            if chunks is not None and request not in self._chunks:
                self._chunks[request] = chunks
                self._caches[request] = list(dict.fromkeys(cache for chunk in chunks for cache in chunk.residents))
                for cache in self._caches[request]:
                    cache.wait(request, chunks)
        self._updated_at[engine] = now

    def settle(self, now: float) -> None:
        """Drop the requests of engines that have stopped sending updates."""
        for engine in [engine for engine, at in self._updated_at.items() if now - at > ENGINE_TIMEOUT_S]:
            self.replace(engine, (), now)
            del self._updated_at[engine]

    def conversations(self) -> list[Conversation]:
        """Return the conversations that waiting requests continue, in order of arrival."""
        ends = [chunks[-1] for chunks in self._chunks.values() if chunks]
        return list(dict.fromkeys(holder for end in ends for holder in end.holders if holder.leaf is end))

    def _served(self, request: Request) -> None:
        del self._chunks[request]
        for cache in self._caches.pop(request):
            cache.served(request)
