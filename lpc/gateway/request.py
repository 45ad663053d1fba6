"""What a request to a model asks: read from the JSON of its body."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from lpc.cache.questions import question
from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.gateway.headers import Headers, first
from lpc.gateway.replay import Form
from lpc.gateway.targets import CHAT, COMPLETIONS
from lpc.v1 import predictor_pb2

SESSION_HEADER: Final = b"x-session-id"
"""Names the conversation to vLLM."""
PROMPT_BEGINNING: Final = 2048
"""Characters of a plain prompt by which its engine is chosen: later turns only add to it."""
DEEPEST: Final = 100
"""Levels of a body that is read: what goes deeper is the engine's to refuse."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a completion.

    Attributes:
        body: its JSON.
        messages: of a chat, else none.
        prompt: of /v1/completions, where it is one text.
        form: how the answer is wanted.
        session: the conversation's name, where the request gives one.
        query: of the URL: what it says may be a key, or choose a model.
    """

    body: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]]
    prompt: str | None
    form: Form
    session: str | None
    query: str = ""

    @property
    def cacheable(self) -> bool:
        """Whether it is of a shape that the sidecar can be asked about."""
        return bool(self.messages) or self.prompt is not None

    def question(self, tenant: str, scope: str) -> pb.Request:
        """Return what the sidecar is asked. Raises ValueError or TypeError where it cannot be said."""
        body = {**self.body, "url_query": self.query} if self.query else self.body
        return question(body, scope=scope, tenant=tenant)

    def conversation(self, session: str | None) -> predictor_pb2.Conversation | None:
        """Return what the predictor gets; None if it has no user."""
        if not self.messages:
            return predictor_pb2.Conversation(prompt=self.prompt or "", conversation_id=session or "")
        chat = [
            predictor_pb2.ChatMessage(role=str(message["role"]), content=text_of(message.get("content")))
            for message in self.messages
        ]
        if not any(message.role == "user" for message in chat):
            return None
        return predictor_pb2.Conversation(chat=predictor_pb2.ChatMessages(messages=chat), conversation_id=session or "")


def read(path: str, asked: Mapping[str, Any], session: str | None, query: str = "") -> Asked | None:
    """Return what a completion's body asks; None if it is not understood, or the path is another."""
    if path not in (CHAT, COMPLETIONS):
        return None
    try:
        messages: Sequence[Mapping[str, Any]] = ()
        prompt = None
        if path == CHAT:
            messages = asked["messages"]
            if not all(isinstance(message["role"], str) for message in messages):
                return None
        elif isinstance(asked.get("prompt"), str):
            prompt = asked["prompt"]
        options = asked.get("stream_options") or {}
        form = Form(asked.get("stream") is True, options.get("include_usage") is True)
        return Asked(asked, messages, prompt, form, session, query)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def is_deep(value: object, body: bytes) -> bool:
    """Whether the value of a body is nested more deeply than `DEEPEST`."""
    if body.count(b"{") + body.count(b"[") <= DEEPEST:
        return False
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for one in level for inner in _within(one)]
        if not level:
            return False
    return True


def _within(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def affinity(body: Mapping[str, Any], session: str | None, tenant: str) -> bytes:
    """Return by what the engine is chosen: the conversation's name, else how it begins, the same in all of its turns."""
    return digest("session", tenant, session) if session is not None else digest("beginning", tenant, *_beginning(body))


def _beginning(body: Mapping[str, Any]) -> list[object]:
    """Return the model, and what all turns of a conversation begin with: up to the user's first message."""
    said = body.get("messages") or body.get("input") or body.get("prompt")
    begins = said[:PROMPT_BEGINNING] if isinstance(said, str) else said
    if isinstance(said, list):
        until_user = (i for i, item in enumerate(said) if not isinstance(item, dict) or item.get("role") == "user")
        begins = said[: next(until_user, len(said)) + 1]
    return [*map(body.get, ("model", "system", "instructions")), begins]


def session_of(body: Mapping[str, Any], headers: Headers) -> str | None:
    """Return the conversation's name in vLLM's order: the body, the header, the extra arguments."""
    extra = body.get("vllm_xargs")
    named = (
        body.get("session_id"),
        first(headers, SESSION_HEADER),
        extra.get("session_id") if isinstance(extra, dict) else None,
    )
    return next((name for name in named if isinstance(name, str) and name), None)


def named_otherwise(body: Mapping[str, Any]) -> str | None:
    """Return a name made of OpenAI's fields that engines do not read: `conversation` of the Responses API, `prompt_cache_key`.

    It is of hexadecimal digits, as it will stand in a header field. Many conversations may share a `prompt_cache_key`.
    """
    conversation, key = body.get("conversation"), body.get("prompt_cache_key")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    if isinstance(conversation, str) and conversation:
        return digest("conversation", conversation).hex()
    return digest("key", key, *_beginning(body)).hex() if isinstance(key, str) and key else None


def text_of(content: object) -> str:
    """Return the text of a message's content, which may be a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))


def digest(kind: str, *values: object) -> bytes:
    """Return a digest of values of JSON, which tells where each ends."""
    return blake2b(json.dumps([kind, *values], sort_keys=True).encode(), digest_size=16).digest()
