"""What a conversation on the wire shows the return model: numbers and digests, never text."""

import math
import os
from hashlib import blake2b
from typing import Final

import numpy as np

from lpc.model.conversation import UserTurns
from lpc.model.returns.facts import Facts
from lpc.v1 import predictor_pb2 as pb

CHARS_PER_TOKEN: Final = 4.0
"""By which lengths in characters are taken to tokens: of English text and the usual vocabularies."""
OPENING_TOKENS: Final = 1024
OPENING_CHARS: Final = int(OPENING_TOKENS * CHARS_PER_TOKEN)

_KEY: Final = os.urandom(32)
"""Of this process: openings are counted in memory only."""


def facts_of(conversation: pb.Conversation, turns: UserTurns) -> Facts:
    """Return what a conversation itself shows of its latest turn.

    Args:
        conversation: as it came.
        turns: what was read of it.
    """
    if conversation.WhichOneof("input") == "tokens":
        input_tokens = float(len(conversation.tokens.ids))
    else:
        input_tokens = (turns.history_chars + len(turns.prompts[-1])) / CHARS_PER_TOKEN
    reply_tokens = turns.last_reply_chars / CHARS_PER_TOKEN if turns.turn_count > 1 else math.nan
    return Facts(turns.turn_count, input_tokens, reply_tokens=reply_tokens, category=_category(conversation.category))


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


def opening_of(conversation: pb.Conversation) -> bytes:
    """Return a keyed digest of how a conversation begins: the same for all of its turns, unless it begins with few tokens."""
    kind = conversation.WhichOneof("input")
    if kind == "tokens":
        data = np.array(conversation.tokens.ids[:OPENING_TOKENS], "<u4").tobytes()
    elif kind == "chat":
        data = _up_to_first_user(conversation.chat)[:OPENING_CHARS].encode(errors="replace")
    else:
        data = conversation.prompt[:OPENING_CHARS].encode(errors="replace")
    return blake2b(data, digest_size=8, key=_KEY).digest()
