"""Logs of chats with their text, in the formats of gateways and of tracing products.

`read_chats` yields the requests of any of these logs in one form (`lpc_apps.logs.chats.request`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from lpc_apps.logs.chats.envelopes import opened
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.records import (
    TOO_DEEP,
    Between,
    OtherRecord,
    Record,
    Skipped,
    TraceError,
    WrongRecord,
    json_lines,
    read_records,
)

PROBED: Final = 1_000
"""Requests that show whether a log has calls at their start and again at their end."""
MOST_HELD: Final = 1 << 25
"""Characters of prompts that are held until that is known."""


@dataclass(frozen=True)
class Reader:
    """Reads one format.

    Attributes:
        read_one: yields the requests of a record, and WrongRecord for what is wrong in it; raises WrongRecord.
        repair: makes JSON of a line that is not; None: such a line is wrong.
        repairs: whether a line, of a log whose format is not known yet, is for ``repair``.
    """

    read_one: Callable[[Record], Iterable[LoggedRequest | WrongRecord]]
    repair: Callable[[bytes], bytes] | None = None
    repairs: Callable[[bytes], bool] = bool

    def read(self, record: Record) -> Iterator[LoggedRequest | WrongRecord]:
        """Yield the requests of a record, or of those inside of it; a wrong one as WrongRecord."""
        for one in opened(record):
            try:
                yield from self.read_one(one)
            except WrongRecord as wrong:
                yield wrong


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
    completed: Mapping[int, float] = {}

    def records(count: Callable[[float], object]) -> Iterator[tuple[str, Record | WrongRecord]]:
        nonlocal completed
        following = json_lines(path, reader.repair, count)
        ahead = _Ahead(reader)
        yield from ahead.take(following)
        if ahead.may_be_completed:
            completed = _completed(path, reader)
        yield from ahead.held
        yield from following

    def parse(record: Record) -> Iterator[LoggedRequest | WrongRecord]:
        for found in record.found if isinstance(record, _Read) else reader.read(record):
            request = found
            try:
                if completed and not isinstance(request, WrongRecord):
                    request = _as_completed(request, completed)
                if isinstance(request, Between):
                    calls.add_between(request)
                elif not isinstance(request, WrongRecord):
                    if check is not None:
                        check(request)
                    calls.add(request)
                yield request
            except WrongRecord as wrong:
                yield wrong

    return read_records(path, parse, skipped, reader.repair, records)


class _Read(Record):
    """A record that is read."""

    def __init__(self, found: Sequence[LoggedRequest | WrongRecord]) -> None:
        super().__init__()
        self.found = found


class _Ahead:
    """Reads the first PROBED requests of a log once, which show whether it has calls at their start and again at their end.

    Attributes:
        held: records that wait for this, from the first call without a reply on.
        may_be_completed: whether the log has such calls, or it is not known, because the text of ``held`` is too long.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._open: set[int] = set()
        self._left = PROBED
        self._chars = 0
        self.held: list[tuple[str, Record | WrongRecord]] = []
        self.may_be_completed = False

    def take(self, records: Iterator[tuple[str, Record | WrongRecord]]) -> Iterator[tuple[str, Record | WrongRecord]]:
        """Yield records as long as none needs to wait; then hold them until it is known."""
        for place, record in records:
            taken = record if isinstance(record, WrongRecord) else self._read(record)
            if self._open:
                self.held.append((place, taken))
            else:
                yield place, taken
            if self.may_be_completed or not self._left:
                return

    def _read(self, record: Record) -> _Read:
        found: list[LoggedRequest | WrongRecord] = []
        try:
            found.extend(self._reader.read(record))
        except RecursionError:
            found.append(WrongRecord(TOO_DEEP))
        for request in found:
            if self._left and not isinstance(request, WrongRecord):
                self._left -= 1
                self._look_at(request)
        return _Read(found)

    def _look_at(self, request: LoggedRequest) -> None:
        if request.reply:
            self.may_be_completed = self.may_be_completed or not self._open.isdisjoint(_names(request) if self._open else ())
        else:
            self._open.update(_names(request))
        if self._open:
            self._chars += sum(len(part.text) for message in request.messages for part in message.parts)
            self.may_be_completed = self.may_be_completed or self._chars > MOST_HELD


