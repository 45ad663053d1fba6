"""Reads records from JSON lines, JSON arrays and Parquet, in one file or a folder, without loading whole files.

A record has at most LONGEST_LINE bytes and MOST_VALUES values, in every layout and after unpacking, so that a small packed
file cannot fill the memory.

An unreadable record does not end a run. It is counted by reason and located, and the caller limits their number. Locations are
`file:3` (a line, from 1, as in editors) and `file:record 3` of an array (from 0) or of Parquet (from 1). Neither reason nor
location contains text of a record.
"""

import gzip
import io
import json
import math
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TypeAlias, TypeVar

from lpc.distribution import install
from lpc.errors import LpcError
from lpc.progress import BYTES, progress

Record = dict[str, Any]
_Reader: TypeAlias = Any
"""A buffered reader with `peek`: of a plain file, of gzip or of Zstandard."""
T = TypeVar("T")
_Count: TypeAlias = Callable[[float], object]
"""Is called with each number of bytes that were read of a file."""

SUFFIXES: Final = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet")
NAMED: Final = 20
"""Maximum number of locations stored per reason."""


SKIP_SHARE: Final = 0.9
"""Share of a log's records that may be damaged: one odd record in two still leaves a log."""
SKIP_ALWAYS: Final = 10
"""Records that may be damaged in a log of any size."""
MISFIT_SHARE: Final = 0.2
"""Share of requests that may be misfits: what decides the result is not judged from a remainder."""
MISFIT_ALWAYS: Final = 3
"""Misfits in a log of any size."""
LONGEST_LINE: Final = 128 << 20
"""Bytes of the longest record that is read; images inside a request may have tens of MiB."""
MOST_VALUES: Final = 1 << 23
"""Values of a record, which take up to 150 bytes each in memory, and two bytes in a file."""
TOO_DEEP: Final = "nested too deeply"
"""Why a record cannot be read whose JSON exceeds the interpreter's recursion."""
DAMAGED: Final = (EOFError, zlib.error, gzip.BadGzipFile)
"""Errors of packed contents that are cut off or damaged."""
PEEK: Final = 1 << 16
DEEPEST: Final = 10_000
"""Levels of brackets behind which a file that spans lines is not read on. Python reads a tenth of them."""
_ROWS: Final = 256
"""Rows of a Parquet file that are held at once."""
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)', re.DOTALL)
_STRING_END: Final = re.compile(rb'(?:[^"\\]++|\\.)*+("?)', re.DOTALL)
_SPACE: Final = b" \t\r\n"
_QUOTE, _LIST = ord('"'), ord("[")
_OPENING: Final = frozenset(b"{[")
_TOKEN: Final = re.compile(rb"[{}\[\]]|" + _STRING.pattern, re.DOTALL)


def _uncounted(size: float) -> None:
    """Count nothing."""


class DatasetError(LpcError):
    """A dataset cannot be read."""


class TraceError(LpcError):
    """A trace cannot be read."""


class WrongRecord(Exception):
    """A record does not match its format. The message is the reason, equal for all records with the same fault."""


class Misfit(WrongRecord):
    """A request without what decides the result of all: a time, or ids for each of its blocks."""


class TooLarge(ValueError):
    """A JSON text has more than MOST_VALUES values."""


class OtherRecord(WrongRecord):
    """A record is readable, but no prompt that an engine computed: an embedding, a failed call, an answer from a cache."""


class Between(OtherRecord):
    """A span between two others, by whose names a call inside and one around it are known as the same.

    Attributes:
        name, parent: names of the span and of the one around it, as in `LoggedRequest`.
    """

    def __init__(self, reason: str, name: str, parent: str) -> None:
        super().__init__(reason)
        self.name, self.parent = name, parent


class WithoutPrompt(OtherRecord):
    """A request that an engine computed, whose prompt the log does not have."""


class NotSampled(OtherRecord):
    """A record outside of the sample."""


