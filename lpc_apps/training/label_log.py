"""Reads the label log of sidecars as training examples: files `labels-*.npz` without text.

The log of several sidecars is a folder with a subfolder for each. Turns are split by time: the newest day is for evaluation,
where a new head must not be worse than the live one. A conversation is in one split only: its turns before the newest day are
skipped if it also has turns in it. Sidecars label every turn the same time after its arrival, so the newest turns are not
biased towards continued ones.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lpc.errors import LpcError
from lpc.model import label_rows
from lpc.model.artifact import Manifest
from lpc.model.label_rows import COUNTS, EMBEDDING, FILES
from lpc.progress import each
from lpc_apps.training.embedding import FEWEST_EXAMPLES, Embedded

DAY: Final = np.timedelta64(24, "h")
SHORT: Final = 0.2
"""Share of the time for evaluation if the log has less than two days."""
VALIDATION_SHARE: Final = 0.1
"""Share of the conversations before the evaluated time."""
AHEAD: Final = np.timedelta64(1, "h")
"""Longest time by which a sidecar's clock may be ahead of this machine's. Turns after that would be the newest day alone."""
MOST_TURNS: Final = 250_000
"""Maximum number of turns; of a longer log a fixed sample of conversations is read. 250,000 turns take 0.8 GB in training."""


class LabelLogError(LpcError):
    """A label log cannot be read."""


class TooFewTurnsError(LabelLogError):
    """There are too few turns to train on."""


@dataclass(frozen=True)
class LoggedTurns:
    """Logged turns and whether each was followed by another one, n of them.

    Attributes:
        examples: examples, split by time.
        probability: [n] predictions.
        model_version: [n] versions of the model that predicted.
        first, cut, last: oldest turn, start of the evaluated time, newest turn; UTC.
        notes: skipped data with reasons; one line each.
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
    """Columns of one or several files."""

    embedding: NDArray[np.float16]
    columns: dict[str, NDArray[Any]]
    key: NDArray[np.str_]
    model_version: NDArray[np.str_]

    def take(self, mask: NDArray[np.bool_]) -> "_Turns":
        columns = {name: values[mask] for name, values in self.columns.items()}
        return _Turns(self.embedding[mask], columns, self.key[mask], self.model_version[mask])


def read_label_log(folder: Path, live: Manifest, *, most: int = MOST_TURNS) -> LoggedTurns:
    """Read the files of a log whose encoder and input settings are those of the live model.

    Other and damaged files are skipped and noted.

    Args:
        live: manifest of the live model.
        most: approximate maximum number of turns.

    Raises:
        TooFewTurnsError: there is no log, or it is too small.
        LabelLogError: no file fits the live model.
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
    """Return the metadata of the files that fit the live model; note the others."""
    fitting: dict[Path, dict[str, Any]] = {}
    others: dict[str, list[Path]] = {}
    gone = 0
    for path in paths:
        try:
            metadata = label_rows.metadata_of(path)
            other = _other(metadata, live)
        except FileNotFoundError:
            gone += 1
            continue
        except Exception as error:  # a damaged file makes NumPy, zipfile and zlib raise many types
            damaged.append(f"{path}: {_first_line(error)}")
            continue
        if other:
            others.setdefault(other, []).append(path)
        else:
            fitting[path] = metadata
    if gone:
        notes.append(_gone(gone))
    for other, found in others.items():
        named = ", ".join(path.name for path in found[:3]) + (" and more" if len(found) > 3 else "")
        notes.append(f"{len(found)} files left out, whose {other} is not that of the live version {live.version}: {named}")
    return fitting


def _other(metadata: Mapping[str, Any], live: Manifest) -> str:
    """Return how a file's embeddings differ from the live model's; "" if they do not.

    Scalars may differ, because every file has all of them. Precision may differ, because heads trained on int8 embeddings also
    serve in fp16, and the export checks the difference.
    """
    if metadata["encoder_sha256"] != live.encoder_sha256:
        return "encoder"
    features = metadata["features"]
    differing = [name for name in ("prompt_window", "token_budget", "prefix") if features[name] != getattr(live.features, name)]
    if differing:
        return " and ".join(differing)
    return "" if metadata["embedding_width"] == live.embedding_width else "width of the embedding"


def _read(files: Mapping[Path, dict[str, Any]], share: float, damaged: list[str], notes: list[str]) -> Iterator[_Turns]:
    unusable = ahead = gone = 0
    latest = np.datetime64(datetime.now(UTC).replace(tzinfo=None), "ms") + AHEAD
    for path, metadata in each(files.items(), "reading the label log", "files"):
        try:
            turns = _turns(label_rows.read(path), str(metadata["model_version"]), share)
        except FileNotFoundError:
            gone += 1
            continue
        except Exception as error:  # as above
            damaged.append(f"{path}: {_first_line(error)}")
            continue
        columns = turns.columns
        sound = np.isfinite(turns.embedding).all(1) & (columns["probability"] >= 0) & (columns["probability"] <= 1)
        sound &= ~np.isnat(columns["asked_at"]) & np.all([columns[name] >= 0 for name in COUNTS], axis=0)
        unusable += int((~sound).sum())
        future = sound & (columns["asked_at"] > latest)
        ahead += int(future.sum())
        sound &= ~future
        if sound.any():
            yield turns.take(sound)
    if unusable:
        notes.append(f"{unusable:,} turns left out whose embedding, probability, time or counts are not valid")
    if ahead:
        notes.append(
            f"{ahead:,} turns left out whose time is in the future: check the clocks of the sidecars and of this machine"
        )
    if gone:
        notes.append(_gone(gone))


def _turns(columns: dict[str, NDArray[Any]], version: str, share: float) -> _Turns:
    conversations, places = np.unique(columns.pop("conversation"), return_inverse=True)
    # Hashed again, because the digits that choose a split must be random, and the writer's may not be.
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
    name = f"label log, {_day(first)} to {_day(last)}"
    examples = Embedded(
        turns.embedding.astype(np.float32),
        {name: turns.columns[name].astype(np.float32) for name in COUNTS},
        turns.columns["continues"],
        split,
        turns.key,
        {
            "dataset": name,
            "encoder": live.encoder_id,
            "encoder_sha256": live.encoder_sha256,
            "features": live.features.to_dict(),
        },
        np.zeros(len(split), np.int64),
        (name,),
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
    """Return the evaluation split."""
    mask = log.examples.split == "evaluation"
    return replace(
        log, examples=log.examples.take(mask), probability=log.probability[mask], model_version=log.model_version[mask]
    )


def _gone(files: int) -> str:
    return f"{files:,} files left out, which sidecars deleted while the log was read, because it was full"


def _damage(damaged: list[str]) -> list[str]:
    return [f"{len(damaged)} damaged files left out, the first {damaged[0]}"] if damaged else []


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _day(when: np.datetime64) -> str:
    return str(when.astype("datetime64[D]"))
