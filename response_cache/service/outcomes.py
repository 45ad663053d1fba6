"""Results of lookups and stores."""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from response_cache.semantic.evidence import Tier
from response_cache.store.answers import Answer, Refusal

Source: TypeAlias = Literal["exact"] | Tier
SOURCES: Final[Sequence[Source]] = ("exact", *get_args(Tier))
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
    "time_sensitive",
]


class CacheHit(NamedTuple):
    """A cached answer.

    Attributes:
        ticket: ticket for feedback.
        source: the tier.
        answer: the engine's answer.
        age_s, remaining_s: age and remaining life in seconds.
        similarity: similarity of the questions.
        error_bound: upper bound on the share of wrong answers among the tier's hits; 0 for an exact hit.
        question: the question that the answer was stored for, if it is another one and the scope shows texts.
        question_digest: keyed digest of that question; empty for an exact hit.
    """

    ticket: bytes
    source: Source
    answer: Answer
    age_s: float
    remaining_s: float
    similarity: float = 1.0
    error_bound: float = 0.0
    question: str = ""
    question_digest: str = ""


class CacheMiss(NamedTuple):
    """No answer.

    Attributes:
        reason: reason of the miss.
        flight: ticket of the flight; empty if another caller leads it.
        candidate: ticket of an entry to compare the engine's answer with; empty if there is none.
        refusal: refusal of a miss with reason "refused".
    """

    reason: Reason
    flight: bytes = b""
    candidate: bytes = b""
    refusal: Refusal | None = None


class Stored(NamedTuple):
    """Result of a store: a ticket, or why the answer was refused."""

    ticket: bytes = b""
    refusal: Refusal | None = None


class InForce(NamedTuple):
    """State of a scope's tier.

    Attributes:
        threshold: lowest score that is served, a probability; None if nothing is.
        error_bound: upper bound on the share of wrong answers among those served.
        labels: number of labels in the window of evidence.
        different: number of labels "different" among them.
        bound: lowest limit on wrong answers among the tenants; complaints lower it. None without a tenant.
    """

    threshold: float | None = None
    error_bound: float = 0.0
    labels: int = 0
    different: int = 0
    bound: float | None = None