@dataclass
class Skipped:
    """Skipped records: counts and first locations by reason.

    ``others``: reasons of records other than requests, with which nothing is lost.
    """

    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)

    def note(self, reason: str, where: str, *, other: bool = False) -> None:
        """Count a record. ``other``: nothing is lost with it."""
        if other:
            self.others.add(reason)
        self.counts[reason] = self.counts.get(reason, 0) + 1
        named = self.places.setdefault(reason, [])
        if len(named) < NAMED:
            named.append(where)

    @property
    def first(self) -> dict[str, str]:
        """Location of the first record by reason."""
        return {reason: places[0] for reason, places in self.places.items()}

    def named(self) -> str:
        """Return the reasons with numbers and first locations, for a message."""
        return "; ".join(f"{reason}: {count} (first: {self.first[reason]})" for reason, count in self.counts.items())

    def reading(self) -> dict[str, dict[str, Any]]:
        """Return number, first location, and whether requests are lost, by reason, as JSON."""
        return {
            reason: {"records": number, "first": self.places[reason][0], "lost": reason not in self.others}
            for reason, number in self.counts.items()
        }


def read_records(
    path: Path,
    parse: Callable[[Record], Iterable[T | WrongRecord]],
    skipped: Skipped,
    repair: Callable[[bytes], bytes] | None = None,
    records: Callable[[_Count], Iterator[tuple[str, Record | WrongRecord]]] | None = None,
) -> Iterator[tuple[str, T]]:
    """Yield the location and contents of what ``parse`` yields for the objects of a log, in file order.

    Args:
        path: the log, as in `json_lines`; blank lines are ignored.
        parse: yields what an object contains, and WrongRecord for each wrong part; raises WrongRecord for an invalid object.
        skipped: counts wrong records, with the location ``file:line`` of the first ones per reason.
        repair: makes JSON of a line that is not.
        records: returns the records in place of `json_lines`.

    Raises:
        TraceError: the file cannot be read, is empty, has no valid record, more than SKIP_SHARE and SKIP_ALWAYS are damaged,
            or more than MISFIT_SHARE and MISFIT_ALWAYS are misfits.
    """
    read = good = damaged = others = 0
    reasons, misfits = Skipped(), Skipped()
    try:
        for place, record in _reported(path, log_files(path), records or (lambda count: json_lines(path, repair, count))):
            read += 1
            try:
                for found in [record] if isinstance(record, WrongRecord) else parse(record):
                    if isinstance(found, WrongRecord):
                        others += isinstance(found, NotSampled)
                        damaged += _note(found, place, reasons, skipped, *([misfits] if isinstance(found, Misfit) else []))
                    else:
                        good += 1
                        yield place, found
            except WrongRecord as wrong:
                others += isinstance(wrong, NotSampled)
                damaged += _note(wrong, place, reasons, skipped, *([misfits] if isinstance(wrong, Misfit) else []))
            except RecursionError:
                damaged += _note(WrongRecord(TOO_DEEP), place, reasons, skipped)
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}") from error
    except DatasetError as error:
        raise TraceError(str(error)) from error
    if not read:
        raise TraceError(f"{path} is empty: it has no requests")
    named = reasons.named()
    if not good:
        raise TraceError(f"{path} has no request of this format ({named or 'no record has one'}): check the file and --format")
    refuse_remainder(path, good + others, misfits)
    if damaged > max(SKIP_ALWAYS, SKIP_SHARE * (good + damaged)):
        raise TraceError(
            f"{damaged} of {good + damaged} records of {path} are wrong, more than {SKIP_SHARE:.0%} and {SKIP_ALWAYS}: "
            f"{named}. Fix the file, or check --format"
        )


def _reported(
    path: Path, files: Sequence[Path], read: Callable[[_Count], Iterator[tuple[str, Record | WrongRecord]]]
) -> Iterator[tuple[str, Record | WrongRecord]]:
    """Yield what ``read`` yields, and report how much of the files is read."""
    size = sum(file.stat().st_size for file in files)
    with progress(f"reading {path.name}", size, BYTES) as done:
        yield from read(done.update)


def refuse_remainder(path: Path, good: int, misfits: Skipped) -> None:
    """Raise TraceError if too many requests of a log are misfits: figures of the others would not be the log's."""
    wrong = sum(misfits.counts.values())
    if wrong > max(MISFIT_ALWAYS, MISFIT_SHARE * (good + wrong)):
        raise TraceError(
            f"{wrong} of {good + wrong} requests of {path} are left out, more than {MISFIT_SHARE:.0%}, so the others do not "
            f"show the log's hits: {misfits.named()}. Fix the file, or check --format"
        )


