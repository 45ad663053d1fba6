"""LangChain's cache (`set_llm_cache(LpcCache(...))`) on the sidecar's response caches. Needs `langchain-core`.

LangChain hands over a prompt and a string of the model's settings. A chat's prompt is parsed, so that its last user turn is
known and the semantic tier can do its work within the same history; the settings count as a whole. Answers with tool calls,
with several choices or without a word that they came to their end are not kept, and neither are those of a temperature above
0, or of none, unless the scope allows it.
"""

import ast
import asyncio
import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from langchain_core.caches import RETURN_VAL_TYPE, BaseCache
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, Generation

from lpc.cache.bodies import DEFAULT_SCOPE, body_of, compact, question, reply_of
from lpc.cache.client import TIMEOUT_S, ResponseCacheClient
from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.wire.access import Access

MISSES: Final = 10_000
"""Misses whose answers may still be handed in; a model that fails hands in none."""
_ROLES: Final = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "function"}
_ENDS: Final = {"stop": "stop", "end_turn": "stop", "eos": "stop", "eos_token": "stop"}
"""What providers say of an answer that came to its end."""


class LpcCache(BaseCache):
    """Thread-safe.

    Args:
        address: of the sidecar, host:port or unix:///path.
        access: how to get in (TLS, token).
        scope: of the operator's settings; empty is "default".
        tenant: whose answers these are, where this process serves several.
        tags: by which they can be invalidated.
        timeout_s: longest time that looking up may take.
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
        self._lock = threading.Lock()
        self._misses: OrderedDict[tuple[str, str], pb.Miss] = OrderedDict()

    def lookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        """Return the answer that was kept, if there is one."""
        asked = self._question(prompt, llm_string)
        if asked is None:
            return None
        answer = self._client.lookup(asked)
        if not answer.HasField("hit"):
            with self._lock:
                self._misses[prompt, llm_string] = answer.miss
                while len(self._misses) > MISSES:
                    self._misses.popitem(last=False)
            return None
        return _generations(answer.hit, chat=asked.WhichOneof("_prompt") is None)

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        """Hand in what the model answered."""
        with self._lock:
            miss = self._misses.pop((prompt, llm_string), pb.Miss())
        asked = self._question(prompt, llm_string)
        if asked is None:
            return
        response = _response(return_val, asked.model)
        if response is not None or miss.flight or miss.candidate:
            # Without a response it is an answer that came to its end and cannot be kept.
            self._client.store(pb.StoreRequest(request=asked, response=response, flight=miss.flight, candidate=miss.candidate))

    def clear(self, **kwargs: Any) -> None:
        """Make all that was stored in this scope unfindable, or of the ``tag`` or ``model`` given. Raises CacheError."""
        message = pb.InvalidateRequest(scope=self._scope or DEFAULT_SCOPE)
        for name in ("tag", "model"):
            if name in kwargs:
                setattr(message, name, str(kwargs[name]))
        self._client.invalidate(message)

    async def alookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        """As :meth:`lookup`, in a thread."""
        return await asyncio.to_thread(self.lookup, prompt, llm_string)

    async def aupdate(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        """As :meth:`update`, in a thread."""
        await asyncio.to_thread(self.update, prompt, llm_string, return_val)

    async def aclear(self, **kwargs: Any) -> None:
        """As :meth:`clear`, in a thread."""
        await asyncio.to_thread(self.clear, **kwargs)

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def _question(self, prompt: str, llm_string: str) -> pb.Request | None:
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
    """Return the messages of a chat's prompt; None of a plain one."""
    try:
        read = json.loads(prompt)
        if not isinstance(read, list) or not read:
            return None
        return [_message(one["kwargs"]) for one in read]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _message(said: Mapping[str, Any]) -> dict[str, Any]:
    # What the model said of its earlier answers is not what is asked of it.
    left_out = ("type", "id", "content", "response_metadata", "usage_metadata")
    others = {name: value for name, value in said.items() if name not in left_out and value not in ({}, [], None)}
    return {**others, "role": _ROLES.get(said["type"], said["type"]), "content": said["content"]}


def _settings(llm_string: str) -> dict[str, Any]:
    """Return what is found of a model's settings in LangChain's two forms of them."""
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
    known = {"finish_reason": hit.response.finish_reason, "model_name": model, "lpc_entry": hit.entry_id.hex()}
    if chat:
        return [ChatGeneration(message=AIMessage(text, response_metadata=known), generation_info=known)]
    return [Generation(text=text, generation_info=known)]


def _response(generations: RETURN_VAL_TYPE, model: str) -> pb.Response | None:
    """Return an answer as the caches keep it; None where it is none that may be kept."""
    if len(generations) != 1:
        return None
    (generation,) = generations
    message = getattr(generation, "message", None)
    if getattr(message, "tool_calls", None) or getattr(message, "invalid_tool_calls", None):
        return None
    if message is not None and not isinstance(message.content, str):
        return None
    info = {**(getattr(message, "response_metadata", None) or {}), **(generation.generation_info or {})}
    end = _ENDS.get(str(info.get("finish_reason") or info.get("stop_reason")))
    if end is None:
        return None
    usage = getattr(message, "usage_metadata", None) or {}
    tokens = {"prompt_tokens": usage.get("input_tokens", 0), "completion_tokens": usage.get("output_tokens", 0)}
    said = {"text": generation.text} if message is None else {"message": {"role": "assistant", "content": message.content}}
    body = {
        "id": "chatcmpl-lpc" if message is not None else "cmpl-lpc",
        "object": "chat.completion" if message is not None else "text_completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, **said, "logprobs": None, "finish_reason": end}],
        "usage": {**tokens, "total_tokens": sum(tokens.values())},
    }
    return pb.Response(body=compact(body), finish_reason=end, **tokens)
