"""Requests that wait in the engines, as these announce them (:mod:`eviction_client.announce`).

LMCache itself is asked about a request only when vLLM serves it; from then on its nodes hold what that request reads.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from eviction_client.announce import AGAIN_S, ANNOUNCED
from lpc.lmcache.tree import Chunk, Conversation, Shelf

FORGOTTEN_S: Final = 3.0 * AGAIN_S
"""After which a request is let go that its engine has not sent again."""


class Request(NamedTuple):
    """A request's name, unique in the fleet."""

    engine: str
    id: str


class Waiting:
    """Waiting requests, the first to come first, and where their chunks are kept for them. Not thread-safe."""

    def __init__(self) -> None:
        self._chunks: dict[Request, list[Chunk]] = {}
        self._kept_in: dict[Request, list[Shelf]] = {}
        self._heard_of: dict[str, float] = {}
        """By engine: when it was last heard of, seconds."""

    def __len__(self) -> int:
        return len(self._chunks)

    def replace(self, engine: str, requests: Sequence[tuple[str, list[Chunk] | None]], now: float) -> None:
        """Take an engine's waiting requests, all of them, with the known chunks of those that are new."""
        requests = requests[:ANNOUNCED]
        names = {Request(engine, id_) for id_, _ in requests}
        for request in [request for request in self._chunks if request.engine == engine and request not in names]:
            self._served(request)
        for id_, chunks in requests:
            request = Request(engine, id_)
            if chunks is not None and request not in self._chunks:
                self._chunks[request] = chunks
                self._kept_in[request] = list({room: None for chunk in chunks for room in chunk.lies})
                for room in self._kept_in[request]:
                    room.wait(request, chunks)
        self._heard_of[engine] = now

    def settle(self, now: float) -> None:
        """Let go of the requests of engines that have fallen silent."""
        for engine in [engine for engine, at in self._heard_of.items() if now - at > FORGOTTEN_S]:
            self.replace(engine, (), now)
            del self._heard_of[engine]

    def conversations(self) -> list[Conversation]:
        """Return the conversations that waiting requests continue, that of the first first."""
        ends = [chunks[-1] for chunks in self._chunks.values() if chunks]
        return list(dict.fromkeys(holder for end in ends for holder in end.holders if holder.leaf is end))

    def _served(self, request: Request) -> None:
        del self._chunks[request]
        for room in self._kept_in.pop(request):
            room.served(request)
