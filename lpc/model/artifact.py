"""A model artefact: one folder per version, `models/<name>/<version>/{model.onnx, tokenizer.json, manifest.json}`.

`lpc export` writes it, the sidecar reads it. A file whose checksum differs from the manifest's is never loaded.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lpc.errors import ArtifactError
from lpc.model.features import FeatureSettings

SCHEMA: Final = 1
MANIFEST: Final = "manifest.json"
FILES: Final = ("model.onnx", "tokenizer.json")
"""Files of every version, in addition to its manifest."""


@dataclass(frozen=True)
class Manifest:
    """Contents of a version folder.

    Attributes:
        name, version: name and version of the model, as in the folder's path.
        precision: "fp32", "fp16" or "int8".
        files: file name to SHA-256, hexadecimal.
        features: settings that turn conversations into input.
        embedding_width: width of the second output.
        encoder_id, encoder_sha256: source of the encoder's weights.
        head: name, digest and training metrics of the head.
        verification: differences between the graph and the fp32 PyTorch model.
        created: UTC, ISO 8601. The newest version is served.
        made_with: versions of the exporting libraries.
    """

    name: str
    version: str
    precision: str
    files: Mapping[str, str]
    features: FeatureSettings
    embedding_width: int
    encoder_id: str
    encoder_sha256: str
    head: Mapping[str, Any]
    verification: Mapping[str, Any]
    created: str
    made_with: Mapping[str, str] = field(default_factory=dict)

    def vectors_id(self) -> str:
        """Return an id of encoder and precision. Only vectors with the same id are comparable."""
        return hashlib.sha256(f"{self.encoder_sha256}:{self.precision}".encode()).hexdigest()[:12]

    def to_json(self) -> str:
        """Return the manifest file's text."""
        values = {**self.__dict__, "schema": SCHEMA, "features": self.features.to_dict()}
        return json.dumps(values, indent=2, sort_keys=True) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """Read a version folder's manifest without reading the files that it names.

    Raises:
        ArtifactError: the folder or its manifest is missing, invalid or of another schema.
    """
    path = folder / MANIFEST
    try:
        values = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        if not folder.is_dir():
            raise ArtifactError(f"no model artefact at {folder}: make one with `lpc export`") from error
        raise ArtifactError(f"{path} is missing: the artefact is incomplete, make it again with `lpc export`") from error
    except OSError as error:
        raise ArtifactError(
            f"{path} cannot be read ({error.strerror}): let user {os.getuid()}, as which this runs, read it"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{path} is not a readable manifest ({type(error).__name__}): make it again with `lpc export`"
        ) from error
    try:
        if values["schema"] != SCHEMA:
            raise ArtifactError(f"{path} has schema {values['schema']}, this service reads {SCHEMA}: export with this version")
        del values["schema"]
        return Manifest(**{**values, "features": FeatureSettings.from_dict(values["features"])})
    except KeyError as error:
        raise ArtifactError(f"{path} lacks the entry {error}: make it again with `lpc export`") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(f"{path} is not a valid manifest ({error}): make it again with `lpc export`") from error


def verify(folder: Path) -> Manifest:
    """Read a version folder's manifest and compare every file that the sidecar reads with its checksum.

    Raises:
        ArtifactError: see :func:`read_manifest`; or a file is missing or differs.
    """
    manifest = read_manifest(folder)
    for name in FILES:
        path = folder / name
        expected = manifest.files.get(name)
        if expected is None:
            raise ArtifactError(f"{folder / MANIFEST} has no checksum for {name}: make it again with `lpc export`")
        try:
            found = file_sha256(path)
        except OSError as error:
            raise ArtifactError(f"cannot read {path} ({error.strerror}): make the artefact again with `lpc export`") from error
        if found != expected:
            raise ArtifactError(
                f"{path} has SHA-256 {found[:16]}..., the manifest says {expected[:16]}...: the file is damaged or was "
                "replaced; make the artefact again with `lpc export`"
            )
    return manifest


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
