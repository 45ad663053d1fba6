"""Compares the answers of a hit check, which are to one prompt at temperature 0.

Floating-point sums depend on the order of their terms, and that on how many tokens and requests an engine computes at once. So
equal prompts give log-probabilities that differ a little, and other tokens where two are nearly as probable.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

NATS: Final = 0.3
"""Difference up to which two answers count as the same, but for rounding. Logits of 16 to 32 in bfloat16 are 0.125 apart."""
LEAST: Final = -100.0
"""Lowest log-probability that counts. Engines return -9999 or less for tokens that are ruled out."""

Result = Literal["equal", "tie", "unsteady", "unconfirmed", "hit", "blocks", "tier", "adapter"]


class Position(NamedTuple):
    """One token of an answer, and log-probabilities (nats) of the most probable tokens in its place, by token."""

    token: str
    logprobs: Mapping[str, float]


class CheckAnswer(NamedTuple):
    """One answer of a check.

    Attributes:
        positions: its tokens in their order.
        tokens: of the prompt.
        cached: tokens of the prompt that hit; None: not reported.
    """

    positions: Sequence[Position]
    tokens: int
    cached: int | None


class Difference(NamedTuple):
    """How two answers differ.

    Attributes:
        nats: mean difference of log-probabilities where it is largest, weighted by the probabilities.
        at: place of the first other token; None: all compared tokens are the same.
    """

    nats: float
    at: int | None

    @property
    def is_noise(self) -> bool:
        """Whether rounding explains it."""
        return self.nats <= NATS


def difference(one: Sequence[Position], other: Sequence[Position]) -> Difference:
    """Return how two answers differ up to the first other token, after which their contexts differ too.

    A token that only one of them lists is at most as probable in the other as the last one listed there. So the number is a
    lower bound, and 0 for equal answers.
    """
    nats = 0.0
    for place, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        nats = max(nats, _apart(mine.logprobs, theirs.logprobs), _apart(theirs.logprobs, mine.logprobs))
        if mine.token != theirs.token:
            return Difference(nats, place)
    return Difference(nats, None)


def _apart(mine: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    last = min(theirs.values())
    weights = weighted = 0.0
    for token, logprob in mine.items():
        weight = math.exp(logprob)
        found = theirs.get(token)
        weights += weight
        weighted += weight * (max(logprob - last, 0.0) if found is None else abs(logprob - found))
    return weighted / weights if weights else 0.0


class Confirmed(NamedTuple):
    """Requests that are sent again after a difference: cached and computed as before, and a hit of what was just computed."""

    cached: CheckAnswer
    computed: CheckAnswer
    fresh_hit: CheckAnswer


def confirmed(cached: CheckAnswer, computed: CheckAnswer, again: Confirmed) -> Literal["unsteady", "hit", "blocks"]:
    """Return what a difference between a cached and a computed answer is.

    ``unsteady``: the engine does not agree with itself, or the difference has gone. ``hit``: a hit of what the engine has just
    computed differs in the same way, so not what is cached is wrong. ``blocks``: only what the request had hit differs.
    """
    same = (cached.positions, again.cached.positions), (computed.positions, again.computed.positions)
    if not all(difference(*pair).is_noise for pair in same):
        return "unsteady"
    return "hit" if difference(cached.positions, again.fresh_hit.positions).is_noise else "blocks"


def check_answer(answer: Any) -> CheckAnswer | None:
    """Return an answer of the completions or chat completions API; None: it is not one with log-probabilities."""
    try:
        (choice,) = answer["choices"]
        usage = answer["usage"]
        details = usage.get("prompt_tokens_details") or {}
        cached, tokens = details.get("cached_tokens"), usage["prompt_tokens"]
        found = choice["logprobs"]
        positions = _of_chat(found["content"]) if "content" in found else _of_completion(found)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    if not positions or type(tokens) is not int or not (cached is None or type(cached) is int):
        return None
    return CheckAnswer(positions, tokens, cached)


def _of_chat(content: Sequence[Any]) -> list[Position]:
    return [
        _position(_name(one), one["logprob"], {_name(other): other["logprob"] for other in one["top_logprobs"]})
        for one in content
    ]


def _of_completion(found: Any) -> list[Position]:
    rows = zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True)
    return [_position(str(token), logprob, listed or {}) for token, logprob, listed in rows]


def _name(one: Any) -> str:
    """Return the name of a token. Parts of a character have one text and different bytes."""
    return f"{one['token']} {one.get('bytes')}"


def _position(token: str, logprob: Any, listed: Mapping[str, Any]) -> Position:
    """Return a position. Raises ValueError and TypeError."""
    logprobs = {name: max(float(one), LEAST) for name, one in {**listed, token: logprob}.items()}
    if not all(math.isfinite(one) and one <= 1e-3 for one in logprobs.values()):
        raise ValueError
    return Position(token, logprobs)
