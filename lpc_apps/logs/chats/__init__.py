"""Logs of chats with their text, in the formats of gateways and of tracing products.

`read_chats` yields the requests of any of these logs in one form (`lpc_apps.logs.chats.request`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.records import OtherRecord, Record, Skipped, WrongRecord, read_records


@dataclass(frozen=True)
class Reader:
    """Reads one format.

    Attributes:
        read: yields the requests of a record, and WrongRecord for what is wrong in it; raises WrongRecord.
        repair: makes JSON of a line that is not; None: such a line is wrong.
        repairs: whether a line, of a log whose format is not known yet, is for ``repair``.
    """

    read: Callable[[Record], Iterable[LoggedRequest | WrongRecord]]
    repair: Callable[[bytes], bytes] | None = None
    repairs: Callable[[bytes], bool] = bool


def read_chats(
    path: Path,
    reader: Reader,
    skipped: Skipped,
    check: Callable[[LoggedRequest], None] | None = None,
) -> Iterator[tuple[str, LoggedRequest]]:
    """Yield the place and contents of the requests of a log, in file order.

    Args:
        skipped: counts what was left out.
        check: raises WrongRecord for a request to leave out.

    Raises:
        TraceError: see `lpc_apps.logs.records.read_records`.
    """
    calls = _Calls(lambda: _several(path, reader))

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

    def __init__(self, several: Callable[[], tuple[set[str], set[str]]]) -> None:
        """``several`` returns the names, and the fields of names, of several calls each."""
        self._several = several
        self._unsure: tuple[set[str], set[str]] | None = None
        """Result of ``several``, once a call has come again."""
        self._seen: set[int] = set()
        self._names: set[str] = set()
        self._around: set[str] = set()
        """Names of the calls around those that were kept."""

    def add(self, request: LoggedRequest) -> None:
        """Add a call. Raises OtherRecord if it was logged before, or if the call around it or inside of it was kept."""
        if not request.ids:
            return
        if request.parent in self._names or not self._around.isdisjoint(request.ids):
            raise OtherRecord("the same call, of another instrumentation")
        prompt = _prompt_id(request)
        names = {hash((name, prompt)): name for name in request.ids}
        if again := [name for call, name in names.items() if call in self._seen]:
            self._unsure = unsure, fields = self._unsure or self._several()
            if any(name not in unsure and name.partition(":")[0] not in fields for name in again):
                raise OtherRecord("logged twice")
        self._seen.update(names)
        self._names.update(request.ids)
        self._around.add(request.parent)


def _prompt_id(request: LoggedRequest) -> int:
    """Return 64 bits, with a key of the process, that tell a prompt from others."""
    return hash((request.scope, request.tools, request.messages))


def _several(path: Path, reader: Reader) -> tuple[set[str], set[str]]:
    """Return the names that different prompts have, and the fields of which most names that come again are such.

    These are names of conversations, not of calls: an equal prompt with one of them is another request.
    """
    prompts: dict[str, int] = {}
    again, several = set[str](), set[str]()
    for _, request in read_records(path, reader.read, Skipped(), reader.repair):
        prompt = _prompt_id(request)
        for name in request.ids:
            if name in prompts:
                again.add(name)
                if prompts[name] != prompt:
                    several.add(name)
            prompts.setdefault(name, prompt)
    fields = Counter(name.partition(":")[0] for name in again)
    different = Counter(name.partition(":")[0] for name in several)
    return several, {field for field, number in different.items() if 2 * number > fields[field]}
