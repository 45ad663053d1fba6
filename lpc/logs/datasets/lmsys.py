"""LMSYS-Chat-1M: a million conversations with 25 models on the Vicuna demo and Chatbot Arena, April to August 2023.

Fields (https://huggingface.co/datasets/lmsys/lmsys-chat-1m; paper: arXiv 2309.11998): conversation_id, model, conversation
[{role, content}], turn, language (a name: "English"), openai_moderation, redacted. The publisher wrote NAME_1 and the like
over personal names (redacted); such conversations are kept, since their turns are whole.
"""

from collections.abc import Iterator
from pathlib import Path

from lpc.logs.datasets.conversation import Conversation
from lpc.logs.datasets.reading import id_of, language_of, messages_of, read
from lpc.logs.records import Record, Skipped


def load_lmsys(path: Path, skipped: Skipped | None = None) -> Iterator[Conversation]:
    """Yield the conversations of a file or folder. Raises DatasetError as `reading.read` says."""
    return read("lmsys", path, _conversation, skipped if skipped is not None else Skipped())


def _conversation(record: Record, _place: str) -> Conversation:
    return Conversation(id_of(record, "conversation_id"), messages_of(record["conversation"]), language=language_of(record))
