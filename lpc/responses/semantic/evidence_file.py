"""Evidence in a file: what `lpc cache calibrate` writes and a scope's `evidence` setting names. Counts only; no text.

Labels of pairs of questions, and how often the judge of answers errs, where that was measured.
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
    """What an empty Redis must not undo, by the place of the evidence: numbers that only grow, in a file of the sidecar.

    Several sidecars of one machine may share the file.

    Args:
        path: of the file; None: it is kept in memory only.

    Raises:
        EvidenceError: the file cannot be read or written, or holds something else.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._places: dict[str, dict[str, int]] = {}
        if path is not None:
            self._take_in(path)
            try:
                self._write(path)
            except OSError as error:
                raise EvidenceError(
                    f"{path} cannot be written ({error.strerror}): set LPC_STATE to a folder that outlives restarts"
                ) from error

    def of(self, place: str) -> dict[str, int]:
        """Return what is known of a place."""
        return dict(self._places.get(place, {}))

    def note(self, place: str, numbers: Mapping[str, int]) -> None:
        """Keep what is new or larger than before."""
        if not self._grows(place, numbers):
            return
        if self._path is None:
            return
        try:
            self._take_in(self._path)
            self._write(self._path)
        except (EvidenceError, OSError) as error:
            log.error("a verdict on evidence is not kept: %s; see LPC_STATE", type(error).__name__)

    def _grows(self, place: str, numbers: Mapping[str, int]) -> bool:
        known = self._places.get(place, {})
        more = {name: value for name, value in numbers.items() if value > known.get(name, 0)}
        if more:
            self._places[place] = {**known, **more}
        return bool(more)

    def _take_in(self, path: Path) -> None:
        try:
            found = json.loads(path.read_text()) if path.exists() else {}
            for place, numbers in found.items():
                self._grows(str(place), {str(name): int(value) for name, value in numbers.items()})
        except OSError as error:
            raise EvidenceError(f"{path} cannot be read ({error.strerror}): set LPC_STATE to another folder") from error
        except (AttributeError, TypeError, ValueError) as error:
            raise EvidenceError(f"{path} holds no verdicts: remove it, or set LPC_STATE to another folder") from error

    def _write(self, path: Path) -> None:
        with replacing(path) as new:
            new.write_text(json.dumps(self._places, indent=1) + "\n")


class EvidenceError(LpcError):
    """A file of evidence cannot be used."""


def write_evidence(
    path: Path, evidence: Evidence, encoder: str, judge: str = "", model: str = "", error: JudgeError | None = None
) -> None:
    """Write evidence and the digest of the encoder whose similarities it counts.

    Args:
        judge: whose error was measured, as a scope's `judge` names it; with "model" also ``model``.
        error: what was measured.
    """
    kept: dict[str, Any] = {"version": VERSION, "encoder": encoder, "counts": evidence.fields()}
    if error is not None:
        kept["judge"] = {"judge": judge, "model": model, **error._asdict()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1) + "\n")


def read_evidence(path: Path, encoder: str | None = None) -> Evidence:
    """Return the evidence of a file.

    Raises:
        EvidenceError: it cannot be read, is not evidence, or is of another encoder than ``encoder``.
    """
    try:
        return Evidence.from_fields({str(field): int(amount) for field, amount in _read(path, encoder)["counts"].items()})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _none(path) from error


def read_judge_error(path: Path | None, judge: str, model: str, encoder: str) -> JudgeError:
    """Return how often a judge errs, as it was measured.

    Args:
        path: of the evidence; None: the scope has none.
        judge: as a scope's `judge` names it; with "model" also ``model``.
        encoder: that is served.

    Raises:
        EvidenceError: it was not measured, or the file cannot be used. The message says what to run.
    """
    named = f"--judge {judge} --judge-model {model}" if model else f"--judge {judge}"
    run = f"`lpc cache calibrate --answers FILE {named} --evidence {path or 'FILE'}`"
    if path is None:
        raise EvidenceError(f'judge "{judge}" errs, and how often is not known: run {run} and name that file as `evidence`')
    try:
        measured = _read(path, encoder).get("judge") or {}
        error = JudgeError(int(measured.get("false_same", 0)), int(measured.get("different", 0)))
    except (AttributeError, TypeError, ValueError) as failure:
        raise _none(path) from failure
    if not 0 <= error.false_same <= error.different or (measured.get("judge"), measured.get("model")) != (judge, model):
        raise EvidenceError(f'{path} does not say how often judge "{model or judge}" errs: run {run}')
    return error


def _read(path: Path, encoder: str | None) -> Any:
    try:
        found = json.loads(path.read_text())
        if found["version"] != VERSION:
            raise EvidenceError(f"{path} is evidence of another version of lpc: run `lpc cache calibrate` again")
        if encoder is not None and found["encoder"] != encoder:
            raise EvidenceError(
                f"{path} is evidence of another encoder: run `lpc cache calibrate` with the model that is served"
            )
    except OSError as error:
        raise EvidenceError(f"{path} cannot be read: {error.strerror}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _none(path) from error
    return found


def _none(path: Path) -> EvidenceError:
    return EvidenceError(f"{path} is not an evidence file: write it with `lpc cache calibrate --out`")
