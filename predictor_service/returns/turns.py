"""From a conversation on the wire to the return model's input of its turn: numbers and digests, never text."""

import math
import os
from hashlib import blake2b
from typing import Final

import numpy as np

from lpc.model.conversation import UserTurns
from lpc.model.returns.memory import NO_PAST, Arrived
from lpc.v1 import predictor_pb2 as pb
from predictor_service.labels.memory import Turn

CHARS_PER_TOKEN: Final = 4.0
"""By which lengths in characters are taken to tokens: of English text and the usual vocabularies."""
OPENING_TOKENS: Final = 1024
OPENING_CHARS: Final = int(OPENING_TOKENS * CHARS_PER_TOKEN)

_KEY: Final = os.urandom(32)
"""Of this process: openings are counted in memory only."""


def arrived(conversation: pb.Conversation, turns: UserTurns, turn: Turn | None, at: float) -> Arrived:
    """Return a turn as the return model takes it; its log-odds are NaN until the model has run.

    The turn's past, up to the one before until now, is then that up to itself.

    Args:
        conversation: as it came.
        turns: what was read of it.
        turn: as it is recognised by its conversation's next one; None where it cannot be.
        at: its arrival, seconds since the Unix epoch. The same turn asked again has the first one's.
    """
    if conversation.WhichOneof("input") == "tokens":
        input_tokens = float(len(conversation.tokens.ids))
    else:
        input_tokens = (turns.history_chars + len(turns.prompts[-1])) / CHARS_PER_TOKEN
    past = None
    if turn is not None and (turn.past is None or turn.past.history.latest < turn.asked_at):  # else it is asked again
        past, turn.past = turn.past, (turn.past or NO_PAST).arrive(turn.asked_at, input_tokens)
    return Arrived(
        conversation=b"" if turn is None else turn.conversation,
        at=at if turn is None else turn.asked_at,
        turn_count=turns.turn_count,
        input_tokens=input_tokens,
        reply_tokens=turns.last_reply_chars / CHARS_PER_TOKEN if turns.turn_count > 1 else math.nan,
        log_odds=math.nan,
        category=_category(conversation.category),
        opening=_opening(conversation),
        past=past,
    )


def _category(name: str) -> str:
    """Return a class by another name, the same in every process: what is kept across restarts holds nothing a caller wrote."""
    return blake2b(name.encode(), digest_size=8, person=b"category").hexdigest() if name else ""


def _up_to_first_user(chat: pb.ChatMessages) -> str:
    """Return instructions and the first prompt: what a conversation begins with does not change with its later turns."""
    contents = []
    for message in chat.messages:
        contents.append(message.content)
        if message.role == "user":
            break
    return "\0".join(contents)


def _opening(conversation: pb.Conversation) -> bytes:
    """Return a keyed digest of how a conversation begins: the same for all of its turns, unless it begins with few tokens."""
    kind = conversation.WhichOneof("input")
    if kind == "tokens":
        data = np.array(conversation.tokens.ids[:OPENING_TOKENS], "<u4").tobytes()
    elif kind == "chat":
        data = _up_to_first_user(conversation.chat)[:OPENING_CHARS].encode(errors="replace")
    else:
        data = conversation.prompt[:OPENING_CHARS].encode(errors="replace")
    return blake2b(data, digest_size=8, key=_KEY).digest()
