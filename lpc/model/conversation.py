"""Input of the predictor: the last user prompts of a conversation and its number of user turns.

Paper (Learned Prefix Caching, NeurIPS 2025, section 3.2): the user prompts of the last N + 1 = 5 user turns, without
the model's replies, and the number of turns so far.

A user turn is a message of role `user` whose content is not blank. If a gateway splits a turn into two messages, they count
as two turns, as in the training data. A conversation without any user text (a picture alone) has one empty prompt.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from lpc.errors import InvalidRequest

ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
INSTRUCTIONS: Final = frozenset({"system", "developer"})
"""Roles whose text comes from the operator and is not part of the history."""


class Message(NamedTuple):
    """One chat message, as in the OpenAI chat-completions API."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class UserTurns:
    """A conversation when a user turn arrives.

    Attributes:
        prompts: the last user prompts, oldest first: at least one, at most a window; a single empty one if there is no text.
        turn_count: number of all user turns.
        history_chars: characters of all messages before the last prompt except instructions (estimated from token ids).
        last_reply_chars: characters of the replies between the last two prompts; 0 on the first turn.
        told_apart: whether the input shows where turns begin; plain prompt text does not.
    """

    prompts: tuple[str, ...]
    turn_count: int
    history_chars: int = 0
    last_reply_chars: int = 0
    told_apart: bool = True

    @property
    def has_text(self) -> bool:
        """Whether the conversation contains user text."""
        return self.prompts != NO_TEXT


NO_TEXT: Final = ("",)
"""Prompts of a conversation without user text."""


def is_user_turn(message: Message) -> bool:
    """Return whether a message is a user turn: of role `user`, and not blank."""
    return message.role == "user" and bool(message.content) and not message.content.isspace()


class TurnReader:
    """Reads a chat message by message and returns the predictor's input at each user turn, in serving and in training."""

    def __init__(self, window: int) -> None:
        self._prompts: deque[str] = deque(maxlen=window)
        self._count = self._history = self._last_reply = 0
        self._seen = self._reply = 0  # characters of all messages except instructions, and of replies since the last turn

    def read(self, message: Message) -> bool:
        """Add the next message; return whether it is a user turn."""
        turn = is_user_turn(message)
        if turn:
            self._prompts.append(message.content)
            self._count += 1
            self._history, self._last_reply, self._reply = self._seen, self._reply, 0
        elif message.role == "assistant":
            self._reply += len(message.content)
        if message.role not in INSTRUCTIONS:
            self._seen += len(message.content)
        return turn

    def turns(self) -> UserTurns:
        """Return the predictor's input at the latest user turn; before the first one, that of a conversation without text."""
        if not self._count:
            return UserTurns(NO_TEXT, 1, self._seen, told_apart=False)
        return UserTurns(tuple(self._prompts), self._count, self._history, self._last_reply)


def from_messages(messages: Iterable[Message], window: int) -> UserTurns:
    """Return the last ``window`` user prompts of a chat.

    Raises:
        InvalidRequest: there is no message, an unknown role, or text that is not Unicode.
    """
    reader = TurnReader(window)
    position = -1
    for position, message in enumerate(messages):
        if message.role not in ROLES:
            # The message omits the role: a client that confuses its fields would put user text into the log.
            raise InvalidRequest(f"message {position} has an unknown role; known are {', '.join(sorted(ROLES))}")
        reader.read(message)
    turns = reader.turns()
    if position < 0:
        raise InvalidRequest("the conversation has no messages: send at least one")
    for prompt in turns.prompts:
        _refuse_surrogates(prompt)
    return turns


def from_prompt(text: str) -> UserTurns:
    """Return plain prompt text as one user turn. Raises InvalidRequest if it is not Unicode."""
    _refuse_surrogates(text)
    return UserTurns((text,) if text.strip() else NO_TEXT, 1, told_apart=False)


def lone_surrogate(text: str) -> int | None:
    """Return the position of a lone surrogate, which JSON can contain but tokenizers reject; None if there is none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def _refuse_surrogates(prompt: str) -> None:
    position = lone_surrogate(prompt)
    if position is not None:
        raise InvalidRequest(
            f"a user prompt is not valid Unicode (a lone surrogate at character {position}): repair its JSON escapes"
        )


def with_turn_count(turns: UserTurns, turn_count: int | None, limit: int) -> UserTurns:
    """Return the turns with the caller's count, which exceeds the input's if the caller truncates the history.

    A lower count is rejected: the caller's counter restarts (per request or per window), and its values would silently degrade
    all predictions. Without a caller's count, the input's count is limited to ``limit``.

    Raises:
        InvalidRequest: the count is not a whole number in [1, limit], or is below the number of user turns in the input.
    """
    if turn_count is None:
        if turns.turn_count > limit:
            return replace(turns, turn_count=limit)
        return turns
    if isinstance(turn_count, bool) or not isinstance(turn_count, int):
        # JSON has NaN, 2.5 and true.
        raise InvalidRequest(f"turn_count must be a whole number from 1 to {limit}, got {turn_count!r:.40}")
    if not 1 <= turn_count <= limit:
        raise InvalidRequest(f"turn_count must be from 1 to {limit}, got {turn_count}")
    if turn_count < turns.turn_count:
        raise InvalidRequest(
            f"turn_count is {turn_count}, but the input has {turns.turn_count} user turns: count all turns so far, "
            "or leave it out"
        )
    return replace(turns, turn_count=turn_count)
