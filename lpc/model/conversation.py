"""What the predictor looks at: the last user prompts of a conversation and how many user turns it has had.

Paper (Learned Prefix Caching, NeurIPS 2025, section 3.2): the user prompts of the last N + 1 = 5 user turns, without
the model's replies, and the number of turns so far.

What counts as a user turn: one message of role `user` whose content is not blank. Messages of one turn that a gateway
split in two (user, user) count as two, as they do in the logs the head is trained on. Tool and system messages are not
user turns.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from lpc.errors import InvalidRequest

ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
INSTRUCTIONS: Final = frozenset({"system", "developer"})
"""Roles whose text is not part of the history: the operator's, not the conversation's."""


class Message(NamedTuple):
    """One chat message, as in the OpenAI chat-completions API."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class UserTurns:
    """What is known of a conversation when a user turn arrives.

    Attributes:
        prompts: the last user prompts, oldest first: at least one, at most a window.
        turn_count: number of all user turns.
        history_chars: characters of all messages before the last prompt but instructions (estimated from token ids).
        last_reply_chars: characters of the replies between the last two prompts; 0 on the first turn.
        told_apart: whether the input shows where turns begin: plain prompt text does not.
    """

    prompts: tuple[str, ...]
    turn_count: int
    history_chars: int = 0
    last_reply_chars: int = 0
    told_apart: bool = True


def is_user_turn(message: Message) -> bool:
    """Say whether a message is a user turn: of role `user`, and not blank."""
    return message.role == "user" and bool(message.content) and not message.content.isspace()


class TurnReader:
    """Reads a chat message by message; knows at each user turn what a predictor may know of it.

    The one place that does: what is served is read as what is learnt from.
    """

    def __init__(self, window: int) -> None:
        self._prompts: deque[str] = deque(maxlen=window)
        self._count = self._history = self._last_reply = 0
        self._seen = self._reply = 0  # characters of all messages so far but instructions, and of replies since the last turn

    def read(self, message: Message) -> bool:
        """Take the next message; say whether it is a user turn."""
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

    def turns(self) -> UserTurns | None:
        """Return what was known when the latest user turn arrived; None before the first."""
        return UserTurns(tuple(self._prompts), self._count, self._history, self._last_reply) if self._count else None


def from_messages(messages: Iterable[Message], window: int) -> UserTurns:
    """Return the last ``window`` user prompts of a chat.

    Raises:
        InvalidRequest: no message, a role that is none, no user message with text, or text that is not Unicode.
    """
    reader = TurnReader(window)
    position = -1
    for position, message in enumerate(messages):
        if message.role not in ROLES:
            # The role itself is not repeated: a client that mixes up its fields would have its text in our log.
            raise InvalidRequest(f"message {position} has an unknown role; known are {', '.join(sorted(ROLES))}")
        reader.read(message)
    turns = reader.turns()
    if position < 0:
        raise InvalidRequest("the conversation has no messages: send at least one user message")
    if turns is None:
        raise InvalidRequest(f"none of the {position + 1} messages is a user message with text: send at least one")
    for prompt in turns.prompts:
        _refuse_surrogates(prompt)
    return turns


def from_prompt(text: str) -> UserTurns:
    """Return plain prompt text as one user turn. Raises InvalidRequest when it is blank or not Unicode."""
    if not text or text.isspace():
        raise InvalidRequest("the prompt is empty: send the text of at least one user turn")
    _refuse_surrogates(text)
    return UserTurns((text,), 1, told_apart=False)


def lone_surrogate(text: str) -> int | None:
    """Return where half a surrogate pair stands, which JSON can carry and no tokenizer takes; None: nowhere."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def _refuse_surrogates(prompt: str) -> None:
    place = lone_surrogate(prompt)
    if place is not None:
        raise InvalidRequest(
            f"a user prompt is not valid Unicode (a lone surrogate at character {place}): repair its JSON escapes"
        )


def with_turn_count(turns: UserTurns, turn_count: int | None, limit: int) -> UserTurns:
    """Return the turns with the caller's own count, which may exceed what the input shows (a truncated history).

    A count below what the input shows contradicts it: it is refused, since it shows a counter that starts again (per
    request, per window), whose numbers would quietly spoil every prediction. A count made from the input stops at the limit.

    Raises:
        InvalidRequest: the count is not a whole number in [1, limit], or below the number of prompts seen.
    """
    if turn_count is None:
        if turns.turn_count > limit:
            return replace(turns, turn_count=limit)
        return turns
    if isinstance(turn_count, bool) or not isinstance(turn_count, int):
        # Callers outside the type checker's reach: JSON has NaN, 2.5 and true.
        raise InvalidRequest(f"turn_count must be a whole number from 1 to {limit}, got {turn_count!r:.40}")
    if not 1 <= turn_count <= limit:
        raise InvalidRequest(f"turn_count must be from 1 to {limit}, got {turn_count}")
    if turn_count < turns.turn_count:
        raise InvalidRequest(
            f"turn_count is {turn_count}, but the input has {turns.turn_count} user turns: count all turns so far, "
            "or leave it out"
        )
    return replace(turns, turn_count=turn_count)