def _note(wrong: WrongRecord, where: str, *counts: Skipped) -> int:
    """Count a record; return whether it is damaged."""
    other = isinstance(wrong, OtherRecord) and not isinstance(wrong, WithoutPrompt)
    for count in counts:
        count.note(str(wrong), where, other=other)
    return not isinstance(wrong, OtherRecord)


def records_of(path: Path) -> Iterator[tuple[str, Record | WrongRecord]]:
    """Yield the location and contents of every record of a file, or of a folder's files in the order of their names.

    Args:
        path: a .jsonl or .json file, also compressed with gzip (.gz), a .parquet file, or a folder with files of one type.

    Raises:
        DatasetError: the file does not exist, has an unknown type, is empty, or is damaged as a whole.
    """
    try:
        files = _files(path)
        is_folder = path.is_dir()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from error
    yield from _reported(path, files, lambda count: _records_of(path, files, count, is_folder=is_folder))


def _records_of(
    path: Path, files: Sequence[Path], count: _Count, *, is_folder: bool
) -> Iterator[tuple[str, Record | WrongRecord]]:
    for file in files:
        name = file.relative_to(path).as_posix() if is_folder else file.name
        empty = True
        try:
            for where, record in _array(file, count) if _kind(file) == ".json" else _records_of_file(file, count=count):
                empty = False
                yield f"{name}:{where}", record
        except OSError as error:
            raise DatasetError(f"cannot read {file}: {error.strerror or 'it is damaged: fetch it again'}") from error
        if empty:
            raise DatasetError(f"{file} is empty: it holds no records. Fetch it again, or remove it")


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise DatasetError(f"no such file or folder: {path}")
    if not path.is_dir():
        if _kind(path) not in SUFFIXES:
            raise DatasetError(
                f"{path} is none of {', '.join(SUFFIXES)}: unpack or convert it, one JSON object per line as .jsonl"
            )
        return [path]
    files = sorted(file for file in _visible(path) if _kind(file) in SUFFIXES and file.is_file())
    kinds = sorted({_kind(file) for file in files})
    if not files:
        raise DatasetError(f"no {', '.join(SUFFIXES)} file in {path}")
    if len(kinds) > 1:
        # Records in two formats would count twice.
        raise DatasetError(f"{path} holds {' and '.join(kinds)} files: give a folder with one kind, or one file")
    return files


def _visible(folder: Path) -> list[Path]:
    """Return what a folder and those inside hold, without hidden ones: metadata of downloads (.git, .cache/huggingface)."""
    return [file for file in folder.rglob("*") if not any(part.startswith(".") for part in file.relative_to(folder).parts)]


def _kind(file: Path) -> str:
    """Return the end of a file's name that shows its type."""
    return "".join(file.suffixes[-2:] if file.suffix.lower() == ".gz" else file.suffixes[-1:]).lower()


def json_lines(
    path: Path, repair: Callable[[bytes], bytes] | None = None, count: _Count = _uncounted
) -> Iterator[tuple[str, Record | WrongRecord]]:
    """Yield the location and the object of every non-blank line of a log, whose files may be compressed.

    A file of one JSON array, or of objects that span lines, gives its objects, numbered from 1. UTF-16 and UTF-32 are read.

    Args:
        path: as in `log_files`.
        repair: makes JSON of a line that is not.
        count: see _Count.
    """
    for file in log_files(path):
        name = name_of(file, path)
        for where, record in _records_of_file(file, repair, count):
            yield f"{name}:{where}", record


def log_files(path: Path) -> list[Path]:
    """Return a file, or the files of a folder and of folders inside, without hidden ones, the one last written at the end.

    Raises:
        DatasetError: the folder has none.
    """
    if not path.is_dir():
        return [path]
    files = sorted((file for file in _visible(path) if file.is_file()), key=lambda file: (file.stat().st_mtime_ns, file))
    if not files:
        raise DatasetError(f"cannot read {path}: the folder has no files")
    return files


