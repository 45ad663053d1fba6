"""Parses a request of the wire format to user turns, and refuses invalid ones."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lpc.errors import InvalidRequest
from lpc.model.conversation import Message, UserTurns, from_messages, from_prompt, with_turn_count
from lpc.v1 import predictor_pb2 as pb
from lpc.wire.names import MAX_NAME, is_name
from lpc.wire.tokenizer_files import is_digest
from predictor_service.errors import UnreadPrompt
from predictor_service.requests.served_models import ServedModels

MAX_COUNTED: Final = 2**16
"""Bytes from which on a conversation's characters are not counted, because it is long anyway."""


@dataclass(frozen=True)
class RequestLimits:
    """Bounds of one conversation."""

    max_messages: int
    max_token_ids: int
    max_turn_count: int


class RequestParser:
    """Parses conversations of the wire format. Thread-safe."""

    def __init__(self, limits: RequestLimits, served_models: ServedModels) -> None:
        self.limits = limits
        self.served_models = served_models

    def check(self, conversation: pb.Conversation) -> None:
        """Do the checks that need no parsing. Raises InvalidRequest."""
        kind = conversation.WhichOneof("input")
        if kind is None:
            raise InvalidRequest("the conversation has no input: set one of chat, prompt or tokens")
        if not is_name(conversation.category):
            raise InvalidRequest(f"category is not a name of at most {MAX_NAME} printable characters")
        for field, name in (("conversation_id", conversation.conversation_id), ("user", conversation.user)):
            if len(name) > MAX_NAME:
                raise InvalidRequest(f"{field} has {len(name)} characters, at most {MAX_NAME} are accepted: send a digest")
        if kind == "chat" and len(conversation.chat.messages) > self.limits.max_messages:
            raise InvalidRequest(
                f"the chat has {len(conversation.chat.messages)} messages, at most {self.limits.max_messages} are accepted: "
                "send the last ones and turn_count"
            )
        if kind == "tokens":
            if not is_name(conversation.tokens.served_model):
                raise InvalidRequest(f"tokens.served_model is not a name of at most {MAX_NAME} printable characters")
            if conversation.tokens.tokenizer and not is_digest(conversation.tokens.tokenizer):
                raise InvalidRequest("tokens.tokenizer is not a digest: 64 hexadecimal digits in lower case")
            count = len(conversation.tokens.ids)
            if count == 0:
                raise InvalidRequest("tokens.ids is empty: send the prompt's token ids")
            if count > self.limits.max_token_ids:
                raise InvalidRequest(f"the prompt has {count} token ids, at most {self.limits.max_token_ids} are accepted")

    def length(self, conversation: pb.Conversation) -> int:
        """Return the conversation's length: bytes, or for token ids the characters that they stand for, if more."""
        size = conversation.ByteSize()
        if size > MAX_COUNTED or conversation.WhichOneof("input") != "tokens":
            return size
        tokens = conversation.tokens
        try:
            served_model = self.served_models.get(tokens.served_model, tokens.tokenizer)
        except UnreadPrompt:
            return size
        return max(size, served_model.characters(ids_of(tokens)))

    def parse(self, conversation: pb.Conversation, window: int) -> UserTurns:
        """Return the last ``window`` user prompts and the turn count.

        Raises:
            InvalidRequest: the caller must change the request. UnreadPrompt: its token ids cannot be read now.
        """
        kind = conversation.WhichOneof("input")
        if kind == "chat":
            turns = from_messages((Message(m.role, m.content) for m in conversation.chat.messages), window)
        elif kind == "tokens":
            tokens = conversation.tokens
            turns = self.served_models.get(tokens.served_model, tokens.tokenizer).user_turns(ids_of(tokens), window)
        else:
            turns = from_prompt(conversation.prompt)
        given = conversation.turn_count if conversation.HasField("turn_count") else None
        return with_turn_count(turns, given, self.limits.max_turn_count)


def ids_of(tokens: pb.TokenIds) -> NDArray[np.uint32]:
    """Return token ids without creating a Python object for each, which would hold the interpreter's lock."""
    only = pb.TokenIds()
    only.CopyFrom(tokens)
    only.DiscardUnknownFields()
    only.ClearField("served_model")
    only.ClearField("tokenizer")
    data, count = only.SerializeToString(), len(tokens.ids)
    # A packed field: a tag, a length, and four bytes per id.
    return np.frombuffer(data, "<u4", count, len(data) - 4 * count)
