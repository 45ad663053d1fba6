"""Logs of chats with their text, in the formats of gateways and of tracing products.

`read_chats` yields the requests of any of these logs in one form (`lpc.logs.chats.request`).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from lpc.logs.chats import chat, langfuse, litellm, nginx, otel, wildchat
from lpc.logs.chats.request import LoggedRequest
from lpc.logs.records import OtherRecord, Record, Skipped, WrongRecord, read_records


@dataclass(frozen=True)
class Reader:
    """Reads one format.

    Attributes:
        read: yields the requests of a record, and WrongRecord for what is wrong in it; raises WrongRecord.
        repair: makes JSON of a line that is not; None: such a line is wrong.
    """

    read: Callable[[Record], Iterable[LoggedRequest | WrongRecord]]
    repair: Callable[[bytes], bytes] | None = None


READERS: Final = {
    "chat": Reader(chat.read),
    "litellm": Reader(litellm.read),
    "langfuse": Reader(langfuse.read),
    "otel": Reader(otel.read),
    "nginx": Reader(nginx.read, nginx.repair),
    "wildchat": Reader(wildchat.read),
}


def read_chats(
    path: Path,
    format: str,  # noqa: A002
    skipped: Skipped,
    check: Callable[[LoggedRequest], None] | None = None,
) -> Iterator[tuple[str, LoggedRequest]]:
    """Yield the place and contents of the requests of a log, in file order.

    Args:
        format: one of READERS.
        skipped: counts what was left out.
        check: raises WrongRecord for a request to leave out.

    Raises:
        TraceError: see `lpc.logs.records.read_records`.
    """
    reader = READERS[format]
    calls = _Calls()

    def parse(record: Record) -> Iterator[LoggedRequest | WrongRecord]:
        for request in reader.read(record):
            try:
                if not isinstance(request, WrongRecord):
                    if check is not None:
                        check(request)
                    calls.add(request)
                yield request
            except WrongRecord as wrong:
                yield wrong

    return read_records(path, parse, skipped, reader.repair)


class _Calls:
    """The calls of a log, of which each counts once."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self._names: set[str] = set()
        self._around: set[str] = set()
        """Names of the calls around those that were kept."""

    def add(self, request: LoggedRequest) -> None:
        """Add a call. Raises OtherRecord if it was logged before, or if the call around it or inside of it was kept."""
        if not request.ids:
            return
        if request.parent in self._names or not self._around.isdisjoint(request.ids):
            raise OtherRecord("the same call, of another instrumentation")
        prompt = repr((request.scope, request.tools, request.messages)).encode("utf-8", "replace")
        names = {blake2b(name.encode() + b"\0" + prompt, digest_size=16).digest() for name in request.ids}
        if not self._seen.isdisjoint(names):
            raise OtherRecord("logged twice")
        self._seen |= names
        self._names.update(request.ids)
        self._around.add(request.parent)
