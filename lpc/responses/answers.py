"""An answer of the engine, and what is read in it: whether it may be kept, and what it says."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from lpc.responses.canonical import Asked
from lpc.responses.scopes import ScopeSettings

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
    """What the engine said.

    Attributes:
        chunks: the data of each server-sent event, as sent; empty where it was not streamed.
        body: of an answer that was not streamed; empty where it was.
        prompt_tokens, completion_tokens: as the engine counted.
        finish_reason: of the only choice.
        engine_s: seconds that the engine took.
    """

    chunks: tuple[bytes, ...] = ()
    body: bytes = b""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""
    engine_s: float = 0.0

    @property
    def size(self) -> int:
        """Bytes of the answer."""
        return len(self.body) + sum(map(len, self.chunks))

    def text(self) -> str:
        """Return what the answer says: the content or refusal of its only choice; the body if that is not an OpenAI answer."""
        said = [text for choice in self._choices() for text in (_text(choice),) if text]
        if said or self.chunks:
            return "".join(said)
        return self.body.decode("utf-8", "replace") if not any(True for _ in self._choices()) else ""

    def refusal(self) -> Refusal | None:
        """Say what in the answer forbids to keep it: that it is not whole, not text alone, or not one."""
        if not self.size:
            return "empty"
        for document in self._documents():
            if "error" in document and document["error"] is not None:
                return "error"
        reasons = set()
        for choice in self._choices():
            if choice.get("index"):
                return "n"
            said = _said(choice)
            if said.get("tool_calls") or said.get("function_call"):
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
"""Parameters with which no answer is kept, and the values of theirs with which it is."""


def refused(asked: Asked, settings: ScopeSettings) -> Refusal | None:
    """Say why no answer to a request is kept, whatever it will be; None where one may be."""
    parameters = asked.parameters
    if not settings.keeps:
        return "off"
    for name in parameters.keys() & _FORBIDDEN.keys():
        refusal, allowed = _FORBIDDEN[name]
        # 0 is not False here: with it, log probabilities are asked for.
        if not any(parameters[name] == value and type(parameters[name]) is type(value) for value in allowed):
            return refusal
    if any(map(_out_of_sight, asked.messages)):
        return "images"
    # Silent about it, a request has the model's own, which is above 0 unless its makers say otherwise.
    temperature = parameters.get("temperature")
    if not settings.any_temperature and (isinstance(temperature, bool) or temperature != 0):
        return "temperature"
    return None


def not_kept(asked: Asked, answer: Answer, settings: ScopeSettings, max_bytes: int) -> Refusal | None:
    """Say why an answer is not kept; None where it is. The one place that decides it."""
    because = refused(asked, settings) or answer.refusal()
    if because is None and answer.size > max_bytes:
        return "too_large"
    return because


def _out_of_sight(message: Mapping[str, Any]) -> bool:
    """Whether a message points at what is not in it: an image behind a URL may be another one tomorrow."""
    content = message.get("content")
    return isinstance(content, list) and not all(map(_in_sight, content))


def _in_sight(part: Any) -> bool:
    if not isinstance(part, dict):
        return isinstance(part, str)
    kind = part.get("type")
    if kind in ("text", "refusal", "input_audio"):
        return True
    inner = part.get(kind) if isinstance(kind, str) else None
    url = inner.get("url") if isinstance(inner, dict) else inner
    return isinstance(url, str) and url.startswith(("data:", "sha256:"))


def _said(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    said = choice.get("message") or choice.get("delta") or {}
    return said if isinstance(said, dict) else {}


def _text(choice: Mapping[str, Any]) -> str:
    said = _said(choice)
    text = choice.get("text") or said.get("content") or said.get("refusal")
    return text if isinstance(text, str) else ""
