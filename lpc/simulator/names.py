"""What requests are called by a response cache: equal names, equal answers.

Where the log has text the names are those of `lpc.responses.canonical`, of the whole request and of its normalised last turn.
Where it has only ids of blocks, a request is the same when its whole chain and its length are, and there is no last turn to
normalise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lpc.logs.traces.request import TracedRequest
from lpc.model.conversation import Message
from lpc.responses.canonical import Asked, Namer

_NAMER: Final = Namer(b"lpc simulate")
"""One client, one scope, one model: the most that a cache may answer."""


@dataclass(frozen=True, slots=True)
class Named:
    """A request's names. ``normalised``: None where its last turn has no such form, or the log no text."""

    exact: bytes
    normalised: bytes | None = None


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
