"""Recording of engines' answers for the cache, and their replay.

The gateway reads an answer that it records as fast as the engine sends it, even if its client reads slowly, because other
clients may wait for it. The size limit of the recording bounds how far it reads ahead. The sidecar decides what is stored; the
recording only knows whether the answer was complete.

A replay is identical to the recording except for id and time.
"""

import asyncio
import json
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, Final

from lpc.cache.v1 import response_cache_pb2 as pb

DONE: Final = b"[DONE]"
END_OF_EVENT: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
LONGEST_END: Final = 3
"""Bytes of an incomplete end of an event."""
_END_OF_LINE: Final = re.compile(rb"\r\n|\n|\r")
_ID: Final = re.compile(rb'("id"\s*:\s*")((?:[^"\\]|\\.)*)"')
_CREATED: Final = re.compile(rb'("created"\s*:\s*)[0-9.]+')


class Recording:
    """The recording of one answer.

    Args:
        streamed: whether it is a stream of server-sent events.
        max_bytes: size above which it is discarded.
    """

    def __init__(self, streamed: bool, max_bytes: int) -> None:
        self._streamed = streamed
        self._left = max_bytes
        self._kept: list[bytes] = []
        self._rest = bytearray()
        self._searched = 0
        self._whole = False
        self._spoilt = False

    @property
    def spoilt(self) -> bool:
        """Whether the answer can no longer be stored."""
        return self._spoilt

    def add(self, data: bytes) -> None:
        """Add the next bytes of the body."""
        if self._spoilt:
            return
        self._left -= len(data)
        if self._left < 0:
            self._spoil()
        elif not self._streamed:
            self._kept.append(data)
        else:
            self._rest += data
            for event in self._events():
                self._event(event)

    def end(self) -> None:
        """Mark the body as complete."""
        if not self._streamed:
            self._whole = True

    def response(self) -> pb.Response | None:
        """Return the answer; None if it is incomplete, too long, or not an engine's format."""
        if self._spoilt or not self._whole:
            return None
        try:
            return self._of_stream() if self._streamed else self._of_body()
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
            return None

    def _events(self) -> list[bytes]:
        """Take the complete events. Searches each byte once, and the last few twice, because an end may be split."""
        events, start = [], 0
        for found in END_OF_EVENT.finditer(bytes(self._rest[self._searched :])):
            end = self._searched + found.start()
            events.append(bytes(self._rest[start:end]))
            start = self._searched + found.end()
        del self._rest[:start]
        self._searched = max(0, len(self._rest) - LONGEST_END)
        return events

    def _spoil(self) -> None:
        self._spoilt = True
        self._kept, self._rest = [], bytearray()

    def _event(self, event: bytes) -> None:
        data = [line[5:].removeprefix(b" ") for line in _END_OF_LINE.split(event) if line.startswith(b"data:")]
        others = [line for line in _END_OF_LINE.split(event) if line and not line.startswith((b"data:", b":"))]
        if others or (data and self._whole):
            # Another kind of event, or one after the last, cannot be replayed.
            self._spoil()
        elif data == [DONE]:
            self._whole = True
        elif data:
            self._kept.append(b"\n".join(data))

    def _of_body(self) -> pb.Response:
        body = b"".join(self._kept)
        answer = json.loads(body)
        (choice,) = answer["choices"]
        prompt, completion = _tokens(answer) or (0, 0)
        return pb.Response(
            body=body, finish_reason=choice["finish_reason"] or "", prompt_tokens=prompt, completion_tokens=completion
        )

    def _of_stream(self) -> pb.Response:
        finish, tokens = "", (0, 0)
        for data in self._kept:
            chunk = json.loads(data)
            if "error" in chunk:
                raise ValueError("an error in the stream")
            tokens = _tokens(chunk) or tokens
            for choice in chunk["choices"]:
                finish = choice.get("finish_reason") or finish
        prompt, completion = tokens
        return pb.Response(chunks=self._kept, finish_reason=finish, prompt_tokens=prompt, completion_tokens=completion)


async def ahead(chunks: AsyncIterator[bytes], recording: Recording, settle: Callable[[], None]) -> AsyncGenerator[bytes, None]:
    """Yield chunks, and record them as they arrive even if the consumer is slow.

    Args:
        settle: called, perhaps twice, when the recording is complete or discarded. After that nothing is read ahead.
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


def replay(response: pb.Response, *, streamed: bool, now: float) -> bytes | None:
    """Return the body of a recorded answer; None if the recording is not a stream, or not a body.

    Args:
        response: the recording.
        streamed: whether the body must be a stream.
        now: seconds since the Unix epoch, the new `created`.
    """
    parts = list(response.chunks) if streamed else [response.body]
    if not parts or not parts[0]:
        return None
    fresh = _fresh(parts[0], now)
    renewed = [_renewed(part, *fresh) for part in parts]
    return b"".join(b"data: " + line + b"\n\n" for line in (*renewed, DONE)) if streamed else renewed[0]


def _fresh(data: bytes, now: float) -> tuple[bytes, bytes]:
    """Return a new id with the answer's prefix, and a new time."""
    found = _ID.search(data)
    kind = found[2].partition(b"-")[0] if found is not None and b"-" in found[2] else b"chatcmpl"
    return kind + b"-" + secrets.token_hex(16).encode(), str(int(now)).encode()


def _renewed(data: bytes, identity: bytes, created: bytes) -> bytes:
    """Replace the first id and time, which are the answer's own, and leave every other byte unchanged."""
    data = _ID.sub(lambda found: found[1] + identity + b'"', data, count=1)
    return _CREATED.sub(lambda found: found[1] + created, data, count=1)
