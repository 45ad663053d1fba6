"""`lpc export`: writes encoder and head as one verified, versioned artefact, without PyTorch."""

import contextlib
import hashlib
import json
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import tokenizers
from threadpoolctl import threadpool_limits

from lpc.errors import ArtifactError, LpcError, UsageError
from lpc.files import naming, owned, sync, write_text
from lpc.model.artifact import FILES, MANIFEST, Manifest, file_sha256, verify
from lpc.model.features import FeatureEncoder, FeatureSettings
from lpc.model.inference import graph_inputs
from lpc.model.onnx_runtime import ort
from lpc.model.versions import publish
from lpc.progress import each, progress
from lpc_apps.training import reference
from lpc_apps.training.encoders import Encoder, load_encoder, source_of
from lpc_apps.training.graph import Precision, write_onnx
from lpc_apps.training.head_file import DEFAULT_HEAD, MODELS, HeadFile
from lpc_apps.training.prompts import PROMPTS

GRAPH: Final = 4
"""Version of `lpc_apps.training.graph`; increased if the same input yields another graph."""
MADE_WITH: Final = (np, onnx, ort, tokenizers)


@dataclass(frozen=True)
class Bound:
    """Limits of an export's difference from the fp32 reference."""

    mean_cosine: float
    minimum_cosine: float
    probability: float


BOUNDS: Final[dict[Precision, Bound]] = {
    "fp32": Bound(0.99999, 0.9999, 0.001),
    "fp16": Bound(0.9999, 0.999, 0.01),
    "int8": Bound(0.99, 0.97, 0.05),
}


class ExportError(LpcError):
    """An artefact cannot be exported."""


def export(
    models: Path,
    *,
    name: str = MODELS["default"],
    encoder: str | Encoder | None = None,
    head: Path = DEFAULT_HEAD,
    precision: Precision = "int8",
    version: str | None = None,
    created: datetime | None = None,
) -> Path:
    """Write ``models/<name>/<version>/`` atomically and return it; a valid existing version is not changed.

    Args:
        models: the model repository.
        encoder: a source, see `load_encoder`, or a loaded encoder; None: the one that the head was trained on.
        head: a file written by `lpc train`.
        version: default: precision and a digest of all inputs, so that the same input yields the same version.
        created: time in the manifest; default: now.

    Raises:
        UsageError: the name or version is not a folder name.
        ExportError: the export differs from the reference by more than its bound.
        EncoderError, HeadError: an input cannot be read.
        OSError: the artefact cannot be written; it is the error's file, and nothing has changed.
    """
    for given in (name, version or ""):
        if Path(given).name != given or given.startswith("."):
            raise UsageError(
                f"{given!r} names no folder in the model repository: give a name without slashes and without a dot first"
            )
    trained = HeadFile.load(head)
    settings = FeatureSettings.from_dict(trained.metadata["features"])
    encoder = encoder or source_of(trained.metadata["encoder"])
    source = load_encoder(encoder) if isinstance(encoder, str) else encoder
    if trained.metadata.get("encoder_sha256") not in (None, source.sha256):
        raise ExportError(
            f"the head {head} was trained on the encoder {trained.metadata.get('encoder')}, not on {source.id}: train a head "
            "on this encoder with `lpc embed` and `lpc train`"
        )
    version = version or artifact_version(source, trained, precision)
    place = models / name / version
    with contextlib.suppress(ArtifactError):  # it is missing, or damaged: then it is replaced when the new one is complete
        verify(place)
        return place
    with _scratch(place) as folder, progress(f"exporting {name} {precision}", 3, "steps") as steps:
        write_text(folder / "tokenizer.json", source.tokenizer.to_str(pretty=True))
        write_onnx(source, trained, precision, folder / "model.onnx")
        steps.update()
        report = compare(folder / "model.onnx", source, trained, settings)
        steps.update()
        _refuse_beyond(BOUNDS[precision], report, precision)
        manifest = Manifest(
            name=name,
            version=version,
            precision=precision,
            files={file: file_sha256(folder / file) for file in FILES},
            features=settings,
            embedding_width=trained.width,
            encoder_id=source.id,
            encoder_sha256=source.sha256,
            head={"digest": trained.digest(), **trained.metadata},
            verification=report,
            created=(created or datetime.now(UTC)).isoformat(timespec="microseconds"),
            made_with={library.__name__: library.__version__ for library in MADE_WITH},
        )
        (folder / MANIFEST).write_text(manifest.to_json(), "utf-8")
        for file in folder.iterdir():
            sync(file)
        sync(folder)
        publish(folder, place)
        steps.update()
    return place


@contextlib.contextmanager
def _scratch(place: Path) -> Iterator[Path]:
    """Yield a new folder next to an artefact's, locked against `lpc models prune`. Errors of the disk name the artefact."""
    made = place.parent / f".{place.name}-{secrets.token_hex(8)}"
    try:  # named before it is made, so that an interruption right after that leaves nothing
        with naming(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            made.mkdir(mode=0o700)
        with naming(place, instead_of=made), owned(made):
            folder = made / place.name
            folder.mkdir()
            yield folder
    finally:
        shutil.rmtree(made, ignore_errors=True)


def artifact_version(encoder: Encoder, head: HeadFile, precision: Precision) -> str:
    """Return the default version of an export."""
    parts = [GRAPH, encoder.sha256, head.digest(), head.metadata["features"], precision]
    return f"{precision}-{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]}"


def compare(model: Path, encoder: Encoder, head: HeadFile, settings: FeatureSettings) -> dict[str, Any]:
    """Compare an exported graph with the fp32 reference on conversations of several languages and lengths.

    Returns:
        prompts, mean_cosine, minimum_cosine (of the embedding), maximum_probability_difference, mean_probability_difference.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    features = FeatureEncoder(encoder.tokenizer, settings)
    cosines, differences = [], []
    for turns in each(PROMPTS, "comparing with fp32", "prompts"):
        inputs = features.encode(turns)
        # One thread: on a loaded machine NumPy's threads wait for each other a hundred times as long as they compute.
        with threadpool_limits(1):
            vector = reference.embedding(encoder, inputs.input_ids)
        probability, embedding = session.run(["probability", "embedding"], graph_inputs([inputs]))
        cosines.append(float((embedding[0] * vector).sum()))
        differences.append(abs(float(probability[0]) - reference.probability(head, vector, inputs.scalars)))
    return {
        "prompts": len(cosines),
        "mean_cosine": round(float(np.mean(cosines)), 6),
        "minimum_cosine": round(float(np.min(cosines)), 6),
        "maximum_probability_difference": round(float(np.max(differences)), 6),
        "mean_probability_difference": round(float(np.mean(differences)), 6),
    }


def _refuse_beyond(bound: Bound, report: dict[str, Any], precision: Precision) -> None:
    found = Bound(report["mean_cosine"], report["minimum_cosine"], report["maximum_probability_difference"])
    if (
        found.mean_cosine < bound.mean_cosine
        or found.minimum_cosine < bound.minimum_cosine
        or found.probability > bound.probability
    ):
        raise ExportError(
            f"the {precision} export is too far from the fp32 reference: {found}, allowed {bound}; try another precision"
        )
