"""The latest use of blocks, and the conversations' claims on them."""

from collections.abc import Hashable, Iterator
from typing import NamedTuple, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)


class Claim(NamedTuple):
    """A conversation's continuation probability at the time of its latest turn.

    Attributes:
        conversation: its number.
        log_odds: log-odds of the probability.
        at: seconds.
        predicted: whether the sidecar predicted it; else it is the share of such turns that were followed.
    """

    conversation: int
    log_odds: float
    at: float
    predicted: bool


class Use:
    """The latest use of some blocks of a chain. All these blocks share the object.

    Attributes:
        at: seconds.
        turn: turn that made the blocks, at most LAST_TURN.
        uses: number of uses, at most MOST_USES.
        place: number of blocks that all requests had used after this one.
        only: number of the only conversation that has used the blocks; None: several have.
        claims: claims of these conversations, the highest first; never empty.
        predicted: whether the sidecar predicted one of the claims.
        prompt: number of blocks of the prompt with which they were used. Who branches off before its end is another
            conversation.
    """

    __slots__ = ("at", "claims", "only", "place", "predicted", "prompt", "turn", "uses")

    def __init__(
        self, at: float, turn: int, uses: int, place: int, only: int | None, claims: tuple[Claim, ...], prompt: int = 0
    ) -> None:
        self.at = at
        self.turn = turn
        self.uses = uses
        self.place = place
        self.only = only
        self.claims = claims
        self.prompt = prompt
        self.predicted = any(claim.predicted for claim in claims)


class Uses(Protocol[K]):
    """A bounded table of the latest uses, such as `eviction_client.recent.Recent`."""

    def get(self, key: K, /) -> Use | None:
        """Return a block's latest use; None: unknown."""

    def put(self, key: K, value: Use, /) -> None:
        """Set a block's latest use."""

    def parts(self) -> Iterator[dict[K, Use]]:
        """Iterate over the parts of the table."""
