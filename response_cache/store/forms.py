"""An answer in the other form: a body as a stream, and a stream as a body (chat and text completions of OpenAI's API).

Only what is known to be the same in both forms is converted. An answer with anything else stays in its own form.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from response_cache.store.answers import Answer

_TEXTS: Final = ("reasoning_content", "reasoning", "refusal", "content")
"""Texts of a message, in the order in which engines send them; a stream sends them in pieces."""
_CHUNK: Final = {"chat.completion": "chat.completion.chunk", "text_completion": "text_completion"}
"""`object` of a stream's chunks by that of the body."""
_OWN: Final = ("object", "choices", "usage")
"""Fields that differ between body and chunks."""
_UNFIT: Final = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)


class Form(NamedTuple):
    """What a request asks for: a stream, and with it a chunk of usage (`stream_options.include_usage`)."""

    streamed: bool = False
    usage: bool = False


def form_of(parameters: Mapping[str, Any]) -> Form:
    """Return the form that a request's parameters ask for."""
    streamed = parameters.get("stream") is True
    options = parameters.get("stream_options")
    return Form(streamed, streamed and isinstance(options, Mapping) and options.get("include_usage") is True)


def in_form(answer: Answer, form: Form) -> Answer | None:
    """Return an answer in a form; None if it cannot be converted, as a stream without usage cannot become a body."""
    try:
        if answer.body:
            return answer._replace(body=b"", chunks=tuple(_stream(answer.body, form))) if form.streamed else answer
        if not form.streamed:
            return answer._replace(body=_body(answer), chunks=())
        return _with_or_without_usage(answer, form)
    except _UNFIT:
        return None


def _with_or_without_usage(answer: Answer, form: Form) -> Answer | None:
    last = json.loads(answer.chunks[-1])
    if bool(last.get("usage")) == form.usage:
        return answer
    if form.usage:
        return None
    return answer if last["choices"] else answer._replace(chunks=answer.chunks[:-1])


def _stream(body: bytes, form: Form) -> Iterator[bytes]:
    """Yield the chunks of a body. Raises one of _UNFIT."""
    answer = json.loads(body)
    (choice,) = answer["choices"]
    common = {**_plain(answer, *_OWN), "object": _CHUNK[answer["object"]]}
    usage = answer.get("usage")
    if form.usage:
        _check_usage(usage)
    end = {**_plain(choice, "message", "text"), "finish_reason": choice["finish_reason"]}
    if "message" in choice:
        said = [{"role": "assistant", "content": ""}, *({name: text} for name, text in _texts(choice["message"]).items())]
        choices: list[dict[str, Any]] = [
            {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} for delta in said
        ]
        choices.append({**end, "delta": {}})
    else:
        choices = [{**end, "text": _text(choice["text"])}]
    none = {"usage": None} if form.usage else {}
    for one in choices:
        yield _dumped({**common, "choices": [one], **none})
    if form.usage:
        yield _dumped({**common, "choices": [], "usage": usage})


def _body(answer: Answer) -> bytes:
    """Return the body of a stream. Raises one of _UNFIT."""
    chunks = [json.loads(chunk) for chunk in answer.chunks]
    usage = chunks[-1].get("usage")
    _check_usage(usage)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    kinds = {whole for whole, piece in _CHUNK.items() if any(chunk.get("object") == piece for chunk in chunks)}
    (kind,) = kinds
    common = {name: value for chunk in reversed(chunks) for name, value in _plain(chunk, *_OWN).items()}
    whole: dict[str, Any] = {}
    for choice in choices:
        whole |= {name: value for name, value in _plain(choice, "delta", "text", "finish_reason").items() if value is not None}
        whole["finish_reason"] = choice.get("finish_reason") or whole.get("finish_reason")
    if kind == "text_completion":
        whole["text"] = "".join(_text(choice["text"]) for choice in choices)
    else:
        pieces = [_texts(choice["delta"]) for choice in choices]
        texts = {name: "".join(piece.get(name, "") for piece in pieces) for name in _TEXTS}
        said = {name: text for name, text in texts.items() if text}
        whole["message"] = {"role": "assistant", "content": None, "refusal": None, **said}
    return _dumped({**common, "object": kind, "choices": [{"index": 0, "logprobs": None, **whole}], "usage": usage})


def _plain(fields: Mapping[str, Any], *without: str) -> dict[str, Any]:
    """Return fields that are numbers or texts, such as id and model. Raises ValueError if one is more, as log probabilities."""
    found = {name: value for name, value in fields.items() if name not in without}
    if any(isinstance(value, (dict, list)) and value for value in found.values()):
        raise ValueError("more than numbers and texts")
    return {name: value for name, value in found.items() if not isinstance(value, (dict, list))}


def _texts(message: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of a message or a delta that are not empty. Raises ValueError if it has anything else."""
    if any(value for name, value in message.items() if name not in (*_TEXTS, "role")):
        raise ValueError("more than text")
    return {name: _text(message[name]) for name in _TEXTS if message.get(name)}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


def _check_usage(usage: Any) -> None:
    if not isinstance(usage, dict) or not usage:
        raise ValueError("the engine has not counted the tokens")


def _dumped(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
