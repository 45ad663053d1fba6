"""The exact tier of a response cache, as `lpc.responses` has it; room without end.

An answer is there when its request has ended, until a time to live after that which no hit prolongs. Of equal requests under
way the first is computed, and the others wait for it (single flight). The semantic tier is not simulated: what it would serve
depends on answers, which no log here judges. Every answer may be stored, as if all had ended with `stop` and temperature 0.

Equal names, equal answers. Where the log has text the names are those of `lpc.responses.canonical`. Where it has only ids of
blocks, a request is the same when its whole chain and its length are.
"""

from collections.abc import Sequence
from typing import Final, Literal

from lpc.logs.traces.request import TracedRequest
from lpc.model.conversation import Message
from lpc.responses.canonical import Namer, Request
from lpc.simulator.workload import Turn

_NAMER: Final = Namer(b"lpc simulate")
"""One client, one scope, one model: the most that a cache may answer."""


class ResponseCache:
    """Answers by the name of what was asked. ``ttl_s``: seconds for which an answer is there."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._until: dict[bytes, float] = {}
        self._flights: dict[bytes, list[Turn]] = {}

    def ask(self, turn: Turn, now: float) -> Literal["answered", "waits", "computes"]:
        """Look a request up that arrives now. Those that compute call `done` or `failed`."""
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
        """Store the answer of a request that has ended; return those that waited for it."""
        if turn.named is not None:
            self._until[turn.named] = now + self._ttl_s
        return self.failed(turn)

    def failed(self, turn: Turn) -> list[Turn]:
        """Learn that a request was refused; return those that waited for it, which nobody answers."""
        return [] if turn.named is None else self._flights.pop(turn.named, [])


def of_messages(messages: Sequence[Message]) -> bytes:
    """Return the name of a chat request."""
    asked = [{"role": message.role, "content": message.content} for message in messages]
    return _NAMER.names("", Request("", {}, asked), last_turn=False).exact


def of_blocks(request: TracedRequest, block_tokens: int) -> bytes | None:
    """Return the name of a request known by its blocks; None where its last tokens are in no block."""
    if len(request.blocks) * block_tokens < request.input_tokens or not request.blocks:
        return None
    # Ids are chained: the last one stands for all before it.
    return b"%d %d" % (request.blocks[-1], request.input_tokens)
