"""Shares of the questions of a log that repeat: exactly, by their normal form, and by meaning.

A question is the text of a last user turn. It repeats an earlier one only with the same context, as in the caches: model, cache
salt, tools, all earlier messages and language. Parameters and tenants are not compared, so each share is the most that a tier
could answer.

All requests count for exact and normalised repetition. Embedding is slow, so similarity is measured among the latest requests
of the log, of at most `LATEST`, until they have `EMBEDDED` questions with different normal forms. Earlier questions of the same
context are not found then, so in a larger log the shares are too small rather than too large.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpc_apps.logs.chats.request import LoggedRequest
from response_cache.semantic.normal import normal_form
from response_cache.semantic.ranking import NEAREST
from response_cache.semantic.vetoes import language_of, veto

SIMILARITIES: Final = (0.98, 0.95, 0.93, 0.90, 0.85)
LATEST: Final = 20_000
EMBEDDED: Final = 3_000
LONGEST: Final = 4_000
"""Characters of a question that is compared by meaning: vetoes stop a longer one."""

LOOKED_UP: Final = 256 << 10
"""Characters of a question whose normal form is compared, which takes 20 times its memory. No gateway looks up longer ones."""

Embed = Callable[[Sequence[str]], Mapping[str, NDArray[Any]]]
"""Returns vectors of unit length."""


class WindowQuestion(NamedTuple):
    """A request of the window: digests of its context, its question and its normal form; empty text if it has no question."""

    time: float
    number: int
    context: bytes
    exact: bytes
    form: bytes
    text: str


class Repetition:
    """Counts the requests of a log, and keeps the latest.

    Attributes:
        requests: number of requests.
    """

    def __init__(self) -> None:
        self.requests = 0
        self._exact: set[bytes] = set()
        self._forms: set[bytes] = set()
        self._questions = 0
        self._latest: list[WindowQuestion] = []

    def add(self, request: LoggedRequest) -> None:
        """Count a request."""
        question = _question(request, self.requests + 1)
        self._count(question)
        heapq.heappush(self._latest, question)
        if len(self._latest) > LATEST:
            heapq.heappop(self._latest)

    def _count(self, question: WindowQuestion) -> None:
        self.requests += 1
        if question.text:
            self._questions += 1
            self._exact.add(question.context + question.exact)
            self._forms.add(question.context + question.form)

    def shares(self) -> dict[str, Any]:
        """Return the shares of requests with a question, and of those that repeat an earlier one; no similarity."""
        every = max(1, self.requests)
        return {
            "requests": self.requests,
            "questions": self._questions / every,
            "exact": (self._questions - len(self._exact)) / every,
            "normalised": (self._questions - len(self._forms)) / every,
        }

    def similar(self, embed: Embed) -> dict[str, Any]:
        """Return the shares among the latest requests, with those that repeat an earlier question at each similarity or above.

        A question that the vetoes keep apart from all similar ones does not count as repeated.
        """
        window = _window(sorted(self._latest))
        counted = Repetition()
        for one in window:
            counted._count(one)
        found = counted.shares()
        best = _best(window, embed)
        repeated = found["normalised"]
        at = {f"{limit:.2f}": repeated + sum(one >= limit for one in best) / max(1, len(window)) for limit in SIMILARITIES}
        return {**found, "at": at}


def _question(request: LoggedRequest, number: int) -> WindowQuestion:
    last = request.messages[-1]
    text = last.text if last.is_user_turn and all(part.kind == "text" for part in last.parts) else ""
    form = normal_form(text) if len(text) <= LOOKED_UP else text
    context = _digest(request.scope, request.tools, request.messages[:-1], language_of(form[:LOOKED_UP]))
    return WindowQuestion(
        request.time, number, context, _digest(text), _digest(form), text[: LONGEST + 1] if text.strip() else ""
    )


def _digest(*parts: object) -> bytes:
    return sha256(repr(parts).encode("utf-8", "surrogatepass")).digest()[:12]


def _window(latest: Sequence[WindowQuestion]) -> list[WindowQuestion]:
    """Return the end of a sequence, up to `EMBEDDED` questions with different normal forms."""
    forms: set[bytes] = set()
    for at in range(len(latest) - 1, -1, -1):
        one = latest[at]
        if one.text:
            forms.add(one.context + one.form)
        if len(forms) > EMBEDDED:
            return list(latest[at + 1 :])
    return list(latest)


def _best(window: Iterable[WindowQuestion], embed: Embed) -> list[float]:
    """Return the similarity of each question that is new by its normal form to the nearest earlier one that no veto stops."""
    contexts: defaultdict[bytes, dict[bytes, str]] = defaultdict(dict)
    for one in window:
        if one.text and len(one.text) <= LONGEST:
            contexts[one.context].setdefault(one.form, one.text)
    several = [list(forms.values()) for forms in contexts.values() if len(forms) > 1]
    vectors = embed([text for texts in several for text in texts]) if several else {}
    best = []
    for texts in several:
        stored = np.array([vectors[text] for text in texts], np.float32)
        for at in range(1, len(texts)):
            scores = stored[:at] @ stored[at]
            near = np.argsort(-scores)[:NEAREST].tolist()
            best.append(next((float(scores[one]) for one in near if veto(texts[at], texts[one]) is None), -1.0))
    return best
