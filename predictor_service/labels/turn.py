"""A turn as a sidecar stores it, its label, and who is notified of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from lpc.model.returns.memory import WatchedTurn

if TYPE_CHECKING:
    from lpc.model.artifact import Manifest  # needs a tokenizer, which a process without the model does not import

Reason: TypeAlias = Literal["unidentified", "memory", "share", "repeated", "shutdown"]
"""Why a prediction is not labelled: its conversation cannot be recognised, the memory is full, its client has its share, the
same turn was sent again, or the sidecar stopped before the horizon."""


class Forecast(NamedTuple):
    """The prediction of a turn.

    Attributes:
        probability: recalibrated probability, as sent to the engine.
        embedding: little-endian fp16; None: there is no label log.
        tokens: number of tokens of the model's input.
        manifest: manifest of the model.
        model_log_odds: log-odds of the model's own probability.
    """

    probability: float
    embedding: bytes | None
    tokens: int
    manifest: "Manifest"
    model_log_odds: float = 0.0


class Sent(NamedTuple):
    """What is stored of a turn's request: hashes of 16 bytes with a key of this process, and numbers; no text.

    Attributes:
        name: name under which the turn waits for the next one; empty: that could not be recognised.
        text: hash of its prompts, equal if the same turn is sent again.
        by_id: whether the caller sent a conversation id.
        turn_count, prompt_chars, history_chars, last_reply_chars: as in `UserTurns`.
        client: name of the client that sent it.
    """

    name: bytes
    text: bytes
    by_id: bool
    turn_count: int
    prompt_chars: int
    history_chars: int
    last_reply_chars: int
    client: str = ""


@dataclass(eq=False, slots=True, kw_only=True, weakref_slot=True)
class Turn(WatchedTurn):
    """A turn, and what becomes of it. Threads share it, so each attribute has one writer:

    | attributes | writer |
    |---|---|
    | `sent`, `previous_id` | none after the turn's arrival |
    | `arrival`, `next_at`, `labelled`, `forecast` | `TurnTracker`, while it holds its lock |
    | `number`, `openings` | the return model, while it holds its lock |
    | `shared_id` | the thread of `TurnRegistry` |

    Attributes:
        sent: what its request contained.
        previous_id: id in Redis of the previous turn; empty: that did not arrive here.
        labelled: whether it will be labelled.
        forecast: its prediction; None: not answered yet, or labelled already.
        shared_id: its id in Redis; empty: it is not shared.
    """

    sent: Sent
    previous_id: bytes = b""
    labelled: bool = True
    forecast: Forecast | None = None
    shared_id: bytes = b""


class Label(NamedTuple):
    """The outcome of a predicted turn. ``gap_s``: seconds from its arrival to the next turn's; NaN: there was none."""

    turn: Turn
    forecast: Forecast
    continues: bool
    gap_s: float


class TurnObserver:
    """Receives events of turns. The methods are called from any thread and must return at once."""

    def returned(self, turn: Turn) -> None:
        """The next turn of a turn's conversation has arrived, at ``turn.next_at``."""

    def labelled(self, label: Label) -> None:
        """The horizon of a predicted turn has passed."""

    def forgotten(self, turn: Turn) -> None:
        """A turn was dropped from the full memory: its next turn will not be recognised."""

    def unlabelled(self, reason: Reason, count: int) -> None:
        """``count`` predictions will not be labelled."""
