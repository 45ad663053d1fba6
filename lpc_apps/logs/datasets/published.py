"""Conversations of published data sets, as records of the format `conversations`.

| Data set | Fields that are read | Schema |
|---|---|---|
| LMSYS-Chat-1M | `conversation_id`, `model`, `conversation` | huggingface.co/datasets/lmsys/lmsys-chat-1m |
| Chatbot Arena | `question_id`, `model_a`, `conversation_a` | huggingface.co/datasets/lmsys/chatbot_arena_conversations |
| WildChat | `model`, `conversation` | huggingface.co/datasets/allenai/WildChat-1M |

All have messages of `role` and `content`. A record of Chatbot Arena contains the same user's prompts to two models: the first
one's conversation is read. WildChat's `conversation_hash` is a hash of the content, so it does not identify a conversation.
"""

from typing import Final

from lpc_apps.logs.records import Record

_FIELDS: Final = (("conversation", "conversation_id", "model"), ("conversation_a", "question_id", "model_a"))
"""Names of the messages, the id and the model."""


def is_published(record: Record) -> bool:
    """Return whether a record has the messages of a published data set, and none of its own."""
    return "messages" not in record and any(isinstance(record.get(messages), list) for messages, *_ in _FIELDS)


def as_messages(record: Record) -> Record:
    """Return a record of a published data set with the fields `messages`, `id` and `model`; any other record as it is."""
    if not is_published(record):
        return record
    messages, name, model = next(fields for fields in _FIELDS if isinstance(record.get(fields[0]), list))
    return {"messages": record[messages], "id": record.get(name), "model": record.get(model)}
