"""An answer of the engine, its text, and whether it may be cached."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from response_cache.keys.canonical import CacheRequest
from response_cache.store.scopes import ScopeSettings

Refusal: TypeAlias = Literal[
    "aborted",
    "empty",
    "error",
    "finish_reason",
    "full",
    "images",
    "logprobs",
    "n",
    "no_store",
    "off",
    "scopes",
    "stale",
    "temperature",
    "too_large",
    "tool_calls",
    "unavailable",
]
REFUSALS: Final[Sequence[str]] = get_args(Refusal)
STOP: Final = "stop"


class Answer(NamedTuple):
    """An answer of the engine.

    Attributes:
        chunks: data of the server-sent events, as sent; empty if the answer was not streamed.
        body: response body; empty if the answer was streamed.
        prompt_tokens, completion_tokens: usage reported by the engine.
        finish_reason: finish reason of the only choice.
        engine_s: duration of the engine's response in seconds.
    """

    chunks: tuple[bytes, ...] = ()
    body: bytes = b""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""
    engine_s: float = 0.0

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self.body) + sum(map(len, self.chunks))

    def text(self) -> str:
        """Return the content or refusal of the only choice; if there is no choice, the body."""
        texts = [_text(choice) for choice in self._choices()]
        return "".join(texts) if texts or self.chunks else self.body.decode("utf-8", "replace")

    def refusal(self) -> Refusal | None:
        """Return why the answer must not be cached: it is incomplete, more than text, or more than one choice."""
        if not self.size:
            return "empty"
        for document in self._documents():
            if document.get("error") is not None:
                return "error"
        reasons = set()
        for choice in self._choices():
            if choice.get("index"):
                return "n"
            message = _message(choice)
            if message.get("tool_calls") or message.get("function_call"):
                return "tool_calls"
            if choice.get("finish_reason") is not None:
                reasons.add(choice["finish_reason"])
        if self.finish_reason in ("tool_calls", "function_call") or reasons & {"tool_calls", "function_call"}:
            return "tool_calls"
        if self.finish_reason != STOP or reasons - {STOP}:
            return "finish_reason"
        return None if self.text().strip() else "empty"

    def _documents(self) -> Iterator[Mapping[str, Any]]:
        for data in self.chunks or (self.body,):
            try:
                document = json.loads(data)
            except (ValueError, RecursionError):
                continue
            if isinstance(document, dict):
                yield document

    def _choices(self) -> Iterator[Mapping[str, Any]]:
        for document in self._documents():
            choices = document.get("choices")
            if isinstance(choices, list):
                yield from (choice for choice in choices if isinstance(choice, dict))


_FORBIDDEN: Final[Mapping[str, tuple[Refusal, tuple[object, ...]]]] = {
    "store": ("no_store", (None, True)),
    "n": ("n", (None, 1)),
    "best_of": ("n", (None, 1)),
    "logprobs": ("logprobs", (None, False)),
    "top_logprobs": ("logprobs", (None, 0)),
    "prompt_logprobs": ("logprobs", (None, False)),
}
"""Parameters that prevent caching: the refusal, and the values that do not prevent it."""


def refused(request: CacheRequest, settings: ScopeSettings) -> Refusal | None:
    """Return why no answer to a request may be cached; None if it may."""
    parameters = request.parameters
    if not settings.keeps:
        return "off"
    for name in parameters.keys() & _FORBIDDEN.keys():
        refusal, allowed = _FORBIDDEN[name]
        # 0 and False differ: logprobs=0 requests log probabilities.
        if not any(parameters[name] == value and type(parameters[name]) is type(value) for value in allowed):
            return refusal
    if any(map(_has_remote_content, request.messages)):
        return "images"
    # The default is the model's own temperature, which is usually above 0.
    temperature = parameters.get("temperature")
    if not settings.any_temperature and (isinstance(temperature, bool) or temperature != 0):
        return "temperature"
    return None


def not_kept(request: CacheRequest, answer: Answer, settings: ScopeSettings, max_bytes: int) -> Refusal | None:
    """Return why an answer is not cached; None if it is."""
    return refused(request, settings) or answer.refusal() or ("too_large" if answer.size > max_bytes else None)


def _has_remote_content(message: Mapping[str, Any]) -> bool:
    """Return whether a message links to content, such as an image, which may change without the request changing."""
    content = message.get("content")
    return isinstance(content, list) and not all(map(_is_inline, content))


def _is_inline(part: Any) -> bool:
    if not isinstance(part, dict):
        return isinstance(part, str)
    kind = part.get("type")
    if kind in ("text", "refusal", "input_audio"):
        return True
    inner = part.get(kind) if isinstance(kind, str) else None
    url = inner.get("url") if isinstance(inner, dict) else inner
    return isinstance(url, str) and url.startswith(("data:", "sha256:"))


def _message(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    message = choice.get("message") or choice.get("delta")
    return message if isinstance(message, dict) else {}


def _text(choice: Mapping[str, Any]) -> str:
    message = _message(choice)
    text = choice.get("text") or message.get("content") or message.get("refusal")
    return text if isinstance(text, str) else ""