def _names(request: LoggedRequest) -> list[int]:
    """Return the names of a call together with its prompt."""
    prompt = _prompt_id(request)
    return [hash((name, prompt)) for name in request.ids]


def _as_completed(request: LoggedRequest, completed: Mapping[int, float]) -> LoggedRequest:
    """Return a call with the time at which it was first logged. Raises OtherRecord if it comes again with its reply."""
    times = [completed[name] for name in _names(request) if name in completed]
    if times and not request.reply:
        raise OtherRecord("logged twice")
    return replace(request, time=min(request.time, *times)) if times else request


def _completed(path: Path, reader: Reader) -> dict[int, float]:
    """Return the calls that are logged without and with a reply, as at their start and end, with their first times.

    Only the first PROBED requests decide whether the log has such calls.
    """
    requests = (request for _, request in read_records(path, reader.read, Skipped(), reader.repair))
    open_, probed = set[int](), False
    try:
        for request in islice(requests, PROBED):
            names = _names(request)
            probed = probed or bool(request.reply and not open_.isdisjoint(names))
            open_.update(() if request.reply else names)
    except TraceError:  # the reader raises it again
        return {}
    if not probed:
        return {}
    unsure, fields = _several(path, reader)
    first, replied = dict[int, float](), set[int]()
    for _, request in read_records(path, reader.read, Skipped(), reader.repair):
        for name, call in zip(request.ids, _names(request), strict=True):
            if name not in unsure and name.partition(":")[0] not in fields:
                first[call] = min(first.get(call, request.time), request.time)
                replied.update([call] if request.reply else [])
    return {call: first[call] for call in replied}


class _Calls:
    """The calls of a log, of which each counts once."""

    def __init__(self, several: Callable[[], tuple[set[str], set[str]]]) -> None:
        """``several`` returns the names, and the fields of names, of several calls each."""
        self._several = several
        self._unsure: tuple[set[str], set[str]] | None = None
        """Result of ``several``, once a call has come again."""
        self._seen: set[int] = set()
        self._names: dict[str, int] = {}
        self._around: dict[str, int] = {}
        """Names of the calls that were kept, and of the spans around them, with the texts of their prompts."""
        self._direct: set[str] = set()
        """Names of the spans directly around those calls: of one call, also if its prompt is written in another way."""
        self._between: dict[str, str] = {}
        """The span around each span that is not a call, such as that of the HTTP request."""

    def add_between(self, span: Between) -> None:
        """Add a span that is not a call."""
        if span.name in self._around:
            self._around.setdefault(span.parent, self._around[span.name])
        self._between[span.name] = span.parent

    def add(self, request: LoggedRequest) -> None:
        """Add a call. Raises OtherRecord if it was logged before, or if the call around it or inside of it was kept."""
        if not request.ids:
            return
        around = [request.parent]
        while (outer := self._between.get(around[-1])) and outer not in around:
            around.append(outer)
        texts = hash("".join("".join(message.text.split()) for message in request.messages))
        if (
            request.parent in self._names
            or any(self._names.get(name) == texts for name in around)
            or any(name in self._direct or self._around.get(name) == texts for name in request.ids)
        ):
            raise OtherRecord("the same call, of another instrumentation")
        prompt = _prompt_id(request)
        names = {hash((name, prompt)): name for name in request.ids}
        if again := [name for call, name in names.items() if call in self._seen]:
            self._unsure = unsure, fields = self._unsure or self._several()
            if any(name not in unsure and name.partition(":")[0] not in fields for name in again):
                raise OtherRecord("logged twice")
        self._seen.update(names)
        self._names.update(dict.fromkeys(request.ids, texts))
        self._direct.add(request.parent)
        for name in around:
            self._around.setdefault(name, texts)


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
