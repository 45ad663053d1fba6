"""Evidence in a file: what `lpc cache calibrate` writes and a scope's `evidence` setting names. Counts only; no text."""

import json
from pathlib import Path
from typing import Final

from lpc.errors import LpcError
from lpc.responses.semantic.evidence import Evidence

VERSION: Final = 1


class EvidenceError(LpcError):
    """A file of evidence cannot be used."""


def write_evidence(path: Path, evidence: Evidence, encoder: str) -> None:
    """Write evidence and the digest of the encoder whose similarities it counts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": VERSION, "encoder": encoder, "counts": evidence.fields()}, indent=1) + "\n")


def read_evidence(path: Path, encoder: str | None = None) -> Evidence:
    """Return the evidence of a file.

    Raises:
        EvidenceError: it cannot be read, is no evidence, or is of another encoder than ``encoder``.
    """
    try:
        found = json.loads(path.read_text())
        if found["version"] != VERSION:
            raise EvidenceError(f"{path} is evidence of another version of lpc: run `lpc cache calibrate` again")
        if encoder is not None and found["encoder"] != encoder:
            raise EvidenceError(
                f"{path} is evidence of another encoder: run `lpc cache calibrate` with the model that is served"
            )
        return Evidence.from_fields({str(field): int(amount) for field, amount in found["counts"].items()})
    except OSError as error:
        raise EvidenceError(f"{path} cannot be read: {error.strerror}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise EvidenceError(f"{path} is no evidence: write it with `lpc cache calibrate --out`") from error
