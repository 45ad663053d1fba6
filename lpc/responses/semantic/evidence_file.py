"""Files of evidence, which contain counts and no text.

`lpc cache calibrate` writes a file with labels of question pairs and the measured error of a judge; a scope's setting
`evidence` names it. A sidecar writes its own file of verdicts.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lpc.errors import LpcError
from lpc.files import replacing
from lpc.responses.semantic.evidence import Evidence
from lpc.responses.semantic.threshold import JudgeError

log = logging.getLogger(__name__)

VERSION: Final = 1


class Verdicts:
    """Numbers that only grow and that an emptied Redis must not undo, by Redis key of the evidence.

    Several sidecars on one machine may share the file.

    Args:
        path: path of the file; None to store nothing on disk.

    Raises:
        EvidenceError: the file cannot be read or written, or has another format.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._numbers: dict[str, dict[str, int]] = {}
        if path is not None:
            self._read(path)
            try:
                self._write(path)
            except OSError as error:
                raise EvidenceError(
                    f"{path} cannot be written ({error.strerror}): set LPC_STATE to a folder that outlives restarts"
                ) from error

    def of(self, key: str) -> dict[str, int]:
        """Return the numbers of a key."""
        return dict(self._numbers.get(key, {}))

    def note(self, key: str, numbers: Mapping[str, int]) -> None:
        """Store the numbers that are new or larger than before."""
        if not self._grow(key, numbers) or self._path is None:
            return
        try:
            self._read(self._path)
            self._write(self._path)
        except (EvidenceError, OSError) as error:
            log.error("cannot store a verdict on evidence: %s; check LPC_STATE", type(error).__name__)

    def _grow(self, key: str, numbers: Mapping[str, int]) -> bool:
        """Raise the numbers of a key in memory; return whether any is larger than before."""
        known = self._numbers.get(key, {})
        larger = {name: value for name, value in numbers.items() if value > known.get(name, 0)}
        if larger:
            self._numbers[key] = {**known, **larger}
        return bool(larger)

    def _read(self, path: Path) -> None:
        try:
            found = json.loads(path.read_text()) if path.exists() else {}
            for key, numbers in found.items():
                self._grow(str(key), {str(name): int(value) for name, value in numbers.items()})
        except OSError as error:
            raise EvidenceError(f"{path} cannot be read ({error.strerror}): set LPC_STATE to another folder") from error
        except (AttributeError, TypeError, ValueError) as error:
            raise EvidenceError(f"{path} is not a file of verdicts: remove it, or set LPC_STATE to another folder") from error

    def _write(self, path: Path) -> None:
        with replacing(path) as new:
            new.write_text(json.dumps(self._numbers, indent=1) + "\n")


class EvidenceError(LpcError):
    """A file of evidence is invalid."""


def write_evidence(path: Path, evidence: Evidence, encoder: str, error: JudgeError | None = None) -> None:
    """Write a file of evidence.

    Args:
        path: path of the file.
        evidence: labels of question pairs.
        encoder: id of the encoder whose similarities were counted.
        error: the measured error of judge "embedding".
    """
    document: dict[str, Any] = {"version": VERSION, "encoder": encoder, "counts": evidence.fields()}
    if error is not None:
        document["judge"] = error._asdict()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def read_evidence(path: Path, encoder: str | None = None) -> Evidence:
    """Return the evidence of a file.

    Raises:
        EvidenceError: the file cannot be read, is not evidence, or belongs to another encoder than ``encoder``.
    """
    try:
        return Evidence.from_fields({str(field): int(amount) for field, amount in _read(path, encoder)["counts"].items()})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
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
        error = JudgeError(int(measured.get("false_same", 0)), int(measured.get("different", 0)))
    except (AttributeError, TypeError, ValueError) as failure:
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
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _invalid(path) from error
    return found


def _invalid(path: Path) -> EvidenceError:
    return EvidenceError(f"{path} is not an evidence file: write it with `lpc cache calibrate --evidence`")