def name_of(file: Path, log: Path) -> str:
    """Return the name of one of the files of a log: inside its folder, if that is the log."""
    return file.name if file == log else file.relative_to(log).as_posix()


def _records_of_file(
    path: Path, repair: Callable[[bytes], bytes] | None = None, count: _Count = _uncounted
) -> Iterator[tuple[str, Record | WrongRecord]]:
    """Yield the number, from 1, and the object of every non-blank line of a file."""
    try:
        with unpacked(path, count) as file:
            if file.peek(4).startswith(b"PAR1"):
                yield from _parquet(path, count)
                return
            encoding = _encoding(file.peek(PEEK)[:PEEK])
            layout = _layout(file) if encoding.startswith("utf-8") else "lines"
            if layout == "spread":
                if file.peek(3).startswith(b"\xef\xbb\xbf"):
                    file.read(3)
                yield from _spread(file)
            else:
                yield from _lines(file, encoding, repair, listed=layout == "listed")
    except DAMAGED:
        yield "the end", WrongRecord("file cut off")


class _Counted(io.FileIO):
    """A file that counts the bytes that are read of it."""

    def __init__(self, path: Path, count: _Count) -> None:
        super().__init__(path)
        self._count = count

    def readinto(self, buffer: Any) -> int | None:
        """Read into a buffer."""
        size = super().readinto(buffer)
        self._count(size or 0)
        return size


@contextmanager
def unpacked(path: Path, count: _Count = _uncounted) -> Iterator[_Reader]:
    """Yield a reader of a file's contents, unpacked if its first bytes are those of gzip or Zstandard.

    Args:
        path: the file.
        count: see _Count.

    Raises:
        OSError: the file cannot be read.
        DAMAGED: the packed contents are cut off or damaged.
        DatasetError: the package that unpacks Zstandard is missing.
    """
    with io.BufferedReader(_Counted(path, count), PEEK) as file:
        start = file.peek(4)
        if start.startswith(b"\x1f\x8b"):
            yield gzip.GzipFile(fileobj=file)
        elif start.startswith(b"\x28\xb5\x2f\xfd"):
            zstd = _zstd(path)
            try:
                yield zstd.ZstdFile(file)
            except zstd.ZstdError as error:
                raise EOFError(str(error)) from error
        else:
            yield file


def _zstd(path: Path) -> Any:
    """Return Python's module for Zstandard, or its backport."""
    try:
        return import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    except ImportError:
        raise DatasetError(f"{path} is compressed with Zstandard: unpack it with zstd -d, or {install('sim')}") from None


def _lines(
    file: _Reader, encoding: str, repair: Callable[[bytes], bytes] | None, *, listed: bool
) -> Iterator[tuple[str, Record | WrongRecord]]:
    if encoding.startswith("utf-8"):
        yield from _numbered(file, repair, listed=listed)
        return
    text = io.TextIOWrapper(file, encoding, errors="replace", newline="\n")
    try:
        yield from _numbered(text, repair)
    finally:
        text.detach()  # its owner closes the file


def _numbered(
    stream: Any, repair: Callable[[bytes], bytes] | None, *, listed: bool = False
) -> Iterator[tuple[str, Record | WrongRecord]]:
    number = 0
    while line := stream.readline(LONGEST_LINE):
        number += 1
        ended = _ends(line)
        if len(line) == LONGEST_LINE and not ended:
            while not ended and (line := stream.readline(LONGEST_LINE)):
                ended = _ends(line)
            yield str(number), _too_long()
            continue
        text = line if isinstance(line, bytes) else line.encode("utf-8", "surrogatepass")
        text = text.removeprefix(b"\xef\xbb\xbf") if number == 1 else text
        text = _unlisted(text) if listed else text
        if text and not text.isspace():
            record = _object(text, repair)
            del line, text  # a long line takes as much memory as its record, which the caller may keep for long
            yield str(number), record
            del record


def _ends(line: bytes | str) -> bool:
    return line[-1:] in (b"\n", "\n")


def _encoding(start: bytes) -> str:
    """Return the encoding of a text of JSON: its ASCII, and zero bytes between that, show it. A damaged start shows nothing."""
    found = json.detect_encoding(start[:4])
    text = start.decode(found, "replace").lstrip("\ufeff \t\r\n")
    return found if text[:1] in ("{", "[") else "utf-8"


