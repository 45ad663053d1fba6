"""Reads records from JSON lines and JSON arrays, in one file or a folder, without loading whole files.

An unreadable record does not end a run. It is counted by reason and located, and the caller limits their number. Locations are
`file:3` (a line, from 1, as in editors) and `file:record 3` of an array (from 0). Neither reason nor location contains text of
a record.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import ijson

from lpc.errors import LpcError

Record = dict[str, Any]

SUFFIXES: Final = (".jsonl", ".json")
NAMED: Final = 20
"""Maximum number of locations stored per reason."""


class DatasetError(LpcError):
    """A dataset cannot be read."""


class WrongRecord(Exception):
    """A record does not match its format. The message is the reason, equal for all records with the same fault."""


@dataclass
class Skipped:
    """Skipped records: counts and first locations by reason."""

    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def note(self, reason: str, where: str) -> None:
        """Count a record."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        named = self.places.setdefault(reason, [])
        if len(named) < NAMED:
            named.append(where)

    @property
    def first(self) -> dict[str, str]:
        """Location of the first record by reason."""
        return {reason: places[0] for reason, places in self.places.items()}


def records_of(path: Path) -> Iterator[tuple[str, Record | WrongRecord]]:
    """Yield the location and contents of every record of a file, or of a folder's files in the order of their names.

    Args:
        path: a .jsonl or .json file, or a folder with files of one of these types.

    Raises:
        DatasetError: the file does not exist, has an unknown type, is empty, or is damaged as a whole.
    """
    try:
        files = _files(path)
        is_folder = path.is_dir()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from error
    for file in files:
        name = file.relative_to(path).as_posix() if is_folder else file.name
        empty = True
        try:
            for where, record in json_lines(file) if file.suffix.lower() == ".jsonl" else _array(file):
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
        if path.suffix.lower() not in SUFFIXES:
            raise DatasetError(
                f"{path} is none of {', '.join(SUFFIXES)}: unpack or convert it, one JSON object per line as .jsonl"
            )
        return [path]
    # Hidden folders contain metadata of downloads (.git, .cache/huggingface).
    inside = [file for file in path.rglob("*") if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    files = sorted(file for file in inside if file.suffix.lower() in SUFFIXES and file.is_file())
    kinds = sorted({file.suffix.lower() for file in files})
    if not files:
        raise DatasetError(f"no {', '.join(SUFFIXES)} file in {path}")
    if len(kinds) > 1:
        # Records in two formats would count twice.
        raise DatasetError(f"{path} holds {' and '.join(kinds)} files: give a folder with one kind, or one file")
    return files


def json_lines(path: Path) -> Iterator[tuple[str, Record | WrongRecord]]:
    """Yield the number, from 1, and the object of every non-blank line of a JSONL file."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                yield str(number), _object(line)


def _object(line: bytes) -> Record | WrongRecord:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return WrongRecord("not JSON" if line.endswith(b"\n") else "last line cut off")
    return record if isinstance(record, dict) else WrongRecord("not a JSON object")


def _array(path: Path) -> Iterator[tuple[str, Record | WrongRecord]]:
    """Yield the objects of an array. A truncated file yields its complete objects and one wrong record."""
    size = path.stat().st_size
    position = -1
    with path.open("rb") as file:
        first = _first_character(file)
        if not first:
            return
        if first != b"[":
            raise DatasetError(f"{path} is not a JSON array: rename it to .jsonl if it has one JSON object per line")
        try:
            for position, record in enumerate(ijson.items(file, "item")):
                yield f"record {position}", record if isinstance(record, dict) else WrongRecord("not a JSON object")
        except ijson.JSONError:
            # Not `from error`: its message contains text of the file.
            if file.tell() < size:
                raise DatasetError(f"{path} is not JSON after record {position}: repair it or fetch it again") from None
            yield f"after record {position}", WrongRecord("file cut off")


def _first_character(file: BinaryIO) -> bytes:
    """Seek to the first character after a byte order mark and white space; return it."""
    file.seek(3 if file.read(3) == b"\xef\xbb\xbf" else 0)
    while (byte := file.read(1)).isspace():
        pass
    if byte:
        file.seek(-1, 1)
    return byte
