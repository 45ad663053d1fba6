"""Trains a head on the label log and publishes it if it is not worse than the live one."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lpc.errors import ArtifactError
from lpc.model.artifact import Manifest, read_manifest
from lpc.model.recalibration import LABELS, Floats, fit_platt
from lpc.model.versions import promote, served_folder
from lpc_apps.training.compare import Difference, Scores, differences, scores, to_json, why_worse
from lpc_apps.training.encoders import load_encoder, source_of
from lpc_apps.training.export import ExportError, export
from lpc_apps.training.head import Head
from lpc_apps.training.head_file import RecipeName
from lpc_apps.training.label_log import LoggedTurns, newest_side
from lpc_apps.training.live_head import LiveHead
from lpc_apps.training.train import learn, probabilities, side_of


@dataclass(frozen=True)
class Retrained:
    """Result of a retraining.

    Attributes:
        live: the version that was served before.
        version: the version served now: the published one, or the live one.
        reason: why the new head was not published; "" if it was.
        log: the label log.
        turns: number of turns by split.
        scores: metrics on the evaluated turns of the `new` and `live` heads, the `logged` predictions and the `base rate`.
        differences: differences of the metrics, new minus live.
    """

    live: str
    version: str
    reason: str
    log: LoggedTurns
    turns: dict[str, int]
    scores: dict[str, Scores]
    differences: dict[str, Difference]

    def to_json(self) -> dict[str, Any]:
        """Return plain, rounded values."""
        return {
            "published": not self.reason,
            "version": self.version,
            "live_version": self.live,
            "reason": self.reason,
            "notes": list(self.log.notes),
            "turns": self.turns,
            "evaluated": {"from": utc(self.log.cut), "to": utc(self.log.last)},
            "scores": {row: to_json(value) for row, value in self.scores.items()},
            "differences": {row: to_json(value) for row, value in self.differences.items()},
        }


def retrain(
    log: LoggedTurns,
    live: Path,
    *,
    encoder: str | None = None,
    recipe: RecipeName = "default",
    seed: int = 0,
    out: Path | None = None,
) -> Retrained:
    """Train on a label log; publish a version with the live encoder and precision if the new head is not worse.

    If a version is promoted or a newer one exists, the published version is promoted, so that sidecars serve it.

    Args:
        log: read with the live version's manifest.
        live: the folder of the version that sidecars serve.
        encoder: source of the live model's, see `load_encoder`; None: as its manifest names it.
        out: file for the trained head, published or not.

    Raises:
        EncoderError, ExportError: the encoder is missing or not the live model's, the export differs too much from the
            reference, or another version was promoted or published during training.
        EmbeddingError: there are too few examples.
    """
    manifest = read_manifest(live)
    encoder = encoder or source_of(manifest.encoder_id)
    _refuse_other_encoder(encoder, manifest)
    head = learn(log.examples, recipe=recipe, seed=seed)
    if out is not None:
        head.save(out)
    table, found = _compare(log, head, live)
    same = head.digest() == manifest.head.get("digest")
    reason = "it is the live head" if same else why_worse(found, table["live"])
    version = live.name if reason else publish(live, encoder, head, manifest)
    return Retrained(live.name, version, reason, log, head.metadata["examples"], table, found)


def _refuse_other_encoder(encoder: str, manifest: Manifest) -> None:
    found = load_encoder(encoder)
    if found.sha256 != manifest.encoder_sha256:
        raise ExportError(
            f"the live version {manifest.version} has the encoder {manifest.encoder_id}, not {found.id}: name its source with "
            "--encoder"
        )


def _compare(data: LoggedTurns, head: Head, live: Path) -> tuple[dict[str, Scores], dict[str, Difference]]:
    scalars = tuple(head.metadata["features"]["scalars"])
    newest = newest_side(data)
    continues = newest.examples.continues
    new = probabilities(head, side_of(data.examples, "evaluation", scalars))
    old = _live(live, data, newest)
    rate = float(data.examples.continues[data.examples.split != "evaluation"].mean())
    table = {
        "new": scores(new, continues),
        "live": scores(old, continues),
        "logged": scores(newest.probability, continues),
        "base rate": scores(np.full(len(continues), rate), continues),
    }
    return table, differences(new, old, continues, newest.examples.conversation)


def _live(live: Path, data: LoggedTurns, newest: LoggedTurns) -> Floats:
    """Return the live head's probabilities of the newest turns, recalibrated on the turns before them as by a sidecar."""
    head = LiveHead(live)
    before = data.examples.take(np.flatnonzero(data.examples.split != "evaluation")[-LABELS:])
    correction = fit_platt(_log_odds(head.probabilities(before)), before.continues)
    return correction.probabilities(_log_odds(head.probabilities(newest.examples)))


def _log_odds(probability: Floats) -> Floats:
    return np.log(probability / (1 - probability))


def publish(live: Path, encoder: str, head: Head, manifest: Manifest) -> str:
    """Export a version that sidecars then serve; return its name. Raises ExportError if another version is live now."""
    model = live.parent
    if served_folder(model) != live:
        raise ExportError(f"{live} was live when training began and is not any more: nothing is published, run it again")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "head.safetensors"
        head.save(path)
        place = export(
            model.parent,
            name=model.name,
            encoder=encoder,
            head=path,
            precision=manifest.precision,  # type: ignore[arg-type]
        )
    if served_folder(model) != place:
        try:
            promote(model, place.name, instead_of=live.name)
        except ArtifactError as error:
            raise ExportError(f"{place} is exported but not promoted: {error}") from error
    return place.name


def utc(when: np.datetime64) -> str:
    """Return a time to the minute: 2026-11-21 20:00Z."""
    return f"{when.astype('datetime64[m]')}Z".replace("T", " ")
