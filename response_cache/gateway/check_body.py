"""The bodies of a hit check's requests, from the body that an engine was sent.

Only fields that make the prompt are taken over, because a check must not do more than the request did: not fifty answers, no
transfer of blocks, no names. If such a field is missing here, the prompt differs and the check finds that it does not hit.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from response_cache.gateway.targets import CHAT, COMPLETIONS

TOKENS: Final = 16
"""Tokens of an answer that are compared."""
CANDIDATES: Final = 5
"""Log-probabilities at each token. Engines return at most 20 by default."""
_CHAT: Final = (
    *("model", "messages", "tools", "tool_choice", "documents", "reasoning_effort"),
    *("chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "add_special_tokens"),
    *("cache_salt", "extra_key", "lora_path"),  # the last two: SGLang
)
_COMPLETION: Final = ("model", "prompt", "add_special_tokens", "cache_salt", "extra_key", "lora_path")
_TEXT: Final = ("text", "refusal", "thinking")
"""Types of content parts without media. An engine may fetch media from addresses in a body, and would fetch them again."""
DONE: Final[Mapping[str, Mapping[str, Any]]] = {
    "vllm": {"vllm_xargs": {"lpc_done": 1}},
    "sglang": {"custom_params": {"lpc_done": True}},
}
"""How a plug-in is asked to evict a request's own blocks first, by kind of engine."""

Reason = Literal["endpoint", "form", "media"]


class CheckBody(NamedTuple):
    """What the requests of one check share.

    Attributes:
        path: of the request.
        fields: make the prompt.
        tokens: that an answer may have.
        model: name of the model, or of the adapter that SGLang is asked for; empty: the request names none.
    """

    path: str
    fields: Mapping[str, Any]
    tokens: int
    model: str

    def again(self, kind: str | None) -> dict[str, Any]:
        """Return the body of a request that hits what the checked one has hit. ``kind`` of the engine; None: not known."""
        asked: dict[str, Any] = (
            {"logprobs": True, "top_logprobs": CANDIDATES} if self.path == CHAT else {"logprobs": CANDIDATES}
        )
        if kind == "vllm":  # two tokens may have one text; other engines may refuse the field
            asked["return_tokens_as_token_ids"] = True
        return {**self.fields, "max_tokens": self.tokens, "temperature": 0, "stream": False, **asked}

    def salted(self, salt: str, kind: str | None) -> dict[str, Any]:
        """Return the body of a request that hits nothing but requests with this salt."""
        return {**self.again(kind), **DONE.get(kind or "", {}), "cache_salt": salt}


def check_body(path: str, fields: Mapping[str, Any]) -> CheckBody | Reason:
    """Return what is asked again of a request that was answered, or why it cannot be checked."""
    if path not in (CHAT, COMPLETIONS):
        return "endpoint"
    if path == COMPLETIONS:
        prompt = fields.get("prompt")
        if not (isinstance(prompt, str) or _are_ids(prompt)):
            return "form"  # several prompts have several answers
    elif (why := _unreadable(fields.get("messages"))) is not None:
        return why
    asked = [fields.get("max_tokens"), fields.get("max_completion_tokens")]
    tokens = min([TOKENS, *(one for one in asked if type(one) is int and one > 0)])
    model = fields.get("lora_path") or fields.get("model")
    kept = {name: fields[name] for name in (_CHAT if path == CHAT else _COMPLETION) if fields.get(name) is not None}
    return CheckBody(path, kept, tokens, model if isinstance(model, str) else "")


def _are_ids(prompt: object) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(one) is int for one in prompt)


def _unreadable(messages: object) -> Reason | None:
    if not isinstance(messages, list) or not messages:
        return "form"
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else 0
        if not isinstance(content, str | list | None):
            return "form"
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, str) and not (isinstance(part, dict) and part.get("type") in _TEXT):
                return "media"
    return None
