"""WildChat-1M and WildChat-4.8M: conversations with ChatGPT that users gave in exchange for free access, from April 2023.

Fields (https://huggingface.co/datasets/allenai/WildChat-1M and allenai/WildChat-4.8M; paper: arXiv 2405.01470):
conversation_hash, model, timestamp, conversation [{role, content, language, turn_identifier, timestamp, redacted, toxic,
hashed_ip, country, state, header; 4.8M also created, openai_id, token_counter, usage, ...}], turn, language (a name:
"English"), openai_moderation, detoxify_moderation, toxic, redacted.

conversation_hash is the hash of the contents, so conversations that say the same share it; turn_identifier is the unique
one. The id here is both: hash and the first turn's identifier, or the place in the file where there is none.

The first release (allenai/WildChat) has conversation_id instead, as LMSYS-Chat-1M has: read it as that.
"""

from collections.abc import Iterator
from pathlib import Path

from lpc.logs.datasets.conversation import Conversation
from lpc.logs.datasets.reading import id_of, language_of, messages_of, read
from lpc.logs.records import Record, Skipped


def load_wildchat(path: Path, skipped: Skipped | None = None) -> Iterator[Conversation]:
    """Yield the conversations of a file or folder. Raises DatasetError as `reading.read` says."""
    return read("wildchat", path, _conversation, skipped if skipped is not None else Skipped())


def _conversation(record: Record, place: str) -> Conversation:
    messages = messages_of(record["conversation"])
    turn = record["conversation"][0].get("turn_identifier")
    name = f"{id_of(record, 'conversation_hash')}/{place if turn is None else turn}"
    return Conversation(name, messages, language=language_of(record))
