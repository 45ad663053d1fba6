"""Computes the return model's input from a conversation of the wire format: numbers and digests, never text."""

import math
import os
from hashlib import blake2b
from typing import Final

import numpy as np

from lpc.model.conversation import UserTurns
from lpc.model.returns.facts import Facts
from lpc.v1 import predictor_pb2 as pb

CHARS_PER_TOKEN: Final = 4.0
"""Converts characters to tokens; typical of English text."""
OPENING_TOKENS: Final = 1024
OPENING_CHARS: Final = int(OPENING_TOKENS * CHARS_PER_TOKEN)

_KEY: Final = os.urandom(32)
"""Random per process, because openings are stored in memory only."""


def facts_of(conversation: pb.Conversation, turns: UserTurns) -> Facts:
    """Return the facts about the latest turn that the conversation itself contains; ``turns``: its parsed user turns."""
    if conversation.WhichOneof("input") == "tokens":
        input_tokens = float(len(conversation.tokens.ids))
    else:
        input_tokens = (turns.history_chars + len(turns.prompts[-1])) / CHARS_PER_TOKEN
    reply_tokens = turns.last_reply_chars / CHARS_PER_TOKEN if turns.turn_count > 1 else math.nan
    return Facts(turns.turn_count, input_tokens, reply_tokens=reply_tokens, category=_category(conversation.category))


def _category(name: str) -> str:
    """Return a digest of a category, the same in every process, because the saved state must not contain text of callers."""
    return blake2b(name.encode(), digest_size=8, person=b"category").hexdigest() if name else ""


def _up_to_first_user(chat: pb.ChatMessages) -> str:
    """Return instructions and first prompt, which stay the same in later turns."""
    contents = []
    for message in chat.messages:
        contents.append(message.content)
        if message.role == "user":
            break
    return "\0".join(contents)


def opening_of(conversation: pb.Conversation) -> bytes:
    """Return a keyed digest of a conversation's start, the same for all its turns unless the start has few tokens."""
    kind = conversation.WhichOneof("input")
    if kind == "tokens":
        data = np.array(conversation.tokens.ids[:OPENING_TOKENS], "<u4").tobytes()
    elif kind == "chat":
        data = _up_to_first_user(conversation.chat)[:OPENING_CHARS].encode(errors="replace")
    else:
        data = conversation.prompt[:OPENING_CHARS].encode(errors="replace")
    return blake2b(data, digest_size=8, key=_KEY).digest()
