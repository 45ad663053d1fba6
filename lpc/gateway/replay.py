"""An answer given again: as it was recorded except id and time, or in the other form where nothing is lost.

A stream can become a body if it carries its usage, since clients of bodies read it; a body can always become a stream.
"""

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lpc.cache.forms import body_of, chunks_of
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
            body = response.body or body_of(response.chunks)
            return None if body is None else _renewed(body, *_fresh(body, now))
        chunks = list(response.chunks) if response.chunks else chunks_of(json.loads(response.body))
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
