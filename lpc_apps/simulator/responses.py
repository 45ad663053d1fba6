"""The exact tier of a response cache (`lpc.responses`) with unlimited capacity.

An answer is cached from the end of its request until its time to live expires; hits do not extend it. Of equal concurrent
requests the first is computed and the others wait for it (single flight). Every answer is cached, as if all requests had
temperature 0 and ended with `stop`. The semantic tier is not simulated, because logs do not contain the answers.

Requests with equal keys are equal. If the log has text, the keys are those of `lpc.responses.canonical`. If it has only block
ids, the key is the whole chain and the prompt's length.
"""

from collections.abc import Sequence
from typing import Final, Literal

from lpc.logs.traces.request import TracedRequest
from lpc.model.conversation import Message
from lpc.responses.canonical import Namer, Request
from lpc_apps.simulator.workload import Turn

_NAMER: Final = Namer(b"lpc simulate")
"""One client, one scope, one model: the upper bound of hits."""


class ResponseCache:
    """Answers by the key of the request. ``ttl_s``: seconds until an answer expires."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._until: dict[bytes, float] = {}
        self._flights: dict[bytes, list[Turn]] = {}

    def ask(self, turn: Turn, now: float) -> Literal["answered", "waits", "computes"]:
        """Look up an arriving request. If it computes, `done` or `failed` must follow."""
        if turn.named is None:
            return "computes"
        if self._until.get(turn.named, -1.0) > now:
            return "answered"
        if turn.named in self._flights:
            self._flights[turn.named].append(turn)
            return "waits"
        self._flights[turn.named] = []
        return "computes"

    def done(self, turn: Turn, now: float) -> list[Turn]:
        """Cache the answer of an ended request; return the requests that waited for it."""
        if turn.named is not None:
            self._until[turn.named] = now + self._ttl_s
        return self.failed(turn)

    def failed(self, turn: Turn) -> list[Turn]:
        """Remove a refused request; return the requests that waited for it and get no answer."""
        return [] if turn.named is None else self._flights.pop(turn.named, [])


def of_messages(messages: Sequence[Message]) -> bytes:
    """Return the key of a chat request."""
    asked = [{"role": message.role, "content": message.content} for message in messages]
    return _NAMER.names("", Request("", {}, asked), last_turn=False).exact


def of_blocks(request: TracedRequest, block_tokens: int) -> bytes | None:
    """Return the key of a request with block ids; None if no block contains its last tokens."""
    if len(request.blocks) * block_tokens < request.input_tokens or not request.blocks:
        return None
    # Ids are chained: the last one identifies all blocks before it.
    return b"%d %d" % (request.blocks[-1], request.input_tokens)
