"""An engine's answer as it passes by: kept while it may still be one that is worth keeping, and never held up.

The gateway reads an answer that it records as fast as the engine sends it, since other clients may wait for it: not as fast as
its own client reads. The limit of the recording bounds what it reads ahead.

What may be stored is the sidecar's decision; here is only seen whether the answer came to its end, and what it was made of.

An answer is given again as it was recorded except id and time, or in the other form where nothing is lost. A stream can become
a body if it carries its usage, since clients of bodies read it; a body can always become a stream.
"""

import asyncio
import json
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lpc.cache.bodies import body_of, chunks_of
from lpc.cache.v1 import response_cache_pb2 as pb

DONE: Final = b"[DONE]"
_END_OF_EVENT: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_END_OF_LINE: Final = re.compile(rb"\r\n|\n|\r")
_ID: Final = re.compile(rb'("id"\s*:\s*")((?:[^"\\]|\\.)*)"')
_CREATED: Final = re.compile(rb'("created"\s*:\s*)[0-9.]+')


class Recording:
    """Of one answer.

    Args:
        streamed: it is a stream of server-sent events.
        max_bytes: beyond which it is not kept.
    """

    def __init__(self, streamed: bool, max_bytes: int) -> None:
        self._streamed = streamed
        self._left = max_bytes
        self._kept: list[bytes] = []
        self._rest = b""
        self._whole = False
        self._spoilt = False

    @property
    def spoilt(self) -> bool:
        """Whether there is nothing to be kept, whatever comes."""
        return self._spoilt

    def add(self, data: bytes) -> None:
        """Take the next bytes of the body."""
        if self._spoilt:
            return
        self._left -= len(data)
        if self._left < 0:
            self._spoil()
        elif not self._streamed:
            self._kept.append(data)
        else:
            self._rest += data
            *events, self._rest = _END_OF_EVENT.split(self._rest)
            for event in events:
                self._event(event)

    def end(self) -> None:
        """Note that the body has come to its end."""
        if not self._streamed:
            self._whole = True

    def response(self) -> pb.Response | None:
        """Return the answer; None if it is not whole, is too long, or does not look like an engine's."""
        if self._spoilt or not self._whole:
            return None
        try:
            return self._of_stream() if self._streamed else self._of_body()
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return None

    def _spoil(self) -> None:
        self._spoilt = True
        self._kept, self._rest = [], b""

    def _event(self, event: bytes) -> None:
        data = [line[5:].removeprefix(b" ") for line in _END_OF_LINE.split(event) if line.startswith(b"data:")]
        others = [line for line in _END_OF_LINE.split(event) if line and not line.startswith((b"data:", b":"))]
        if others or (data and self._whole):
            # An event of another kind, or one after the last: it cannot be replayed.
            self._spoil()
        elif data == [DONE]:
            self._whole = True
        elif data:
            self._kept.append(b"\n".join(data))

    def _of_body(self) -> pb.Response:
        body = b"".join(self._kept)
        answer = json.loads(body)
        (choice,) = answer["choices"]
        asked, said = _tokens(answer) or (0, 0)
        return pb.Response(body=body, finish_reason=choice["finish_reason"] or "", prompt_tokens=asked, completion_tokens=said)

    def _of_stream(self) -> pb.Response:
        finish, tokens = "", (0, 0)
        for data in self._kept:
            chunk = json.loads(data)
            if "error" in chunk:
                raise ValueError("an error in the stream")
            tokens = _tokens(chunk) or tokens
            for choice in chunk["choices"]:
                finish = choice.get("finish_reason") or finish
        asked, said = tokens
        return pb.Response(chunks=self._kept, finish_reason=finish, prompt_tokens=asked, completion_tokens=said)


async def ahead(chunks: AsyncIterator[bytes], recording: Recording, settle: Callable[[], None]) -> AsyncGenerator[bytes, None]:
    """Yield chunks, and record them as they come even if the consumer is slow.

    Args:
        settle: called, perhaps twice, when the recording is whole or spoilt. From then on nothing is read ahead.
    """
    queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

    async def record() -> None:
        try:
            async for data in chunks:
                recording.add(data)
                queue.put_nowait(data)
                if recording.spoilt:
                    settle()
                    await queue.join()
            recording.end()
            settle()
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    task = asyncio.get_running_loop().create_task(record())
    try:
        while (item := await queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item
            queue.task_done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _tokens(answer: Mapping[str, Any]) -> tuple[int, int] | None:
    usage = answer.get("usage")
    return (int(usage["prompt_tokens"]), int(usage.get("completion_tokens") or 0)) if usage else None


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
