"""Logs of chats with their text, in the formats of gateways and of tracing products.

`read_chats` yields the requests of any of these logs in one form (`lpc.logs.chats.request`).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lpc.logs.chats import chat, langfuse, litellm, nginx, otel, wildchat
from lpc.logs.chats.request import LoggedRequest
from lpc.logs.records import Record, Skipped, WrongRecord, read_records


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

    def parse(record: Record) -> Iterator[LoggedRequest | WrongRecord]:
        for request in reader.read(record):
            try:
                if check is not None and not isinstance(request, WrongRecord):
                    check(request)
                yield request
            except WrongRecord as wrong:
                yield wrong

    return read_records(path, reader.read if check is None else parse, skipped, reader.repair)
