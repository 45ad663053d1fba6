"""An operator's own log: JSONL exported from an OpenAI-compatible gateway, one object per request.

Fields: `time` (seconds since the epoch, or ISO 8601, UTC without an offset), `messages` (`role`, `content`: a string or a list
of parts, of which the text parts are used). Optional: `response` (the reply's text), `session_id`, `user`, `usage`
(`prompt_tokens`, `completion_tokens`), `category`.

- **Blocks** are chained hashes of the rendered messages in blocks of 16 tokens of 4 characters each, so that a turn's blocks
  are a prefix of the next turn's. Token counts come from `usage` if it exists, else from this estimate; the number of
  blocks always comes from the estimate.
- **Conversations** are identified by `session_id`. Without it, a request continues the earlier request of the same `user` with
  the longest list of messages (and response, if logged) that is a proper prefix of its own; the latest among equals.
- **Turns** are the number of requests, or of user messages if that is higher (the log may begin in mid-conversation).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Final

from lpc.logs.datasets.conversation import Conversation
from lpc.logs.datasets.reading import messages_of, unicode_of
from lpc.logs.records import Record, Skipped, WrongRecord
from lpc.logs.traces.request import (
    BlockIds,
    Trace,
    TracedRequest,
    read_lines,
    seconds,
    whole,
)
from lpc.model.conversation import Message, is_user_turn

BLOCK_TOKENS: Final = 16
CHARS_PER_TOKEN: Final = 4
LATEST_S: Final = 1e11
"""Higher values (from the year 5138) are milliseconds by mistake."""
SETTLED_S: Final = 3600.0
"""A conversation with a request in the last seconds of the log may not have ended."""
"""Priority of the request to serve first."""
CATEGORY: Final = "chat"
"""Category of requests without one."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One line of the log. ``time``: seconds since the epoch. Token counts: None if the log has none."""

    time: float
    messages: tuple[Message, ...]
    response: str | None
    session: str | None
    user: str
    input_tokens: int | None
    output_tokens: int | None
    category: str


def read_chat(path: Path) -> Trace:
    """Read a gateway's log as a trace. Raises TraceError: see `read_lines`."""
    skipped = Skipped()
    lines = chat_requests(path, skipped)
    start = lines[0].time
    ids, conversations = BlockIds(), _Conversations()
    requests = []
    for line in lines:
        conversation, turn = conversations.place(line)
        text = "".join(_rendered(message) for message in line.messages)
        answered = text + _rendered(Message("assistant", line.response)) if line.response else ""
        requests.append(
            TracedRequest(
                line.time - start,
                line.input_tokens if line.input_tokens is not None else _tokens(text),
                line.output_tokens if line.output_tokens is not None else _tokens(line.response or ""),
                ids.chain(_block_digests(text)),
                conversation,
                turn,
                line.category,
                with_reply=ids.chain(_block_digests(answered)) if answered else None,
            )
        )
    return Trace(path.name, BLOCK_TOKENS, requests, start=start, skipped=skipped)


def chat_conversations(path: Path, skipped: Skipped | None = None) -> Iterator[Conversation]:
    """Yield each conversation of a gateway's log: its request with the most messages, and that one's response.

    A conversation that was active in the last SETTLED_S seconds of the log has no known end.

    Raises:
        TraceError: see `read_lines`.
    """
    lines = chat_requests(path, skipped if skipped is not None else Skipped())
    places = _Conversations()
    longest: dict[str, ChatRequest] = {}
    latest: dict[str, float] = {}
    for line in lines:
        conversation, _ = places.place(line)
        known = longest.get(conversation)
        if known is None or len(line.messages) >= len(known.messages):
            longest[conversation] = line
        latest[conversation] = line.time
    end = lines[-1].time
    for conversation, line in longest.items():
        reply = (Message("assistant", line.response),) if line.response else ()
        yield Conversation(conversation, line.messages + reply, ended=end - latest[conversation] >= SETTLED_S)


