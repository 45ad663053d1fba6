"""The body of an OpenAI request as the response caches ask it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lpc.cache.v1 import response_cache_pb2 as pb

DEFAULT_SCOPE: Final = "default"
"""Of who names none."""
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
    extra = parameters.get("vllm_xargs")
    if isinstance(extra, Mapping):
        parameters["vllm_xargs"] = {name: value for name, value in extra.items() if not _of_the_prefix_cache(name)} or None
    tools = body.get("tools")
    return pb.Request(
        model=str(body.get("model") or ""),
        parameters_json=compact(parameters),
        messages=[_message(message) for message in body.get("messages") or ()],
        tools_json=compact(tools) if tools else b"",
        scope=scope or DEFAULT_SCOPE,
        tags=tags,
        prompt=body.get("prompt"),
        tenant=tenant,
        model_version=model_version,
    )


def _of_the_prefix_cache(name: str) -> bool:
    """Say whether an extra argument speaks of the conversation to vLLM's plug-in, and so cannot change an answer."""
    return name == "session_id" or name.startswith("lpc_")


def _message(message: Mapping[str, Any]) -> pb.Message:
    content = message.get("content")
    text = content if isinstance(content, str) else None
    others = {name: value for name, value in message.items() if name != "role" and (name != "content" or text is None)}
    return pb.Message(role=message["role"], content=text or "", other_json=compact(others) if others else b"")


def compact(value: object) -> bytes:
    """Return a value as JSON without white space."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
