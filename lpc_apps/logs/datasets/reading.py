"""Parsing of records in all loaders: counts wrong records."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from lpc.model.conversation import lone_surrogate
from lpc_apps.logs.records import TOO_DEEP, DatasetError, Record, Skipped, WrongRecord, records_of

T = TypeVar("T")

FIELDS: Final[dict[str, frozenset[str]]] = {"sharegpt": frozenset({"id", "conversations"})}
"""Required fields of a record by dataset."""
WRONG_SHARE: Final = 0.01
WRONG_FLOOR: Final = 10
"""A dataset is rejected if its wrong records exceed both this share and this number."""


def read(dataset: str, path: Path, parse: Callable[[Record, str], T], skipped: Skipped) -> Iterator[T]:
    """Yield ``parse(record, location)`` of each record; count records for which it raises WrongRecord in ``skipped``.

    Raises:
        DatasetError: the file is missing, empty or damaged, or has no record of the dataset; at the end, if too many are wrong.
    """
    wrong = Skipped()
    good = 0
    for place, record in records_of(path):
        try:
            if isinstance(record, WrongRecord):
                raise record
            if missing := FIELDS.get(dataset, frozenset()) - record.keys():
                raise WrongRecord(f"no field {min(missing)}")
            parsed = parse(record, place)
        except (WrongRecord, RecursionError) as error:
            reason = str(error) if isinstance(error, WrongRecord) else TOO_DEEP
            wrong.note(reason, place)
            skipped.note(reason, place)
            continue
        good += 1
        yield parsed
    _refuse_wrong(dataset, path, good, wrong)


def _refuse_wrong(dataset: str, path: Path, good: int, wrong: Skipped) -> None:
    count = sum(wrong.counts.values())
    total = good + count
    what = "; ".join(f"{reason}: {number} (first: {wrong.first[reason]})" for reason, number in wrong.counts.items())
    if not good:
        raise DatasetError(f"{path} has no readable record of the dataset {dataset}: {what}. Choose the dataset that it is")
    if count > max(WRONG_FLOOR, WRONG_SHARE * total):
        raise DatasetError(
            f"{path}: {count} of {total} records are wrong, more than {WRONG_SHARE:.0%} and {WRONG_FLOOR}: "
            f"{what}. Repair or remove them"
        )


def unicode_of(text: str) -> str:
    """Return the text. Raises WrongRecord if it is not valid Unicode."""
    if lone_surrogate(text) is not None:
        raise WrongRecord("text is not valid Unicode")
    return text


def id_of(record: Record, name: str) -> str:
    """Return a record's id. Raises WrongRecord if it has none."""
    value: Any = record.get(name)
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        raise WrongRecord(f"{name} is not an id")
    return unicode_of(str(value))
