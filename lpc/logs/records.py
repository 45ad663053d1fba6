"""Records out of files: Parquet, JSON lines and JSON arrays, one file or a folder of them, never a whole file in memory.

A record that cannot be read does not end a run: it is counted by its reason and named by its place, and the reader of
decides how many are too many. Places are `file:3` (a line, from 1, as editors count), `file:row 3` of Parquet and
`file:record 3` of an array (from 0, as pandas and the Hugging Face viewer count). No reason and no place holds text of a
record.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import ijson
import pyarrow as pa
import pyarrow.parquet as pq

from lpc.errors import LpcError

Record = dict[str, Any]

SUFFIXES: Final = (".parquet", ".jsonl", ".json")
ROWS_PER_BATCH: Final = 512
NAMED: Final = 20
"""Places kept of each reason; all are counted."""


class DatasetError(LpcError):
    """A dataset cannot be read. The message says why and what to do."""


class WrongRecord(Exception):
    """A record is not what its format says. The message is the reason, the same for all records wrong in the same way."""


@dataclass
class Skipped:
    """Records left out: how many by reason, and where the first of each are.

    Attributes:
        wrong_share, wrong_floor: a dataset is refused when it has more wrong records than the floor and than this share.
    """

    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)
    wrong_share: float = 0.01
    wrong_floor: int = 10

    def note(self, reason: str, where: str) -> None:
        """Count a record."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        named = self.places.setdefault(reason, [])
        if len(named) < NAMED:
            named.append(where)

    @property
    def first(self) -> dict[str, str]:
        """The place of the first record of each reason."""
        return {reason: places[0] for reason, places in self.places.items()}


def records_of(
    path: Path, columns: Collection[str], message_fields: Collection[str]
) -> Iterator[tuple[str, Record | WrongRecord]]:
    """Yield the place and contents of every record of a file, or of the files of a folder in the order of their names.

    Args:
        path: a .parquet, .jsonl or .json file, or a folder that holds files of one of these kinds.
        columns: the fields wanted. Of Parquet only these are read, of the other kinds all.
        message_fields: the fields wanted of what is nested in the columns (Parquet only).

    Raises:
        DatasetError: there is no such file, it is not of a known kind, it is empty or damaged beyond its records.
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
            match file.suffix.lower():
                case ".parquet":
                    found = _parquet(file, columns, message_fields)
                case ".jsonl":
                    found = json_lines(file)
                case _:
                    found = _array(file)
            for where, record in found:
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
    # Hidden folders hold the downloads' bookkeeping (.git, .cache/huggingface).
    inside = [file for file in path.rglob("*") if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    files = sorted(file for file in inside if file.suffix.lower() in SUFFIXES and file.is_file())
    kinds = sorted({file.suffix.lower() for file in files})
    if not files:
        raise DatasetError(f"no {', '.join(SUFFIXES)} file in {path}")
    if len(kinds) > 1:
        # The same records in two kinds would count twice, and a repository's own .json files are not records.
        raise DatasetError(f"{path} holds {' and '.join(kinds)} files: give a folder with one kind, or one file")
    return files


def _parquet(
    path: Path, columns: Collection[str], message_fields: Collection[str]
) -> Iterator[tuple[str, Record | WrongRecord]]:
    row = 0
    try:
        with pq.ParquetFile(path) as file:
            wanted = [leaf for leaf in _leaves(file) if _is_wanted(leaf, columns, message_fields)]
            for batch in file.iter_batches(ROWS_PER_BATCH, columns=wanted):
                for record in _rows(batch):
                    yield f"row {row}", record
                    row += 1
    except pa.ArrowInvalid as error:
        raise DatasetError(f"{path} is not a Parquet file, or damaged after row {row - 1}: fetch it again") from error


def _leaves(file: Any) -> list[str]:
    return [file.schema.column(i).path for i in range(len(file.schema))]


def _is_wanted(leaf: str, columns: Collection[str], message_fields: Collection[str]) -> bool:
    top, *nested = leaf.split(".")
    return top in columns and (not nested or nested[-1] in message_fields)


def _rows(batch: Any) -> Iterator[Record | WrongRecord]:
    try:
        yield from batch.to_pylist()
    except ValueError:
        # One string that is not UTF-8 fails its whole batch.
        for i in range(batch.num_rows):
            try:
                row = batch.slice(i, 1).to_pylist()[0]
            except ValueError:
                row = WrongRecord("not readable as UTF-8")
            yield row


def json_lines(path: Path) -> Iterator[tuple[str, Record | WrongRecord]]:
    """Yield the number, from 1, and the object of every line of a JSONL file that is not blank."""
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
    """Yield the objects of an array. A file that ends too early gives what it has, and one wrong record for the rest."""
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
            # Not `from error`: its message holds the text around the fault.
            if file.tell() < size:
                raise DatasetError(f"{path} is not JSON after record {position}: repair it or fetch it again") from None
            yield f"after record {position}", WrongRecord("file cut off")


def _first_character(file: BinaryIO) -> bytes:
    """Go to the first character that is not white space or byte order mark, and return it."""
    file.seek(3 if file.read(3) == b"\xef\xbb\xbf" else 0)
    while (byte := file.read(1)).isspace():
        pass
    if byte:
        file.seek(-1, 1)
    return byte
