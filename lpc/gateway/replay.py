"""An answer told again: as it was recorded but for id and time, or in the other form where nothing is lost.

A stream can be told as a body if it carries its usage, since clients of bodies read it; a body can always be told as a stream.
"""

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.gateway.recording import DONE

_ID: Final = re.compile(rb'("id"\s*:\s*")((?:[^"\\]|\\.)*)"')
_CREATED: Final = re.compile(rb'("created"\s*:\s*)[0-9.]+')


@dataclass(frozen=True, slots=True)
class Form:
    """How a request wants its answer. ``usage``: with a last chunk that holds it, where ``streamed``."""

    streamed: bool
    usage: bool = False


def replay(response: pb.Response, form: Form, now: float) -> bytes | None:
    """Return the body of an answer; None where what was recorded does not hold all that this form tells.

    Args:
        now: seconds since the Unix epoch, the new `created`.
    """
    try:
        if not form.streamed:
            body = response.body or _body_of(response.chunks)
            return None if body is None else _renewed(body, *_fresh(body, now))
        chunks = list(response.chunks) if response.chunks else _chunks_of(json.loads(response.body))
        return _stream(chunks, form, now)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None


def _stream(chunks: Sequence[bytes], form: Form, now: float) -> bytes | None:
    reports = [_reports_usage(data) for data in chunks]
    if form.usage and not any(reports):
        return None
    told = [data for data, report in zip(chunks, reports, strict=True) if form.usage or not report]
    fresh = _fresh(told[0], now)
    return b"".join(b"data: " + line + b"\n\n" for line in (*(_renewed(data, *fresh) for data in told), DONE))


def _reports_usage(data: bytes) -> bool:
    """Say whether a chunk is the one of `include_usage`: no choices, only figures."""
    chunk = json.loads(data)
    return not chunk["choices"] and bool(chunk.get("usage"))


def _fresh(data: bytes, now: float) -> tuple[bytes, bytes]:
    """Return a new id, of the same kind as that of an answer, and a new time."""
    found = _ID.search(data)
    kind = found[2].partition(b"-")[0] if found is not None and b"-" in found[2] else b"chatcmpl"
    return kind + b"-" + secrets.token_hex(16).encode(), str(int(now)).encode()


def _renewed(data: bytes, identity: bytes, created: bytes) -> bytes:
    """Put new values in place of the first id and time, which are the answer's own, and leave every other byte as it is."""
    data = _ID.sub(lambda found: found[1] + identity + b'"', data, count=1)
    return _CREATED.sub(lambda found: found[1] + created, data, count=1)


def _chunks_of(body: dict[str, Any]) -> list[bytes]:
    """Return the chunks that tell what a body tells, usage included."""
    (choice,) = body["choices"]
    common = {
        "id": body["id"],
        "object": "text_completion" if "text" in choice else "chat.completion.chunk",
        "created": body.get("created", 0),
        "model": body["model"],
    }
    if "text" in choice:
        deltas: list[dict[str, Any]] = [{"text": choice["text"]}, {"text": ""}]
    else:
        said = {name: value for name, value in choice["message"].items() if value is not None and value != []}
        deltas = [{"delta": {"role": "assistant", "content": ""}}, {"delta": {**said, "role": "assistant"}}, {"delta": {}}]
    ends = [None] * (len(deltas) - 1) + [choice["finish_reason"]]
    chunks = [
        {**common, "choices": [{"index": 0, **delta, "logprobs": None, "finish_reason": end}]}
        for delta, end in zip(deltas, ends, strict=True)
    ]
    if body.get("usage"):
        chunks.append({**common, "choices": [], "usage": body["usage"]})
    return [_json(chunk) for chunk in chunks]


def _body_of(chunks: Sequence[bytes]) -> bytes | None:
    """Return the body that tells what a stream told; None without its usage, or where it told more than text."""
    read = [json.loads(data) for data in chunks]
    usage = next((chunk["usage"] for chunk in reversed(read) if chunk.get("usage")), None)
    if usage is None:
        return None
    said: dict[str, str] = {}
    finish = None
    for chunk in read:
        for choice in chunk["choices"]:
            for name, value in (choice["delta"] if "delta" in choice else {"text": choice["text"]}).items():
                if name == "role" or value is None or value == []:
                    continue
                if not isinstance(value, str):
                    return None
                said[name] = said.get(name, "") + value
            finish = choice.get("finish_reason") or finish
    first = read[0]
    common = {"id": first["id"], "created": first.get("created", 0), "model": first["model"]}
    if "text" in said:
        choices = [{"index": 0, "text": said["text"], "logprobs": None, "finish_reason": finish}]
        return _json({**common, "object": "text_completion", "choices": choices, "usage": usage})
    message = {"role": "assistant", "content": "", **said}
    choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}]
    return _json({**common, "object": "chat.completion", "choices": choices, "usage": usage})


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
