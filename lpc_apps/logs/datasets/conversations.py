"""Whole conversations as OpenAI chat messages, one JSON object each: `{"messages": [{role, content}, ...]}`.

Records of LMSYS-Chat-1M, Chatbot Arena and WildChat are read as well (`lpc_apps.logs.datasets.published`).

Messages, content parts, `tools` and `model` are read as in every log of chats (`lpc_apps.logs.chats.body`). Optional: `id` or
`conversation_id`. Format: https://platform.openai.com/docs/api-reference/chat/create (messages). ShareGPT's turns
(`{"conversations": [{"from": "human", "value": "..."}]}`) and single prompts (`{"prompt": "...", "response": "..."}`) are
read as well.

One record contains a conversation with all its messages. A gateway's request log repeats the history in each request, so
every request except the last would look like a user who left. Therefore repeated ids are wrong.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from lpc.model.conversation import ROLES, Message
from lpc_apps.logs.chats.body import Prompt, prompt_of
from lpc_apps.logs.chats.fields import first_of
from lpc_apps.logs.datasets.conversation import Conversation
from lpc_apps.logs.datasets.published import as_messages, is_published
from lpc_apps.logs.datasets.reading import id_of, read
from lpc_apps.logs.records import Record, Skipped, WrongRecord

REPLIES: Final = ("response", "completion")
"""Names of the reply to a single `prompt`."""


def has_shape(record: Record) -> bool:
    """Return whether a record is a conversation, by its fields."""
    return (
        "messages" in record
        or isinstance(record.get("conversations"), list)
        or isinstance(record.get("prompt"), str)
        or is_published(record)
    )


def load_conversations(path: Path, skipped: Skipped) -> Iterator[Conversation]:
    """Yield the conversations of a file or folder; the texts of a message's parts are joined. Raises DatasetError."""
    parse = conversation_parser()

    def conversation(record: Record, place: str) -> Conversation:
        name, prompt = parse(record)
        return Conversation(name or place, tuple(Message(message.role, message.text) for message in prompt.messages))

    return read("conversations", path, conversation, skipped)


def conversation_parser() -> Callable[[Record], tuple[str, Prompt]]:
    """Return a function that returns a record's id (empty: none) and its messages. It raises WrongRecord."""
    seen: set[str] = set()

    def parse(record: Record) -> tuple[str, Prompt]:
        record = as_messages(record)
        key = next((key for key in ("id", "conversation_id") if record.get(key) is not None), None)
        name = id_of(record, key) if key else ""
        record = _with_messages(record)
        messages = record["messages"]
        if isinstance(messages, list) and any(isinstance(message, str) for message in messages):
            raise WrongRecord("a message is not an object")
        prompt = prompt_of(record)
        # A reply under another name, such as ShareGPT's `gpt`, would look like a part of the next prompt.
        if any(message.role not in ROLES for message in prompt.messages):
            raise WrongRecord("unknown role")
        if not any(message.is_user_turn for message in prompt.messages):
            raise WrongRecord("no user message")
        if name in seen:
            raise WrongRecord("id repeated (write one record per conversation, with all its messages)")
        if name:
            seen.add(name)
        return name, prompt

    return parse


def _with_messages(record: Record) -> Record:
    """Return a record with the field `messages`. Raises WrongRecord if it has neither that nor what stands for it."""
    if "messages" in record:
        return record
    if "conversations" in record:
        return record | {"messages": record["conversations"]}
    if not isinstance(record.get("prompt"), str):
        raise WrongRecord("no field messages")
    reply = first_of(record, *REPLIES)
    messages = [{"role": "user", "content": record["prompt"]}]
    return record | {"messages": [*messages, {"role": "assistant", "content": reply}] if isinstance(reply, str) else messages}
