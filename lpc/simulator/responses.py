"""The exact and the normalised tier of a response cache, as `lpc.responses` has them; room without end.

An answer is there when its request has ended, until a time to live after that which no hit prolongs. Of equal requests under
way the first is computed, and the others wait for it (single flight). The semantic tier is not simulated: what it would serve
depends on answers, which no log here judges. For the same reason the normalised tier is taken as open. Every answer may be
stored, as if all had ended with `stop` and temperature 0.

Equal names, equal answers. Where the log has text the names are those of `lpc.responses.canonical`, of the whole request and of
its normalised last turn. Where it has only ids of blocks, a request is the same when its whole chain and its length are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from lpc.logs.traces.request import TracedRequest
from lpc.model.conversation import Message
from lpc.responses.canonical import Asked, Namer
from lpc.simulator.workload import Named, Turn

_NAMER: Final = Namer(b"lpc simulate")
"""One client, one scope, one model: the most that a cache may answer."""

Tier = Literal["exact", "normalised"]
TIERS: Final[tuple[Tier, ...]] = get_args(Tier)


@dataclass(frozen=True)
class ResponseSpec:
    """A response cache. ``tier``: `exact`, or that and `normalised`; ``ttl``: seconds for which an answer is there."""

    tier: Tier = "exact"
    ttl: float = 3600.0


class ResponseCache:
    """Answers by the names of what was asked."""

    def __init__(self, spec: ResponseSpec) -> None:
        self._normalised = spec.tier == "normalised"
        self._ttl = spec.ttl
        self._until: dict[bytes, float] = {}
        self._flights: dict[bytes, list[Turn]] = {}

    def ask(self, turn: Turn, now: float) -> Literal["answered", "waits", "computes"]:
        """Look a request up that arrives now. Those that compute call `done` or `failed`."""
        names = self._names(turn)
        for name in names:
            if self._until.get(name, -1.0) > now:
                return "answered"
        for name in names:
            waiting = self._flights.get(name)
            if waiting is not None:
                waiting.append(turn)
                return "waits"
        for name in names:
            self._flights[name] = []
        return "computes"

    def done(self, turn: Turn, now: float) -> list[Turn]:
        """Store the answer of a request that has ended; return those that waited for it."""
        names = self._names(turn)
        self._until.update(dict.fromkeys(names, now + self._ttl))
        return self._landed(names)

    def failed(self, turn: Turn) -> list[Turn]:
        """Learn that a request was refused; return those that waited for it, which nobody answers."""
        return self._landed(self._names(turn))

    def _landed(self, names: list[bytes]) -> list[Turn]:
        waited: list[Turn] = []
        for name in names:
            waited += self._flights.pop(name, ())
        return waited

    def _names(self, turn: Turn) -> list[bytes]:
        named = turn.named
        if named is None:
            return []
        if self._normalised and named.normalised is not None:
            return [named.exact, named.normalised]
        return [named.exact]


def of_messages(messages: Sequence[Message]) -> Named:
    """Return the names of a chat request."""
    asked = [{"role": message.role, "content": message.content} for message in messages]
    names = _NAMER.names("", Asked("", {}, asked))
    return Named(names.exact, names.normalised)


def of_blocks(request: TracedRequest, block_tokens: int) -> Named | None:
    """Return the names of a request known by its blocks; None where its last tokens are in no block."""
    if len(request.blocks) * block_tokens < request.input_tokens or not request.blocks:
        return None
    # Ids are chained: the last one stands for all before it.
    return Named(b"%d %d" % (request.blocks[-1], request.input_tokens))
