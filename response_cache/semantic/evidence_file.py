"""Files of evidence, which contain counts and no text.

`lpc cache calibrate` writes a file with labels of question pairs and the measured error of a judge; a scope's setting
`evidence` names it. A sidecar writes its own file of verdicts.
"""

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lpc.errors import LpcError
from lpc.files import LockedError, locked, write_text
from response_cache.semantic.evidence import Evidence
from response_cache.semantic.ranking import shipped
from response_cache.semantic.threshold import JudgeError

log = logging.getLogger(__name__)

VERSION: Final = 1
PARTS: Final = 1000
"""Tenants of one divided client whose verdicts are kept, the latest ones."""
_PART: Final = " part of "
MOST: Final = 2**40
"""Largest count of a file: sums of all counts of a window stay below 2^63."""


class Verdicts:
    """Numbers that only grow and that an emptied Redis must not undo, by Redis key of the evidence. Thread-safe.

    Several sidecars on one machine may share the file: a change is read and written with its lock held. A client that divides
    itself into tenants has verdicts of `PARTS` of them, else it could fill the disk.

    Args:
        path: path of the file; None to store nothing on disk.

    Raises:
        EvidenceError: the file cannot be read or written, or has another format.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._numbers: dict[str, dict[str, int]] = {}
        self._names: dict[str, str] = {}
        self._parts: dict[str, OrderedDict[str, None]] = {}
        self._lock = threading.Lock()
        self._unwritten = True
        if path is not None:
            try:
                self._merge(path)
            except LockedError as error:
                raise EvidenceError(str(error)) from error
            except OSError as error:
                raise EvidenceError(
                    f"{path} cannot be written ({error.strerror}): free space there, or set LPC_STATE to another folder that "
                    "outlives restarts"
                ) from error

    def of(self, key: str) -> dict[str, int]:
        """Return the numbers of a key."""
        with self._lock:
            return dict(self._numbers.get(self._name(key), {}))

    def grow(self, key: str, numbers: Mapping[str, int], part_of: str = "") -> bool:
        """Store the numbers that are new or larger than before in memory; return whether :meth:`write` has something to do.

        ``part_of``: the client of which the key's tenant is a part.
        """
        with self._lock:
            name = f"{key}{_PART}{part_of}" if part_of and key not in self._numbers else key
            self._unwritten |= self._grow(name, numbers)
            return self._unwritten and self._path is not None

    def write(self) -> None:
        """Write the numbers to the disk, merged with those of other sidecars. May wait; a failure is logged and tried again."""
        if self._path is None:
            return
        try:
            self._merge(self._path)
        except (LpcError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            log.error("cannot store a verdict on evidence in %s (%s): check LPC_STATE; it is tried again", self._path, reason)

    def _merge(self, path: Path) -> None:
        with locked(path):
            found = _read_verdicts(path)
            with self._lock:
                # Those in memory are the latest ones.
                own, self._numbers, self._names, self._parts = self._numbers, {}, {}, {}
                for name, numbers in (*found.items(), *own.items()):
                    self._grow(name, numbers)
                text, self._unwritten = json.dumps(self._numbers, indent=1) + "\n", False
            try:
                write_text(path, text, 0o640)
            except OSError:
                self._unwritten = True
                raise

    def _name(self, key: str) -> str:
        """Return the name under which the numbers of a key are stored."""
        return self._names.get(key, key)

    def _grow(self, name: str, numbers: Mapping[str, int]) -> bool:
        """Raise the numbers under a name in memory; return whether any is larger than before."""
        key, _, client = name.partition(_PART)
        known = self._numbers.get(name, {})
        if client and known:
            self._parts[client].move_to_end(name)
        larger = {field: value for field, value in numbers.items() if value > known.get(field, 0)}
        if not larger:
            return False
        self._numbers[name] = {**known, **larger}
        if client and not known:
            self._names[key] = name
            names = self._parts.setdefault(client, OrderedDict())
            names[name] = None
            if len(names) > PARTS:
                oldest, _ = names.popitem(last=False)
                del self._numbers[oldest], self._names[oldest.partition(_PART)[0]]
        return True


class EvidenceError(LpcError):
    """A file of evidence is invalid."""


def _read_verdicts(path: Path) -> dict[str, dict[str, int]]:
    """Return the verdicts in a file; empty if it is missing. Raises EvidenceError."""
    try:
        found = json.loads(path.read_text()) if path.exists() else {}
        return {str(key): {str(name): _count(value) for name, value in numbers.items()} for key, numbers in found.items()}
    except OSError as error:
        raise EvidenceError(f"{path} cannot be read ({error.strerror}): set LPC_STATE to another folder") from error
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        raise EvidenceError(f"{path} is not a file of verdicts: remove it, or set LPC_STATE to another folder") from error


def write_evidence(path: Path, evidence: Evidence, encoder: str, error: JudgeError | None = None) -> None:
    """Write a file of evidence.

    Args:
        path: path of the file.
        evidence: labels of question pairs.
        encoder: id of the encoder whose similarities were counted.
        error: the measured error of judge "embedding".
    """
    document: dict[str, Any] = {
        "version": VERSION,
        "encoder": encoder,
        "ranking": shipped().digest,
        "counts": evidence.fields(),
    }
    if error is not None:
        document["judge"] = error._asdict()
    write_text(path, json.dumps(document, indent=1) + "\n")


def read_evidence(path: Path, encoder: str | None = None) -> Evidence:
    """Return the evidence of a file.

    Raises:
        EvidenceError: the file cannot be read, is not evidence, or belongs to another encoder than ``encoder`` or to another
            ranking than the shipped one.
    """
    try:
        found = _read(path, encoder)
        if found["ranking"] != shipped().digest:
            raise EvidenceError(f"{path} belongs to another ranking of candidates: run `lpc cache calibrate` again")
        return Evidence.from_fields({str(field): _count(amount) for field, amount in found["counts"].items()})
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise _invalid(path) from error


def read_judge_error(path: Path | None, encoder: str) -> JudgeError:
    """Return the measured error of judge "embedding" in a file of evidence; ``encoder`` is the current one.

    Raises:
        EvidenceError: the judge was not measured, or the file is invalid. The message names the command to run.
    """
    run = f"`lpc cache calibrate --answers FILE --evidence {path or 'FILE'}`"
    if path is None:
        raise EvidenceError(f'the error of judge "embedding" is unknown: run {run} and set `evidence` to that file')
    try:
        measured = _read(path, encoder).get("judge") or {}
        error = JudgeError(_count(measured.get("false_same", 0)), _count(measured.get("different", 0)))
    except (AttributeError, RecursionError, TypeError, ValueError) as failure:
        raise _invalid(path) from failure
    if not error.different or not 0 <= error.false_same <= error.different:
        raise EvidenceError(f'{path} lacks the error of judge "embedding": run {run}')
    return error


def _read(path: Path, encoder: str | None) -> Any:
    try:
        found = json.loads(path.read_text())
        if found["version"] != VERSION:
            raise EvidenceError(f"{path} has another format version: run `lpc cache calibrate` again")
        if encoder is not None and found["encoder"] != encoder:
            raise EvidenceError(f"{path} belongs to another encoder: run `lpc cache calibrate` with the model that you serve")
    except OSError as error:
        raise EvidenceError(f"{path} cannot be read: {error.strerror}") from error
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise _invalid(path) from error
    return found


def _count(value: Any) -> int:
    """Return a count in a file. Raises ValueError: it is not an integer from 0 to MOST."""
    if type(value) is not int or not 0 <= value <= MOST:
        raise ValueError("not a count")
    return value


def _invalid(path: Path) -> EvidenceError:
    return EvidenceError(f"{path} is not an evidence file: write it with `lpc cache calibrate --evidence`")
