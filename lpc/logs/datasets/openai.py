"""An operator's own logs as OpenAI chat messages."""

from collections.abc import Iterator
from pathlib import Path

from lpc.logs.datasets.conversation import Conversation
from lpc.logs.datasets.reading import id_of, messages_of, read
from lpc.logs.records import Record, Skipped, WrongRecord


def load_openai(path: Path, skipped: Skipped) -> Iterator[Conversation]:
    """Yield the conversations of your own logs as OpenAI chat messages.

    One JSON object per line and conversation: `{"messages": [{role, content}, ...]}`.

    Content is a string, a list of parts whose texts are joined, as in `lpc predict`, or null in a message that only calls
    tools. Format: https://platform.openai.com/docs/api-reference/chat/create (messages). Optional: `id` or
    `conversation_id`.

    One record contains a conversation with all its messages. A gateway's request log repeats the history in each request, so
    every request except the last would be an example of a user who left. Therefore repeated ids are rejected.
    """
    seen: set[str] = set()

    def conversation(record: Record, place: str) -> Conversation:
        key = next((key for key in ("id", "conversation_id") if record.get(key) is not None), None)
        name = id_of(record, key) if key else place
        messages = messages_of(record["messages"], _text)
        if name in seen:
            raise WrongRecord("id repeated (write one record per conversation, with all its messages)")
        seen.add(name)
        return Conversation(name, messages)

    return read("openai", path, conversation, skipped)


def _text(message: Record) -> str:
    content = message.get("content")
    if content is None and message["role"] != "user":
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise WrongRecord("content is not text")
    return "".join(_part(part) for part in content)


def _part(part: object) -> str:
    if not isinstance(part, dict):
        raise WrongRecord("a content part is not an object")
    text = part.get("text")
    if text is None and part.get("type") != "text":
        return ""  # an image, sound or file
    if not isinstance(text, str):
        raise WrongRecord("a content part's text is not text")
    return text