def _layout(file: _Reader) -> Literal["lines", "listed", "spread"]:
    """Return how a file holds its objects: one a line, as an array with one a line, or across lines.

    A damaged first line does not make an array of a log of lines.
    """
    start = file.peek(PEEK)[:PEEK].removeprefix(b"\xef\xbb\xbf")
    first, second, third = ([line.strip() for line in start.splitlines() if line.strip()] + [b""] * 3)[:3]
    if first.startswith(b"{"):
        return "spread" if first == b"{" and second.startswith(b'"') else "lines"
    if not first.startswith(b"["):
        return "lines"
    if not second:
        return "spread"
    if second.startswith(b"{") and second.endswith(b",") and _is_json(second[:-1]):
        return "listed"
    if first == b"[":
        return "lines" if _is_json(second) and third != b"]" else "spread"
    if first.endswith(b"},"):
        return "listed"
    return "spread" if first == b"[{" and not second.startswith(b"{") else "lines"


def _is_json(text: bytes) -> bool:
    try:
        loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _unlisted(line: bytes) -> bytes:
    """Return an object's line without what makes an array of the lines."""
    text = line.strip().removesuffix(b",").removeprefix(b"[").strip()
    return (text[:-1] if text == b"]" or text.endswith(b"}]") else text) + b"\n"


def _spread(file: _Reader) -> Iterator[tuple[str, Record | WrongRecord]]:
    """Yield the objects of an array, or of objects after each other, as they are read."""
    number = 0
    for text in values_of(file):
        if text is None:
            yield f"after record {number}", WrongRecord("not JSON from here to the end")
        else:
            number += 1
            yield f"record {number}", text if isinstance(text, WrongRecord) else _object(text + b"\n")


def values_of(file: Any) -> Iterator[bytes | WrongRecord | None]:
    """Yield the JSON texts of the values of an array, or of values after each other; None if the last one is cut off.

    Brackets outside of strings end a value, so no value needs to be parsed to find the next one, and none is held that is
    longer than LONGEST_LINE.
    """
    outer = depth = size = 0
    kept: list[bytes] = []
    in_string = other = False
    rest = b""
    while piece := file.read(PEEK):
        data = rest + piece
        at, rest = 0, b""
        if in_string:
            found = _STRING_END.match(data)
            assert found is not None
            in_string, at = not found[1], found.end()
        begun = 0
        while not in_string and (token := _TOKEN.search(data, at)) is not None:
            if depth == outer:
                between = data[at : token.start()].split(b",")
                for part in between[:-1]:
                    if other or part.strip(_SPACE):
                        yield WrongRecord("not a JSON object")
                    other = False
                other = other or bool(between[-1].strip(_SPACE))
            at, mark = token.end(), data[token.start()]
            if mark == _QUOTE:
                in_string = not token[1]
                other = other or depth == outer
            elif mark in _OPENING:
                if depth == outer == 0 and mark == _LIST:
                    outer = depth = 1
                    continue
                if depth == outer:
                    begun = token.start()
                    if other:
                        yield WrongRecord("not JSON")
                    other = False
                depth += 1
                if depth > DEEPEST:
                    yield None
                    return
            elif depth == outer:
                if other:
                    yield WrongRecord("not a JSON object" if outer else "not JSON")
                outer, other = 0, not outer
                depth = 0
            else:
                depth -= 1
                if depth == outer:
                    size += at - begun
                    yield _too_long() if size > LONGEST_LINE else b"".join([*kept, data[begun:at]])
                    kept, size, begun = [], 0, at
        if in_string and at < len(data):  # a backslash whose character comes with the next piece
            rest = data[at:]
            data = data[:at]
        if depth > outer:
            size += len(data) - begun
            kept = [] if size > LONGEST_LINE else [*kept, data[begun:]]
        elif data[at:].strip(_SPACE + b","):
            other = True
    if other and not outer:
        yield WrongRecord("not JSON")
    if outer or depth or in_string:
        yield None


