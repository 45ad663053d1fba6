"""Conversations of datasets, examples of turns, and the split into training, validation and evaluation."""

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
        ended: whether the log contains the conversation's end. If it was truncated, its last user turn may have had a
            successor, so that turn is not an example.
    """

    id: str
    messages: tuple[Message, ...]
    ended: bool = True


@dataclass(frozen=True, slots=True)
class Example:
    """A user turn when its request arrives, and whether another one followed."""

    conversation: str
    split: Split
    turns: UserTurns
    continues: bool


def conversation_key(first_prompt: str) -> str:
    """Return the key that decides a conversation's split: 32 hex digits of the hash of its normalised first prompt.

    The key is not the dataset's id, because duplicate conversations and popular first prompts must not be on both sides.
    """
    return hashlib.sha256(" ".join(first_prompt.casefold().split()).encode()).hexdigest()[:32]


def split_of(key: str) -> Split:
    """Return the split of a key: 45% training, 5% validation, 50% evaluation."""
    position = int(key[:16], 16) / 2**64
    if position < TRAIN_SHARE:
        return "train"
    return "validation" if position < TRAIN_SHARE + VALIDATION_SHARE else "evaluation"


def examples_of(conversation: Conversation, window: int) -> Iterator[Example]:
    """Yield one example per user turn, with the texts of the last ``window`` user turns."""
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
