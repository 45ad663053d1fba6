"""The bodies of OpenAI's API: how a request is asked of the response caches, and the forms of an answer.

An answer is a body, or the chunks of a stream.
"""

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
_WHOLE: Final = frozenset(("id", "object", "created", "model", "choices", "usage", "service_tier", "system_fingerprint"))
_CHOICE: Final = frozenset(("index", "message", "delta", "text", "finish_reason", "stop_reason"))
"""Fields of an answer that both of its forms tell. One with others (log probabilities, token ids) has no other form."""


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


def chunks_of(body: dict[str, Any]) -> list[bytes]:
    """Return the chunks of a stream that tell what a body tells, usage included.

    Raises KeyError, ValueError or TypeError if it is not an answer with one choice, or has what a stream cannot hold.
    """
    (choice,) = body["choices"]
    if _more(body, _WHOLE) or _more(choice, _CHOICE):
        raise ValueError("an answer with more than a text")
    common = {
        "id": body["id"],
        "object": "text_completion" if "text" in choice else "chat.completion.chunk",
        "created": body.get("created", 0),
        "model": body["model"],
        **_kept(body, ("service_tier", "system_fingerprint")),
    }
    if "text" in choice:
        deltas: list[dict[str, Any]] = [{"text": choice["text"]}, {"text": ""}]
    else:
        said = {name: value for name, value in choice["message"].items() if value is not None and value != []}
        deltas = [{"delta": {"role": "assistant", "content": ""}}, {"delta": {**said, "role": "assistant"}}, {"delta": {}}]
    ends = [None] * (len(deltas) - 1) + [choice["finish_reason"]]
    deltas[-1] |= _kept(choice, ("stop_reason",))
    chunks = [
        {**common, "choices": [{"index": 0, **delta, "logprobs": None, "finish_reason": end}]}
        for delta, end in zip(deltas, ends, strict=True)
    ]
    if body.get("usage"):
        chunks.append({**common, "choices": [], "usage": body["usage"]})
    return [compact(chunk) for chunk in chunks]


def body_of(chunks: Sequence[bytes]) -> bytes | None:
    """Return the body with a stream's content; None without its usage, or if it had more than text.

    Raises KeyError, ValueError or TypeError where a chunk is none.
    """
    read = [json.loads(data) for data in chunks]
    usage = next((chunk["usage"] for chunk in reversed(read) if chunk.get("usage")), None)
    if usage is None:
        return None
    said: dict[str, str] = {}
    finish = None
    stopped: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    for chunk in read:
        if _more(chunk, _WHOLE):
            return None
        kept |= _kept(chunk, ("service_tier", "system_fingerprint"))
        for choice in chunk["choices"]:
            if _more(choice, _CHOICE):
                return None
            stopped |= _kept(choice, ("stop_reason",))
            for name, value in (choice["delta"] if "delta" in choice else {"text": choice["text"]}).items():
                if name == "role" or value is None or value == []:
                    continue
                if not isinstance(value, str):
                    return None
                said[name] = said.get(name, "") + value
            finish = choice.get("finish_reason") or finish
    first = read[0]
    common = {"id": first["id"], "created": first.get("created", 0), "model": first["model"], **kept}
    if "text" in said:
        choices = [{"index": 0, "text": said["text"], "logprobs": None, "finish_reason": finish, **stopped}]
        return compact({**common, "object": "text_completion", "choices": choices, "usage": usage})
    message = {"role": "assistant", "content": "", **said}
    choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish, **stopped}]
    return compact({**common, "object": "chat.completion", "choices": choices, "usage": usage})


def _more(said: Mapping[str, Any], known: frozenset[str]) -> bool:
    return any(value is not None and name not in known for name, value in said.items())


def _kept(said: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: said[name] for name in names if said.get(name) is not None}