def _object(line: bytes, repair: Callable[[bytes], bytes] | None = None) -> Record | WrongRecord:
    try:
        record = loads(line)
    except UnicodeDecodeError:  # web servers log a client's bytes as they came
        sound = line.decode("utf-8", "replace").encode()
        return _object(sound, repair) if sound != line else WrongRecord("not JSON")
    except RecursionError:
        return WrongRecord("not JSON")
    except TooLarge:
        return WrongRecord(f"more than {MOST_VALUES:,} values")
    except ValueError:
        if repair is not None and (repaired := repair(line)) != line:
            return _object(repaired)
        return WrongRecord("not JSON" if line.endswith(b"\n") else "last line cut off")
    return record if isinstance(record, dict) else WrongRecord("not a JSON object")


def loads(text: str | bytes) -> Any:
    """Return the value of a JSON text; whole numbers of too many digits become infinity.

    Raises:
        TooLarge: it has too many values. The memory for these is not taken.
        ValueError, RecursionError: it is not JSON, or nested too deeply.
    """
    if _marks(text) > MOST_VALUES:
        encoded = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        if _marks(_STRING.sub(b"", encoded)) > MOST_VALUES:
            raise TooLarge
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # Python refuses to convert more than 4,300 digits
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 4_000 else math.inf)


def _marks(text: str | bytes) -> int:
    """Return the number of marks that precede a value: at least that of the values behind the first."""
    if isinstance(text, str):
        return text.count(",") + text.count("[") + text.count("{")
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _too_long() -> WrongRecord:
    return WrongRecord(f"longer than {LONGEST_LINE >> 20} MiB")


def _row(batch: Any) -> Record | WrongRecord:
    if batch.get_total_buffer_size() > LONGEST_LINE and batch.nbytes > LONGEST_LINE:
        return _too_long()
    text = json.dumps(batch.to_pylist()[0], default=str)
    return _object(text.encode() + b"\n")


def _parquet(path: Path, count: _Count) -> Iterator[tuple[str, Record | WrongRecord]]:
    """Yield the rows of a Parquet file as a JSON file has them: times as text.

    Raises:
        DatasetError: the file is damaged, or the package that reads it is missing.
    """
    try:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise DatasetError(f"{path} is a Parquet file: {install('train')}, or convert it to JSON") from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                # A value that many rows share is stored once, so a small column may have many large rows.
                columns = file.metadata.row_group(group)
                largest = max((columns.column(at).total_uncompressed_size for at in range(columns.num_columns)), default=0)
                rows = min(max(LONGEST_LINE // max(largest, 1), 1), _ROWS)
                for batch in file.iter_batches(batch_size=rows, row_groups=[group]):
                    for at in range(batch.num_rows):
                        number += 1
                        yield f"record {number}", _row(batch.slice(at, 1))
                count(path.stat().st_size / file.num_row_groups)
    except (OSError, pyarrow.ArrowException):
        # Not `from error`: its message may contain values.
        raise DatasetError(f"{path} is a damaged Parquet file after record {number}: fetch it again") from None


def _array(path: Path, count: _Count) -> Iterator[tuple[str, Record | WrongRecord]]:
    """Yield the objects of an array. A truncated file yields its complete objects and one wrong record."""
    position = -1
    with io.BufferedReader(_Counted(path, count), PEEK) as file:
        first = _first_character(file)
        if not first:
            return
        if first != b"[":
            raise DatasetError(f"{path} is not a JSON array: rename it to .jsonl if it has one JSON object per line")
        for text in values_of(file):
            if text is None:
                yield f"after record {position}", WrongRecord("file cut off")
                return
            record = text if isinstance(text, WrongRecord) else _object(text + b"\n")
            if isinstance(record, WrongRecord) and str(record) == "not JSON":
                raise DatasetError(f"{path} is not JSON after record {position}: repair it or fetch it again")
            position += 1
            yield f"record {position}", record


def _first_character(file: BinaryIO) -> bytes:
    """Seek to the first character after a byte order mark and white space; return it."""
    file.seek(3 if file.read(3) == b"\xef\xbb\xbf" else 0)
    while (byte := file.read(1)).isspace():
        pass
    if byte:
        file.seek(-1, 1)
    return byte
