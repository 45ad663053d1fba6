"""Your own logs as OpenAI chat messages: one JSON object per line and conversation, `{"messages": [{role, content}, ...]}`.

Content is a string or a list of parts, of which those with a text count, joined, as in `lpc predict`; null is what a
message has that only calls tools. Format: https://platform.openai.com/docs/api-reference/chat/create (messages).
Optional: `id` or `conversation_id`, and `language`.

One record per conversation, with all its messages, not one per request: a gateway's request log repeats the history in each
request, and every request but the last would teach that the user left there. Records with the same id are refused for that.
"""

from collections.abc import Iterator
from pathlib import Path

from lpc.logs.datasets.conversation import Conversation
from lpc.logs.datasets.reading import id_of, language_of, messages_of, read
from lpc.logs.records import Record, Skipped, WrongRecord


def load_openai(path: Path, skipped: Skipped | None = None) -> Iterator[Conversation]:
    """Yield the conversations of a file or folder. Raises DatasetError as `reading.read` says."""
    seen: set[str] = set()

    def conversation(record: Record, place: str) -> Conversation:
        key = next((key for key in ("id", "conversation_id") if record.get(key) is not None), None)
        name = id_of(record, key) if key else place
        messages = messages_of(record["messages"], _text)
        if name in seen:
            raise WrongRecord("id repeated (write one record per conversation, with all its messages)")
        seen.add(name)
        return Conversation(name, messages, language=language_of(record))

    return read("openai", path, conversation, skipped if skipped is not None else Skipped())


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
