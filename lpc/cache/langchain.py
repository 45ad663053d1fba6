"""LangChain cache (`set_llm_cache(LpcCache(...))`) backed by the sidecar's response caches. Needs `langchain-core`.

LangChain passes a prompt and a string of the model's settings. The prompt of a chat is parsed into messages, so that the
semantic tier can compare last user turns within the same history. The settings string is part of the key. Answers with tool
calls, with several choices or without a finish reason are not cached. Neither are answers at a temperature above 0 or at an
unknown one, unless the scope allows it.
"""

import ast
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from langchain_core.caches import RETURN_VAL_TYPE, BaseCache
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, Generation

from lpc.cache.bodies import DEFAULT_SCOPE, body_of, compact, question, reply_of
from lpc.cache.client import TIMEOUT_S, ResponseCacheClient
from lpc.cache.misses import PendingMisses
from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.wire.access import Access

_ROLES: Final = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "function"}
_STOP_REASONS: Final = ("stop", "end_turn", "eos", "eos_token")
"""Finish reasons of a complete answer, by various providers."""


class LpcCache(BaseCache):
    """Thread-safe. LangChain runs the asynchronous methods in threads.

    Args:
        address: the sidecar's address, host:port or unix:///path.
        access: returns TLS credentials and token.
        scope: name of a scope in the operator's settings; empty means "default".
        tenant: owner of the answers, if this process serves several.
        tags: labels by which the answers can be invalidated.
        timeout_s: longest time that a lookup may take.
    """

    def __init__(
        self,
        address: str,
        *,
        access: Callable[[], Access] = Access,
        scope: str = "",
        tenant: str = "",
        tags: Sequence[str] = (),
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._client = ResponseCacheClient(address, access=access, timeout_s=timeout_s)
        self._scope, self._tenant, self._tags = scope, tenant, tags
        self._misses = PendingMisses()

    def lookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        """Return the cached answer, or None."""
        request = self._request(prompt, llm_string)
        if request is None:
            return None
        answer = self._client.lookup(request)
        if not answer.HasField("hit"):
            self._misses.add(request, answer.miss)
            return None
        return _generations(answer.hit, chat=request.WhichOneof("_prompt") is None)

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        """Store the model's answer."""
        request = self._request(prompt, llm_string)
        if request is None:
            return
        miss = self._misses.pop(request)
        response = _response(return_val, request.model)
        if response is not None or miss.flight or miss.candidate:
            # An absent response reports that the model has answered and that the answer must not be cached.
            self._client.store(
                pb.StoreRequest(request=request, response=response, flight=miss.flight, candidate=miss.candidate)
            )

    def clear(self, **kwargs: Any) -> None:
        """Make this scope's answers unfindable; with ``tag`` or ``model``, the client's answers of these. Raises CacheError."""
        message = pb.InvalidateRequest(scope=self._scope or DEFAULT_SCOPE)
        for name in ("tag", "model"):
            if name in kwargs:
                setattr(message, name, str(kwargs[name]))
        self._client.invalidate(message)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _request(self, prompt: str, llm_string: str) -> pb.Request | None:
        settings = _settings(llm_string)
        body: dict[str, Any] = {
            "model": settings.get("model") or settings.get("model_name") or "",
            "langchain": llm_string,
            "temperature": settings.get("temperature"),
            "n": settings.get("n"),
        }
        messages = _messages(prompt)
        body |= {"prompt": prompt} if messages is None else {"messages": messages}
        try:
            return question(body, scope=self._scope, tenant=self._tenant, tags=self._tags)
        except (ValueError, TypeError, KeyError):
            return None


def _messages(prompt: str) -> list[dict[str, Any]] | None:
    """Return the messages of a chat's prompt; None if the prompt is plain text."""
    try:
        serialised = json.loads(prompt)
        if not isinstance(serialised, list) or not serialised:
            return None
        return [_message(message["kwargs"]) for message in serialised]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _message(fields: Mapping[str, Any]) -> dict[str, Any]:
    # Metadata of earlier answers is not part of the request.
    left_out = ("type", "id", "content", "response_metadata", "usage_metadata")
    others = {name: value for name, value in fields.items() if name not in left_out and value not in ({}, [], None)}
    return {**others, "role": _ROLES.get(fields["type"], fields["type"]), "content": fields["content"]}


def _settings(llm_string: str) -> dict[str, Any]:
    """Return the model's settings from LangChain's string: a serialised model, a list of parameters, or both."""
    found: dict[str, Any] = {}
    serialised, _, parameters = llm_string.rpartition("---")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        found |= json.loads(serialised)["kwargs"]
    with contextlib.suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        found |= {name: value for name, value in ast.literal_eval(parameters or llm_string) if value is not None}
    return found


def _generations(hit: pb.Hit, *, chat: bool) -> list[Generation] | None:
    text = reply_of(hit.response)
    if text is None:
        return None
    try:
        body = hit.response.body or body_of(hit.response.chunks) or b"{}"
        model = json.loads(body).get("model", "")
    except (ValueError, KeyError, TypeError):
        model = ""
    info = {"finish_reason": hit.response.finish_reason, "model_name": model, "lpc_entry": hit.entry_id.hex()}
    if chat:
        return [ChatGeneration(message=AIMessage(text, response_metadata=info), generation_info=info)]
    return [Generation(text=text, generation_info=info)]


def _response(generations: RETURN_VAL_TYPE, model: str) -> pb.Response | None:
    """Return an answer in the caches' form; None if it must not be cached."""
    if len(generations) != 1:
        return None
    (generation,) = generations
    message = getattr(generation, "message", None)
    if getattr(message, "tool_calls", None) or getattr(message, "invalid_tool_calls", None):
        return None
    if message is not None and not isinstance(message.content, str):
        return None
    info = {**(getattr(message, "response_metadata", None) or {}), **(generation.generation_info or {})}
    if str(info.get("finish_reason") or info.get("stop_reason")) not in _STOP_REASONS:
        return None
    usage = getattr(message, "usage_metadata", None) or {}
    tokens = {"prompt_tokens": usage.get("input_tokens", 0), "completion_tokens": usage.get("output_tokens", 0)}
    content = {"text": generation.text} if message is None else {"message": {"role": "assistant", "content": message.content}}
    body = {
        "id": "chatcmpl-lpc" if message is not None else "cmpl-lpc",
        "object": "chat.completion" if message is not None else "text_completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": "stop"}],
        "usage": {**tokens, "total_tokens": sum(tokens.values())},
    }
    return pb.Response(body=compact(body), finish_reason="stop", **tokens)
