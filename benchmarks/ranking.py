"""Fits the shipped ranking of candidates on public questions: `python -m benchmarks ranking FOLDER`.

Each set is replayed as streams that serve nothing, so that each look-up with a candidate has a label. Logistic regression
(Newton's method, small ridge) weighs all sets equally, whatever their size.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.question_stream import rows
from benchmarks.questions import FILES, Questions, read
from response_cache.semantic.ranking import FEATURES, FILE, Ranking

STREAMS: Final = 2
LOOKUPS: Final = 12_000
RIDGE: Final = 1e-3
STEPS: Final = 50

Rows = tuple[NDArray[np.float64], NDArray[np.bool_]]
"""Features [look-ups, FEATURES] and labels [look-ups] of a set."""


def rows_of(questions: Questions) -> Rows:
    """Return the features and labels of a set's streams."""
    found = [rows(questions, seed, LOOKUPS) for seed in range(STREAMS)]
    features = [row for some, _ in found for row in some]
    return np.array(features, np.float64).reshape(-1, len(FEATURES)), np.array([one for _, some in found for one in some])


def fit(sets: Sequence[Rows]) -> Ranking:
    """Return the model of some sets, rounded as it is shipped."""
    features = np.concatenate([np.column_stack([rows, np.ones(len(rows))]) for rows, _ in sets])
    right = np.concatenate([labels for _, labels in sets]).astype(np.float64)
    weights = np.concatenate([np.full(len(labels), 1 / len(labels) / len(sets)) for _, labels in sets])
    penalty = RIDGE * np.eye(features.shape[1])
    penalty[-1, -1] = 0
    found = np.zeros(features.shape[1])
    for _ in range(STEPS):
        estimate = 1 / (1 + np.exp(-np.clip(features @ found, -30, 30)))
        gradient = features.T @ (weights * (right - estimate)) - penalty @ found
        curvature = (features * (weights * estimate * (1 - estimate))[:, None]).T @ features + penalty
        step = np.linalg.solve(curvature, gradient)
        found += step
        if np.abs(step).max() < 1e-9:
            break
    rounded = [float(f"{one:.4g}") for one in found]
    return Ranking(rounded[:-1], rounded[-1])


def describe(ranking: Ranking, sets: Mapping[str, Rows]) -> dict[str, Any]:
    """Return the contents of the shipped file."""
    return {
        "recipe": "python -m benchmarks ranking FOLDER",
        "learned from": {
            name: {"origin": FILES[name].origin, "licence": FILES[name].licence, "look-ups": len(labels)}
            for name, (_, labels) in sets.items()
        },
        "coefficients": dict(zip(FEATURES, ranking.coefficients, strict=True)),
        "intercept": ranking.intercept,
    }


def run(folder: Path, models: Path, model: str) -> dict[str, Any]:
    """Fit the ranking on all sets of a folder, write the shipped file, and return its contents."""
    sets = {questions.name: rows_of(questions) for questions in read(folder, models, model)}
    found = describe(fit(list(sets.values())), sets)
    FILE.write_text(json.dumps(found, indent=1) + "\n")
    return found
