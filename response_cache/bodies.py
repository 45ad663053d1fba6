"""Converts a request of OpenAI's API to the caches' request."""

import json
from collections.abc import Mapping
from typing import Any, Final

from lpc.cache.v1 import response_cache_pb2 as pb

DEFAULT_SCOPE: Final = "default"
"""Scope of a request that does not name one."""
_NOT_PARAMETERS: Final = ("model", "messages", "tools", "prompt")
"""Fields with an own field in `pb.Request`."""


def question(body: Mapping[str, Any], *, scope: str = "", tenant: str = "") -> pb.Request:
    """Return the caches' request for a body of /v1/chat/completions, or of /v1/completions with one prompt.

    Args:
        body: the parsed JSON object.
        scope: name of a scope in the operator's settings; empty means "default".
        tenant: the caller's own client, if it serves several. Answers are not shared between tenants.

    Raises:
        ValueError, TypeError, KeyError: the body is not such a request, or its text is not Unicode.
    """
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise ValueError("the request names no model")
    if body.get("messages") and body.get("prompt") is not None:
        raise ValueError("the request has messages and a prompt: send one of the two")
    parameters = {name: value for name, value in body.items() if name not in _NOT_PARAMETERS}
    extra = parameters.get("vllm_xargs")
    if isinstance(extra, Mapping):
        parameters["vllm_xargs"] = {name: value for name, value in extra.items() if not _is_prefix_cache_hint(name)} or None
    tools = body.get("tools")
    return pb.Request(
        model=model,
        parameters_json=compact(parameters),
        messages=[_message(message) for message in body.get("messages") or ()],
        tools_json=b"" if tools is None else compact(tools),
        scope=scope or DEFAULT_SCOPE,
        prompt=body.get("prompt"),
        tenant=tenant,
    )


def _is_prefix_cache_hint(name: str) -> bool:
    """Return whether an extra argument is for vLLM's plug-in, so that it cannot change an answer."""
    return name == "session_id" or name.startswith("lpc_")


def _message(message: Mapping[str, Any]) -> pb.Message:
    content = message.get("content")
    others = {name: value for name, value in message.items() if name not in ("role", "content")}
    if not isinstance(content, str):
        others["content"] = content  # chat templates may treat null and "" differently
    text = content if isinstance(content, str) else ""
    return pb.Message(role=message["role"], content=text, other_json=compact(others) if others else b"")


def compact(value: object) -> bytes:
    """Return a value as JSON without white space. Raises ValueError or TypeError if JSON cannot represent it."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None
