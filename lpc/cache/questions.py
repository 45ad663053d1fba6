"""The body of an OpenAI request as the response caches ask it, and the text of an answer."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lpc.cache.v1 import response_cache_pb2 as pb

_APART: Final = ("model", "messages", "tools", "prompt")
_OF_THE_FORM: Final = ("stream", "stream_options")
"""They say how an answer is told, not which."""


def question(
    body: Mapping[str, Any], *, scope: str = "", tenant: str = "", tags: Sequence[str] = (), model_version: str = ""
) -> pb.Request:
    """Return what the sidecar is asked of a request's body, of /v1/chat/completions or, with one prompt, /v1/completions.

    Args:
        body: as JSON is read.
        scope: of the operator's settings; empty is "default".
        tenant: whose request it is, where the caller serves several. It only narrows what is the caller's own.
        tags: by which the answer can be invalidated.
        model_version: of the weights, where it is known.

    Raises:
        ValueError, TypeError, KeyError: the body is none of these, or its text is not Unicode.
    """
    parameters = {name: value for name, value in body.items() if name not in (*_APART, *_OF_THE_FORM)}
    tools = body.get("tools")
    return pb.Request(
        model=str(body.get("model") or ""),
        parameters_json=compact(parameters),
        messages=[_message(message) for message in body.get("messages") or ()],
        tools_json=compact(tools) if tools else b"",
        scope=scope,
        tags=tags,
        prompt=body.get("prompt"),
        tenant=tenant,
        model_version=model_version,
    )


def _message(message: Mapping[str, Any]) -> pb.Message:
    content = message.get("content")
    text = content if isinstance(content, str) else None
    others = {name: value for name, value in message.items() if name != "role" and (name != "content" or text is None)}
    return pb.Message(role=message["role"], content=text or "", other_json=compact(others) if others else b"")


def reply_of(response: pb.Response) -> str | None:
    """Return the text that an answer says; None where it says something else (tool calls) or cannot be read."""
    try:
        if response.body:
            return _text(json.loads(response.body)["choices"][0], "message")
        parts: list[str] = []
        for data in response.chunks:
            for choice in json.loads(data)["choices"]:
                text = _text(choice, "delta")
                if text is None:
                    return None
                parts.append(text)
        return "".join(parts)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None


def _text(choice: Mapping[str, Any], name: str) -> str | None:
    if "text" in choice:  # of /v1/completions
        return str(choice["text"] or "")
    said = choice[name]
    if said.get("tool_calls") or said.get("function_call"):
        return None
    return str(said.get("content") or "")


def compact(value: object) -> bytes:
    """Return a value as JSON without white space."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
