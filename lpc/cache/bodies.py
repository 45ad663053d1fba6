"""Converts bodies of OpenAI's API: a request to the caches' request, and an answer between body and stream chunks."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lpc.cache.v1 import response_cache_pb2 as pb

DEFAULT_SCOPE: Final = "default"
"""Scope of a request that does not name one."""
_NOT_PARAMETERS: Final = ("model", "messages", "tools", "prompt", "stream", "stream_options")
"""Fields with an own field in `pb.Request`, and fields that choose the form of an answer but not its content."""
_STREAM_OPTIONS: Final = ("include_usage", "include_obfuscation")
"""Stream options that a cached answer can satisfy. Any other one becomes part of the key."""
_ANSWER_FIELDS: Final = frozenset(
    ("id", "object", "created", "model", "choices", "usage", "service_tier", "system_fingerprint")
)
_CHOICE_FIELDS: Final = frozenset(("index", "message", "delta", "text", "finish_reason", "stop_reason"))
"""Fields that exist in a body and in a stream. An answer with others (log probabilities, token ids) is not converted."""


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
    options = body.get("stream_options")
    if isinstance(options, Mapping) and (others := {name: options[name] for name in options if name not in _STREAM_OPTIONS}):
        parameters["stream_form"] = others
    tools = body.get("tools")
    return pb.Request(
        model=model,
        parameters_json=compact(parameters),
        messages=[_message(message) for message in body.get("messages") or ()],
        tools_json=compact(tools) if tools else b"",
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


def reply_of(response: pb.Response) -> str | None:
    """Return the text of an answer; None if it has tool calls or cannot be parsed."""
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
    if "text" in choice:  # /v1/completions
        return str(choice["text"] or "")
    message = choice[name]
    if message.get("tool_calls") or message.get("function_call"):
        return None
    return str(message.get("content") or "")


def chunks_of(body: dict[str, Any]) -> list[bytes]:
    """Return a body as the chunks of a stream, usage included.

    Raises KeyError, ValueError or TypeError if it is not an answer with one choice, or has a field that a stream lacks.
    """
    (choice,) = body["choices"]
    if _has_other_fields(body, _ANSWER_FIELDS) or _has_other_fields(choice, _CHOICE_FIELDS):
        raise ValueError("an answer with more than a text")
    common = {
        "id": body["id"],
        "object": "text_completion" if "text" in choice else "chat.completion.chunk",
        "created": body.get("created", 0),
        "model": body["model"],
        **_present(body, "service_tier", "system_fingerprint"),
    }
    if "text" in choice:
        deltas: list[dict[str, Any]] = [{"text": choice["text"]}, {"text": ""}]
    else:
        message = {name: value for name, value in choice["message"].items() if value is not None and value != []}
        deltas = [{"delta": {"role": "assistant", "content": ""}}, {"delta": {**message, "role": "assistant"}}, {"delta": {}}]
    ends = [None] * (len(deltas) - 1) + [choice["finish_reason"]]
    deltas[-1] |= _present(choice, "stop_reason")
    chunks = [
        {**common, "choices": [{"index": 0, **delta, "logprobs": None, "finish_reason": end}]}
        for delta, end in zip(deltas, ends, strict=True)
    ]
    if body.get("usage"):
        chunks.append({**common, "choices": [], "usage": body["usage"]})
    return [compact(chunk) for chunk in chunks]


def body_of(chunks: Sequence[bytes]) -> bytes | None:
    """Return the chunks of a stream as one body; None if usage is missing or there is more than text.

    Raises KeyError, ValueError or TypeError if a chunk is invalid.
    """
    parsed = [json.loads(data) for data in chunks]
    usage = next((chunk["usage"] for chunk in reversed(parsed) if chunk.get("usage")), None)
    if usage is None:
        return None
    texts: dict[str, str] = {}
    finish = None
    stop_reason: dict[str, Any] = {}
    common: dict[str, Any] = {}
    for chunk in parsed:
        if _has_other_fields(chunk, _ANSWER_FIELDS):
            return None
        common |= _present(chunk, "service_tier", "system_fingerprint")
        for choice in chunk["choices"]:
            if _has_other_fields(choice, _CHOICE_FIELDS):
                return None
            stop_reason |= _present(choice, "stop_reason")
            for name, value in (choice["delta"] if "delta" in choice else {"text": choice["text"]}).items():
                if name == "role" or value is None or value == []:
                    continue
                if not isinstance(value, str):
                    return None
                texts[name] = texts.get(name, "") + value
            finish = choice.get("finish_reason") or finish
    first = parsed[0]
    content: dict[str, Any] = {"message": {"role": "assistant", "content": "", **texts}}
    if "text" in texts:
        content = {"text": texts["text"]}
    body = {
        "id": first["id"],
        "object": "text_completion" if "text" in texts else "chat.completion",
        "created": first.get("created", 0),
        "model": first["model"],
        **common,
        "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": finish, **stop_reason}],
        "usage": usage,
    }
    return compact(body)


def _has_other_fields(part: Mapping[str, Any], known: frozenset[str]) -> bool:
    return any(value is not None and name not in known for name, value in part.items())


def _present(part: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: part[name] for name in names if part.get(name) is not None}
