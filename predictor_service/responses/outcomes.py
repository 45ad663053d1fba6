"""What the response cache answers, before it goes on the wire."""

from typing import Literal, NamedTuple, TypeAlias

from lpc.responses.answers import Answer, Refusal

Source: TypeAlias = Literal["exact", "semantic"]
Reason: TypeAlias = Literal[
    "cold",
    "off",
    "shadow",
    "refused",
    "in_flight",
    "vetoed",
    "below_threshold",
    "unavailable",
    "audited",
]


class Hit(NamedTuple):
    """An answer that was kept.

    Attributes:
        ticket: for feedback and invalidation.
        source: the tier.
        answer: of the engine.
        age_s, remaining_s: of its life.
        similarity: of the questions.
        error_bound: on the share of wrong answers among those served so; 0 of the same question.
        question: that it was given to, where it is another one.
    """

    ticket: bytes
    source: Source
    answer: Answer
    age_s: float
    remaining_s: float
    similarity: float = 1.0
    error_bound: float = 0.0
    question: str = ""


class Miss(NamedTuple):
    """No answer.

    Attributes:
        reason: why.
        flight: leave to store what the engine says; empty where another one has it.
        candidate: an answer that the engine's is to be compared with, and its similarity; empty where there is none.
        refusal: of "refused": why.
    """

    reason: Reason
    flight: bytes = b""
    candidate: bytes = b""
    candidate_answer: Answer | None = None
    similarity: float = 0.0
    refusal: Refusal | None = None


class Stored(NamedTuple):
    """What became of an answer that was handed in: a ticket where it is kept, else why not."""

    ticket: bytes = b""
    refusal: Refusal | None = None


class InForce(NamedTuple):
    """What evidence allows in a scope's semantic tier.

    Attributes:
        threshold: the similarity from which it serves; None: it serves nothing.
        error_bound: on the wrong answers among those served.
        labels, different: in the window of evidence: all, and those that said "not the same".
    """

    threshold: float | None = None
    error_bound: float = 0.0
    labels: int = 0
    different: int = 0
