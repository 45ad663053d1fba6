"""The label log that sidecars write, as examples to learn from: files `labels-*.npz`, never text.

A log of several sidecars is a folder with a folder for each. Turns are split by time: the newest day is the evaluation side, as
a new head has to do better there than the head that answered. A conversation stands on one side only: the older turns of one
that the newest day holds too are left out. Sidecars label every turn the same time after it arrived, whether it continued or
not, so the newest turns of a log are not a selection of those that did.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from lpc.errors import LpcError
from lpc.model import label_rows
from lpc.model.artifact import Manifest
from lpc.model.label_rows import COUNTS, EMBEDDING, FILES
from lpc.training.embedding import Embedded
from lpc.training.train import FEWEST_EXAMPLES

DAY: Final = np.timedelta64(24, "h")
SHORT: Final = 0.2
"""Share of the time that is evaluated where the log holds less than two days."""
VALIDATION_SHARE: Final = 0.1
"""Of the conversations before the evaluated time."""
MOST_TURNS: Final = 250_000
"""Read of a longer log: those of a fixed sample of conversations. 250,000 turns take 0.8 GB in training."""


class LabelLogError(LpcError):
    """A label log cannot be learnt from. The message says why and what to do."""


class TooFewTurnsError(LabelLogError):
    """There are not enough logged turns yet."""


@dataclass(frozen=True)
class LoggedTurns:
    """Turns that sidecars answered and whether each was followed by another, n of them.

    Attributes:
        examples: split by time, as the module says.
        probability: [n] what was answered.
        model_version: [n] by which version of the model.
        first, cut, last: UTC: the oldest turn, the beginning of the evaluated time, the newest turn.
        notes: what was left out, and why; one line each.
    """

    examples: Embedded
    probability: NDArray[np.float64]
    model_version: NDArray[np.str_]
    first: np.datetime64
    cut: np.datetime64
    last: np.datetime64
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Turns:
    """Columns of a file, or of several."""

    embedding: NDArray[np.float16]
    columns: dict[str, NDArray[Any]]
    key: NDArray[np.str_]
    model_version: NDArray[np.str_]

    def take(self, mask: NDArray[np.bool_]) -> "_Turns":
        columns = {name: values[mask] for name, values in self.columns.items()}
        return _Turns(self.embedding[mask], columns, self.key[mask], self.model_version[mask])


def read_label_log(folder: Path, live: Manifest, *, most: int = MOST_TURNS) -> LoggedTurns:
    """Read what a log holds of the encoder and the input of the live model.

    Damaged files and those of other encoders or inputs are left out and noted.

    Args:
        live: the model to compare with, whose encoder made the embeddings.
        most: turns to take at about most.

    Raises:
        TooFewTurnsError: there is no log yet, or it is too small.
        LabelLogError: none of it fits the live model.
    """
    if not folder.is_dir():
        raise LabelLogError(f"the folder {folder} does not exist: name that of the sidecars' LPC_LABEL_LOG")
    paths = sorted([*folder.glob(FILES), *folder.glob(f"*/{FILES}")])
    if not paths:
        raise TooFewTurnsError(
            f"no label log in {folder}: neither it nor a folder in it has {FILES}; sidecars write them where label "
            "logging is switched on"
        )
    notes: list[str] = []
    damaged: list[str] = []
    fitting = _fitting(paths, live, damaged, notes)
    if not fitting:
        raise LabelLogError(
            f"none of the {len(paths)} files in {folder} can be learnt from: {'; '.join([*notes, *_damage(damaged)])}"
        )
    count = sum(metadata["rows"] for metadata in fitting.values())
    share = min(1.0, most / max(count, 1))
    if share < 1:
        notes.append(f"of {count:,} turns, those of {share:.1%} of the conversations are taken")
    read = list(_read(fitting, share, damaged, notes))
    notes += _damage(damaged)
    if not read:
        raise TooFewTurnsError(f"no turns in {folder}: {'; '.join(notes) or 'the log is empty'}; let the sidecars log longer")
    return _split(folder, _joined(read), live, notes)


def _fitting(paths: list[Path], live: Manifest, damaged: list[str], notes: list[str]) -> dict[Path, dict[str, Any]]:
    """Return the files that fit the live model, with what they say of themselves; note the others."""
    fitting: dict[Path, dict[str, Any]] = {}
    others: dict[str, list[Path]] = {}
    for path in paths:
        try:
            metadata = label_rows.metadata_of(path)
            other = _other(metadata, live)
        except Exception as error:  # whatever a damaged file makes NumPy, zipfile and zlib raise
            damaged.append(f"{path}: {_first_line(error)}")
            continue
        if other:
            others.setdefault(other, []).append(path)
        else:
            fitting[path] = metadata
    for other, found in others.items():
        named = ", ".join(path.name for path in found[:3]) + (" and more" if len(found) > 3 else "")
        notes.append(f"{len(found)} files left out, whose {other} is not that of the live version {live.version}: {named}")
    return fitting


def _other(metadata: Mapping[str, Any], live: Manifest) -> str:
    """Return in what a file's embeddings differ from the live model's; "" if in nothing.

    Scalars may differ, as every file has all of them, and so may the precision: heads are trained on int8 embeddings and serve
    in fp16 as well, and the export checks how far apart they are.
    """
    if metadata["encoder_sha256"] != live.encoder_sha256:
        return "encoder"
    features = metadata["features"]
    differing = [name for name in ("prompt_window", "token_budget", "prefix") if features[name] != getattr(live.features, name)]
    if differing:
        return " and ".join(differing)
    return "" if metadata["embedding_width"] == live.embedding_width else "width of the embedding"


def _read(files: Mapping[Path, dict[str, Any]], share: float, damaged: list[str], notes: list[str]) -> Iterator[_Turns]:
    unusable = 0
    for path, metadata in tqdm(files.items(), "reading", unit=" file", leave=False):
        try:
            turns = _turns(label_rows.read(path), str(metadata["model_version"]), share)
        except Exception as error:  # as above
            damaged.append(f"{path}: {_first_line(error)}")
            continue
        sound = np.isfinite(turns.embedding).all(1) & (turns.columns["probability"] >= 0) & (turns.columns["probability"] <= 1)
        unusable += int((~sound).sum())
        if sound.any():
            yield turns.take(sound)
    if unusable:
        notes.append(f"{unusable:,} turns left out whose embedding or probability is not a number")


def _turns(columns: dict[str, NDArray[Any]], version: str, share: float) -> _Turns:
    conversations, places = np.unique(columns.pop("conversation"), return_inverse=True)
    # Hashed again: the writer's digits may have a structure, those by which a side is chosen must have none.
    keys = np.array([hashlib.sha256(c).hexdigest()[:32] for c in conversations.tolist()], "U32")
    taken = np.array([int(key[24:], 16) < share * 2**32 for key in keys], bool)
    embedding = columns.pop(EMBEDDING)
    turns = _Turns(embedding, columns, keys[places], np.full(len(embedding), version))
    return turns.take(taken[places])


def _joined(parts: list[_Turns]) -> _Turns:
    return _Turns(
        np.concatenate([part.embedding for part in parts]),
        {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
        np.concatenate([part.key for part in parts]),
        np.concatenate([part.model_version for part in parts]),
    )


def _split(folder: Path, turns: _Turns, live: Manifest, notes: list[str]) -> LoggedTurns:
    asked_at = turns.columns["asked_at"]
    first, last = asked_at.min(), asked_at.max()
    short = last - first < 2 * DAY
    cut = last - ((last - first) * SHORT if short else DAY)
    if short:
        notes.append(
            f"the log holds less than two days: its newest {SHORT:.0%} of time is evaluated in place of the newest day"
        )
    late = asked_at >= cut
    early = ~late & ~np.isin(turns.key, np.unique(turns.key[late]))
    validation = np.array([int(key[:16], 16) < VALIDATION_SHARE * 2**64 for key in turns.key])
    split = np.where(late, "evaluation", np.where(validation, "validation", "train"))
    turns, split = turns.take(late | early), split[late | early]
    _refuse_too_few(folder, turns.columns["continues"], split)
    examples = Embedded(
        turns.embedding.astype(np.float32),
        {name: turns.columns[name].astype(np.float32) for name in COUNTS},
        turns.columns["continues"],
        split,
        turns.key,
        np.full(len(split), "und"),
        {
            "dataset": f"label log, {_day(first)} to {_day(last)}",
            "encoder": live.encoder_id,
            "encoder_sha256": live.encoder_sha256,
            "features": live.features.to_dict(),
        },
    )
    probability = turns.columns["probability"].astype(np.float64)
    return LoggedTurns(examples, probability, turns.model_version, first, cut, last, tuple(notes))


def _refuse_too_few(folder: Path, continues: NDArray[np.bool_], split: NDArray[np.str_]) -> None:
    counts = Counter(zip(split.tolist(), continues.tolist(), strict=True))
    sides = ("train", "validation", "evaluation")
    if min(counts[side, label] for side in sides for label in (True, False)) < FEWEST_EXAMPLES:
        said = ", ".join(f"{side} {counts[side, True]:,} and {counts[side, False]:,}" for side in sides)
        raise TooFewTurnsError(
            f"the label log {folder} is too small: turns that continue and turns that end: {said}; at least {FEWEST_EXAMPLES} "
            "of each are needed: let the sidecars log longer"
        )


def newest_side(log: LoggedTurns) -> LoggedTurns:
    """Return the evaluation side alone."""
    mask = log.examples.split == "evaluation"
    return replace(
        log, examples=log.examples.take(mask), probability=log.probability[mask], model_version=log.model_version[mask]
    )


def _damage(damaged: list[str]) -> list[str]:
    return [f"{len(damaged)} damaged files left out, the first {damaged[0]}"] if damaged else []


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _day(when: np.datetime64) -> str:
    return str(when.astype("datetime64[D]"))
