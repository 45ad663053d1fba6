"""Chatbot Arena Conversations: 33 thousand battles of two models with a vote, April to June 2023.

Fields (https://huggingface.co/datasets/lmsys/chatbot_arena_conversations; paper: arXiv 2306.05685): question_id, model_a,
model_b, winner, judge, conversation_a and conversation_b [{role, content}], turn, anony, language (a name: "English"),
tstamp, openai_moderation, toxic_chat_tag.

A record is one user who writes each prompt once to two models. Only conversation_a is read: conversation_b has the same
user turns and the same end, so reading it too would count every user twice and weigh this dataset's turns double.

The record ends with the vote, which counts as the conversation's end: what was written after it is not published.
"""

from collections.abc import Iterator
from pathlib import Path

from lpc.logs.datasets.conversation import Conversation
from lpc.logs.datasets.reading import id_of, language_of, messages_of, read
from lpc.logs.records import Record, Skipped


def load_arena(path: Path, skipped: Skipped | None = None) -> Iterator[Conversation]:
    """Yield the conversations with model A of a file or folder. Raises DatasetError as `reading.read` says."""
    return read("arena", path, _conversation, skipped if skipped is not None else Skipped())


def _conversation(record: Record, _place: str) -> Conversation:
    return Conversation(id_of(record, "question_id"), messages_of(record["conversation_a"]), language=language_of(record))
