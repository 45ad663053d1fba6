"""The verdict on a request in the header field `x-lpc-prefix`: prompt tokens, expected and cached, and why some are missing.

What is expected is the router's belief: what the engine was sent before and has not been seen to lose. What hit is what the
answer reports. The gateway sees no cache, so its causes are only these; `lpc report` has those of engines with the plug-in.
"""

from collections.abc import AsyncIterator
from typing import Final, Literal, NamedTuple

from response_cache.gateway.choice import Belief
from response_cache.gateway.usage import usage_of

NAME: Final = b"x-lpc-prefix"
SLACK: Final = 64
"""Tokens by which a hit may be below what was expected: ends of prompts that fill no block."""
NEW: Final = 0.9
"""Share of a prompt that was sent before, from which on nothing of it counts as new."""
Cause = Literal["none", "new", "other_engine", "missed", "unknown"]


class Verdict(NamedTuple):
    """What is known of a request.

    Attributes:
        tokens: of the prompt, reported or estimated; ``expected`` of them in the cache; ``hit``: None: not reported.
        cause: ``none``: all is cached, or expected to be; ``new``: that was not sent before, or behind another beginning;
            ``other_engine``: another engine has it; ``missed``: this one was sent it and has not hit it; ``unknown``: the
            engine reports no cached tokens.
    """

    tokens: int
    expected: int
    hit: int | None
    cause: Cause

    def field(self) -> tuple[bytes, bytes]:
        """Return the header field."""
        hit = "" if self.hit is None else f" hit={self.hit};"
        return NAME, f"tokens={self.tokens}; expected={self.expected};{hit} cause={self.cause}".encode()


def verdict_of(belief: Belief, answer: bytes | None) -> Verdict:
    """Return the verdict on a request. ``answer``: the end of its body; None: it has not been read."""
    tokens, cached = (None, None) if answer is None else usage_of(answer)
    scale = 1.0 if tokens is None or not belief.tokens else tokens / belief.tokens
    whole = belief.tokens if tokens is None else tokens
    expected = min(round(belief.expected * scale), whole)
    if cached is not None and cached < expected - SLACK:
        return Verdict(whole, expected, cached, "missed")
    reached = expected if cached is None else cached
    if whole - reached <= max(SLACK, (1 - NEW) * whole):
        cause: Cause = "none"
    elif belief.elsewhere:
        cause = "other_engine"
    else:
        cause = "new"
    if answer is not None and cached is None:
        cause = "unknown"
    return Verdict(whole, expected, cached, cause)


async def read(chunks: AsyncIterator[bytes], most: int) -> tuple[list[bytes], bool]:
    """Return an answer's first pieces, of at most so many bytes, and whether they are all."""
    pieces, length = list[bytes](), 0
    async for piece in chunks:
        pieces.append(piece)
        length += len(piece)
        if length > most:
            return pieces, False
    return pieces, True


async def joined(pieces: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield pieces, then the rest."""
    for piece in pieces:
        yield piece
    async for piece in rest:
        yield piece
