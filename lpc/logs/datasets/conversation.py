"""What every dataset loader yields, and the rule that splits conversations."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from lpc.model.conversation import Message, TurnReader, UserTurns

Split = Literal["train", "validation", "evaluation"]

TRAIN_SHARE: Final = 0.45
VALIDATION_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Conversation:
    """A logged conversation.

    Attributes:
        id: unique in its dataset.
        messages: oldest first.
        ended: whether the log shows the conversation's end. Where it was cut off, nobody knows whether its last user turn
            had a successor, and that turn is not an example.
        language: an ISO 639-1 code or a name, as the publisher has it; "" where nobody says.
    """

    id: str
    messages: tuple[Message, ...]
    ended: bool = True
    language: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """A user turn, as it is known when its request arrives, and whether another followed."""

    conversation: str
    split: Split
    turns: UserTurns
    continues: bool


def conversation_key(first_prompt: str) -> str:
    """Return the key by which a conversation is split: 32 hex digits of the hash of its normalised first prompt.

    The text, not the dataset's id: logs hold the same conversation several times, and popular first prompts, and neither
    may stand on both sides.
    """
    return hashlib.sha256(" ".join(first_prompt.casefold().split()).encode()).hexdigest()[:32]


def split_of(key: str) -> Split:
    """Return the side of a key: 45% training, 5% validation (a tenth of the training half), 50% evaluation."""
    place = int(key[:16], 16) / 2**64
    if place < TRAIN_SHARE:
        return "train"
    return "validation" if place < TRAIN_SHARE + VALIDATION_SHARE else "evaluation"


def examples_of(conversation: Conversation, window: int) -> Iterator[Example]:
    """Yield one example per user turn, each with the texts of at most ``window`` last user turns."""
    reader = TurnReader(window)
    pending: UserTurns | None = None
    key, split = "", split_of("0" * 32)
    for message in conversation.messages:
        if reader.read(message):
            if pending is not None:
                yield Example(key, split, pending, continues=True)
            else:
                key = conversation_key(message.content)
                split = split_of(key)
            pending = reader.turns()
    if pending is not None and conversation.ended:
        yield Example(key, split, pending, continues=False)