class _Conversations:
    """Finds the conversation of each request; requests must be in order of time."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}
        self._by_messages: dict[bytes, str] = {}  # digest of the user and all messages -> conversation
        self._count = 0

    def place(self, line: ChatRequest) -> tuple[str, int]:
        """Return conversation and turn."""
        conversation = self._by_prefix(line) if line.session is None else f"s:{line.session}"
        asked = sum(map(is_user_turn, line.messages))
        turn = self._turns[conversation] = max(self._turns.get(conversation, 0) + 1, asked)
        return conversation, turn

    def _by_prefix(self, line: ChatRequest) -> str:
        digests = _message_digests(line)
        # Only proper prefixes: two requests with equal messages are two conversations.
        conversation = next((self._by_messages[d] for d in reversed(digests[:-1]) if d in self._by_messages), None)
        if conversation is None:
            self._count += 1
            conversation = f"c{self._count}"
        self._by_messages[digests[-1]] = conversation
        if line.response:
            self._by_messages[_digest(digests[-1], _rendered(Message("assistant", line.response)))] = conversation
        return conversation


def chat_requests(path: Path, skipped: Skipped) -> list[ChatRequest]:
    """Return the log's requests in order of time. Raises TraceError: see `read_lines`."""
    return sorted(read_lines(path, _parse, skipped), key=lambda line: line.time)


def _parse(record: Record) -> ChatRequest:
    usage = record.get("usage")
    if usage is None:
        usage = {}
    if not isinstance(usage, dict):
        raise WrongRecord("usage is not an object")
    response = record.get("response")
    if response is not None and not isinstance(response, str):
        raise WrongRecord("response is not text")
    return ChatRequest(
        _time(record),
        _messages(record.get("messages")),
        unicode_of(response) if response is not None else None,
        _name(record, "session_id"),
        _name(record, "user") or "",
        whole(usage, "prompt_tokens", 1) if usage.get("prompt_tokens") is not None else None,
        whole(usage, "completion_tokens", 0) if usage.get("completion_tokens") is not None else None,
        _name(record, "category") or CATEGORY,
    )


def _time(record: Record) -> float:
    value = record.get("time")
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise WrongRecord("time is not ISO 8601") from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if seconds(record, "time") >= LATEST_S:
        raise WrongRecord("time is in milliseconds: give seconds")
    return seconds(record, "time")


def _messages(value: object) -> tuple[Message, ...]:
    messages = messages_of(value, _content)
    if not any(map(is_user_turn, messages)):
        raise WrongRecord("no user message with text")
    return messages


def _content(message: Record) -> str:
    value = message.get("content")
    if value is None:  # an assistant's message that only calls tools
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        raise WrongRecord("content is neither text nor a list of parts")
    texts = [part.get("text") for part in value if part.get("type") == "text"]
    if not all(isinstance(text, str) for text in texts):
        raise WrongRecord("a text part has no text")
    return "".join(texts)


def _name(record: Record, field: str) -> str | None:
    value = record.get(field)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise WrongRecord(f"{field} is neither text nor a whole number")
    return unicode_of(str(value))


def _rendered(message: Message) -> str:
    # JSON, so that content cannot imitate the start of another message.
    return json.dumps(message, ensure_ascii=False) + "\n"


def _tokens(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN)


def _block_digests(text: str) -> list[bytes]:
    size = BLOCK_TOKENS * CHARS_PER_TOKEN
    return [blake2b(text[at : at + size].encode(), digest_size=16).digest() for at in range(0, len(text), size)]


def _message_digests(line: ChatRequest) -> list[bytes]:
    digests = []
    last = blake2b(line.user.encode(), digest_size=16).digest()
    for message in line.messages:
        last = _digest(last, _rendered(message))
        digests.append(last)
    return digests


def _digest(before: bytes, text: str) -> bytes:
    return blake2b(before + text.encode(), digest_size=16).digest()
