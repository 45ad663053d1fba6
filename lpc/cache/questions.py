"""The body of an OpenAI request as the response caches ask it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lpc.cache.v1 import response_cache_pb2 as pb

DEFAULT_SCOPE: Final = "default"
"""Of who names none."""
_APART: Final = ("model", "messages", "tools", "prompt")
_OF_THE_FORM: Final = ("stream", "stream_options")
"""They choose the form of an answer, not its content."""
_FORMS_KNOWN: Final = ("include_usage", "include_obfuscation")
"""Of stream_options. Others ask for what an answer to another request may not tell."""


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
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise ValueError("the request names no model")
    if body.get("messages") and body.get("prompt") is not None:
        raise ValueError("the request has messages and a prompt: which of the two is answered is not known")
    parameters = {name: value for name, value in body.items() if name not in (*_APART, *_OF_THE_FORM)}
    extra = parameters.get("vllm_xargs")
    if isinstance(extra, Mapping):
        parameters["vllm_xargs"] = {name: value for name, value in extra.items() if not _of_the_prefix_cache(name)} or None
    options = body.get("stream_options")
    if isinstance(options, Mapping) and (others := {name: options[name] for name in options if name not in _FORMS_KNOWN}):
        parameters["stream_form"] = others
    tools = body.get("tools")
    return pb.Request(
        model=model,
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
    others = {name: value for name, value in message.items() if name not in ("role", "content")}
    if not isinstance(content, str):
        others["content"] = content  # a template may tell none from an empty one
    text = content if isinstance(content, str) else ""
    return pb.Message(role=message["role"], content=text, other_json=compact(others) if others else b"")


def compact(value: object) -> bytes:
    """Return a value as JSON without white space. Raises ValueError or TypeError where JSON has no form for it."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None
