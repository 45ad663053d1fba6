"""Label logs like those of sidecars, synthetic or from embeddings of ShareGPT, for tests and benchmarks of retraining.

    python -m tests.label_log data/sharegpt models/e5-small/<version> out/labels

writes the embedded turns of ShareGPT as a log of that version: conversations begin at random times of a week, and think times
between turns are log-normal; `probability` is the output of that version's head.
"""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpc.model.artifact import Manifest, read_manifest
from lpc.model.label_rows import FILES, read, write
from lpc.model.returns.facts import Facts
from lpc.model.returns.memory import Arrival
from lpc.progress import each
from predictor_service.labels.turn import Sent, Turn

END_MS = int(datetime(2026, 11, 20, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 24 * 3600 * 1000
WEEK_DAYS = 7


def remembered(conversation: bytes, asked_at: float, turn_count: int, prompt_chars: int) -> Turn:
    """Return a turn as a sidecar stores it."""
    sent = Sent(b"n" * 16, b"t" * 16, False, turn_count, prompt_chars, history_chars=11, last_reply_chars=7)
    return Turn(arrival=Arrival(conversation, asked_at, Facts(turn_count)), sent=sent)


def write_file(path: Path, manifest: Manifest, rows: dict[str, Any], **metadata: object) -> Path:
    """Write one file; ``rows``: columns of n values, embedding [n, width]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        write(file, manifest, rows, **metadata)
    return path


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all files of a folder, in order of arrival."""
    rows = []
    for path in folder.glob(FILES):
        columns = read(path)
        values = [column.tolist() for column in columns.values()]
        rows += [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
    return sorted(rows, key=lambda row: row["asked_at"])


def made_up_rows(
    width: int, conversations: int, *, days: float = 5.0, law: float = 2.5, until_ms: int = END_MS, seed: int = 0
) -> dict[str, Any]:
    """Return turns of conversations. Whether they continue depends on the embedding's first component and the turn's number.

    Args:
        days: period before ``until_ms`` in which they begin, evenly distributed.
        law: weight of the component; a negative one inverts its effect.
    """
    generator = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {
        name: [] for name in ("embedding", "turn_count", "prompt_chars", "continues", "gap_s", "asked_at", "conversation")
    }
    for number in range(conversations):
        at = until_ms - generator.random() * days * DAY_MS
        for turn in range(1, 12):
            vector = generator.normal(size=width)
            vector /= np.linalg.norm(vector)
            logit = 0.8 + law * np.sign(vector[0]) - 0.1 * turn
            goes_on = bool(generator.random() < 1 / (1 + np.exp(-logit)))
            gap = float(generator.exponential(60)) if goes_on else float("nan")
            values = (vector, turn, int(generator.integers(1, 2000)), goes_on, gap, int(at), f"{seed:08x}{number:024x}")
            for name, value in zip(rows, values, strict=True):
                rows[name].append(value)
            at += gap * 1000 if goes_on else 0
            if not goes_on or at > until_ms:
                break
    n = len(rows["turn_count"])
    rest = {"history_chars": [500] * n, "last_reply_chars": [50] * n, "tokens": [20] * n, "probability": [0.7] * n}
    return {**rows, **rest, "embedding": np.array(rows["embedding"])}


def write_made_up(folder: Path, manifest: Manifest, rows: dict[str, Any], files: int = 3) -> Path:
    """Write rows into several files of two sidecars, with a folder each; return ``folder``."""
    parts = np.array_split(np.arange(len(rows["turn_count"])), files)
    for i, part in enumerate(parts):
        path = folder / f"sidecar-{i % 2}" / f"labels-{i:05d}.npz"
        write_file(path, manifest, {name: [values[k] for k in part] for name, values in rows.items()})
    return folder


def write_sharegpt(embeddings: Path, version: Path, folder: Path, rows_per_file: int = 4096) -> int:
    """Write the embedded turns of ShareGPT as a label log of a model version; return their number."""
    from lpc_apps.training.embedding import load_embedded
    from lpc_apps.training.live_head import LiveHead

    data = load_embedded(embeddings)
    manifest = read_manifest(version)
    probability = LiveHead(version).probabilities(data)
    asked_at, gap_s = _times(data.conversation, data.columns["turn_count"], data.continues)
    rows = {
        "embedding": data.embedding,
        **{name: values.astype(np.int32) for name, values in data.columns.items()},
        "probability": probability,
        "continues": data.continues,
        "gap_s": gap_s,
        "asked_at": asked_at,
        "conversation": data.conversation,
    }
    order = np.argsort(asked_at)
    for i, start in enumerate(each(range(0, len(order), rows_per_file), "writing", "files")):
        part = order[start : start + rows_per_file]
        write_file(folder / f"labels-{i:05d}.npz", manifest, {name: values[part] for name, values in rows.items()})
    return len(order)


def _times(
    conversation: NDArray[np.str_], turn: NDArray[np.float32], continues: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return asked_at (ms) and gap_s of turns, by their order in their conversation."""
    generator = np.random.default_rng(0)
    asked_at, gaps = np.zeros(len(turn), np.int64), np.full(len(turn), np.nan, np.float32)
    at, before = 0.0, ""
    for i in np.lexsort((turn, conversation)):
        if conversation[i] != before:
            at, before = END_MS - generator.random() * WEEK_DAYS * DAY_MS, str(conversation[i])
        asked_at[i] = int(at)
        gap = float(generator.lognormal(4.0, 1.0))  # median 55 s, mean 90 s
        gaps[i] = gap if continues[i] else np.nan
        at += gap * 1000
    return asked_at, gaps


def main(arguments: Sequence[str]) -> None:
    """Write ShareGPT's embedded turns as a label log."""
    embeddings, version, folder = map(Path, arguments)
    print(f"{write_sharegpt(embeddings, version, folder):,} turns in {folder}")


if __name__ == "__main__":
    main(sys.argv[1:])
