"""`lpc evaluate`: predictors side by side on the evaluation half, as a table, a picture and JSON."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

from lpc.logs.traces import Trace
from lpc.model.label_rows import COUNTS
from lpc.training.embedding import Embedded, load_embedded
from lpc.training.head import Head
from lpc.training.quality import best_threshold, calibration_curve, figures, intervals
from lpc.training.think_time import HELD_OUT_S, evaluate_think_time
from lpc.training.train import probabilities, side_of, threshold_of
from lpc.wire.terminal import console

TURN_BUCKETS: Final = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, None))
FEWEST_OF_LANGUAGE: Final = 300
"""Turns of the evaluation half; languages with fewer are counted together."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """A predictor's probabilities on the evaluation half, [n], and its threshold of decision."""

    probability: Floats
    threshold: float


def evaluate(embeddings: Path, heads: dict[str, Path], trace: Trace | None, picture: Path | None) -> dict[str, Any]:
    """Return and print the figures of `turns`, `scalars` and each head; and of `time` where there is a trace.

    `turns`: logistic regression on the turn count and its logarithm. `scalars`: on turn count, lengths of prompt, history and
    last reply, tokens, and their logarithms, without text. Thresholds of all are chosen on validation data. Intervals are
    95%, of a bootstrap over conversations.

    Args:
        heads: by name.
        trace: with times; the time head is fitted on all but its last 20 minutes and judged on those.
        picture: a PNG to write.

    Raises:
        EmbeddingError, HeadError, ThinkTimeError: an input is missing or too small.
    """
    data = load_embedded(embeddings)
    evaluation = data.take(data.split == "evaluation")
    judged = {"turns": _regression(data, ("turn_count",)), "scalars": _regression(data, COUNTS)}
    judged |= {name: _head(data, Head.load(path)) for name, path in heads.items()}
    groups = _groups(evaluation)
    result: dict[str, Any] = {}
    for name, (probability, threshold) in tqdm(
        ((name, (j.probability, j.threshold)) for name, j in judged.items()), "bootstrap", total=len(judged), leave=False
    ):
        result[name] = figures(probability, evaluation.continues, threshold)
        result[name]["intervals"] = intervals(probability, evaluation.continues, threshold, evaluation.conversation)
        result[name]["groups"] = {
            label: figures(probability[mask], evaluation.continues[mask], threshold) for label, mask in groups.items()
        }
    _print(data, result, groups)
    if trace is not None:
        result["time"] = evaluate_think_time(trace, trace.requests[-1].arrival - HELD_OUT_S)
        _print_time(trace, result["time"])
    if picture is not None:
        _draw(evaluation, judged, result, picture)
        console().print(f"picture: {picture}")
    return result


def _head(data: Embedded, head: Head) -> Judged:
    scalars = tuple(head.metadata["features"]["scalars"])
    validation, evaluation = (side_of(data, split, scalars) for split in ("validation", "evaluation"))
    return Judged(probabilities(head, evaluation), threshold_of(head, validation))


def _regression(data: Embedded, columns: tuple[str, ...]) -> Judged:
    def inputs(part: Embedded) -> NDArray[np.float32]:
        values = np.stack([part.columns[name] for name in columns], axis=1)
        return np.concatenate((values, np.log1p(values)), axis=1)

    train, validation, evaluation = (data.take(data.split == split) for split in ("train", "validation", "evaluation"))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(inputs(train), train.continues)
    threshold = best_threshold(model.predict_proba(inputs(validation))[:, 1], validation.continues)
    return Judged(model.predict_proba(inputs(evaluation))[:, 1], threshold)


def _groups(evaluation: Embedded) -> dict[str, NDArray[np.bool_]]:
    """Return masks by turn bucket and by language."""
    turns = evaluation.columns["turn_count"]
    groups = {}
    for low, high in TURN_BUCKETS:
        name = f"turn {low}" if low == high else f"turns {low}-{high}" if high else f"turns {low} and later"
        groups[name] = (turns >= low) & (turns <= (high or np.inf))
    languages, counts = np.unique(evaluation.language, return_counts=True)
    large = [str(languages[i]) for i in np.argsort(-counts) if counts[i] >= FEWEST_OF_LANGUAGE]
    for language in large:
        groups[f"language {language}"] = evaluation.language == language
    others = ~np.isin(evaluation.language, large)
    if others.sum() >= FEWEST_OF_LANGUAGE:
        groups["other languages"] = others
    return {name: mask for name, mask in groups.items() if 0 < evaluation.continues[mask].sum() < mask.sum()}


def _print(data: Embedded, result: dict[str, Any], groups: dict[str, NDArray[np.bool_]]) -> None:
    out = console()
    examples = next(iter(result.values()))["examples"]
    table = Table(title=f"{data.description['dataset']}: evaluation half, {examples:,} turns (95% intervals)")
    for column in ("predictor", "MCC", "F1-macro", "AUC", "Brier", "below base rate", "ECE"):
        table.add_column(column, justify="left" if column == "predictor" else "right")
    for name, row in result.items():
        low = row["intervals"]
        table.add_row(
            name,
            f"{row['mcc']:.3f} ({low['mcc'][0]:.3f}-{low['mcc'][1]:.3f})",
            f"{row['f1_macro']:.3f}",
            f"{row['auc']:.3f} ({low['auc'][0]:.3f}-{low['auc'][1]:.3f})",
            f"{row['brier']:.4f}",
            f"{1 - row['brier'] / row['brier_base_rate']:.1%}",
            f"{row['ece']:.3f}",
        )
    out.print(table)
    table = Table(title="AUC / MCC by group")
    for column in ("group", "turns", "continue", *result):
        table.add_column(column, justify="left" if column == "group" else "right")
    for name, mask in groups.items():
        rows = [result[predictor]["groups"][name] for predictor in result]
        share = (1 + np.sqrt(1 - 4 * rows[0]["brier_base_rate"])) / 2
        table.add_row(name, f"{int(mask.sum()):,}", f"{share:.0%}", *(f"{row['auc']:.3f} / {row['mcc']:.3f}" for row in rows))
    out.print(table)


def _print_time(trace: Trace, time: dict[str, Any]) -> None:
    table = Table(title=f"{trace.name}: time to the next turn, last {HELD_OUT_S / 60:.0f} minutes, {time['turns']:,} turns")
    table.add_column("model")
    table.add_column("log-likelihood per turn", justify="right")
    for key, value in time.items():
        if key.startswith("log_likelihood") and isinstance(value, float):
            label = key.removeprefix("log_likelihood").replace("_", " ").strip()
            table.add_row(label or "think-time head", f"{value:.4f}")
    console().print(table)


def _draw(evaluation: Embedded, judged: dict[str, Judged], result: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.6), constrained_layout=True)
    left.plot([0.5, 1], [0.5, 1], color="0.7", linewidth=1)
    for name, one in judged.items():
        said, seen = calibration_curve(one.probability, evaluation.continues)
        left.plot(said, seen, marker="o", markersize=3, label=f"{name} (ECE {result[name]['ece']:.3f})")
    left.set(xlabel="predicted probability of a next turn", ylabel="observed share", title="Reliability, bins of equal size")
    left.legend()
    names = [name for name in result["turns"]["groups"] if name.startswith("turn")]
    width = 0.8 / len(judged)
    for k, name in enumerate(judged):
        at = np.arange(len(names)) + k * width - 0.4 + width / 2
        middle.bar(at, [result[name]["groups"][group]["auc"] for group in names], width, label=name)
    middle.axhline(0.5, color="0.7", linewidth=1)
    middle.set(ylim=(0.4, None), ylabel="AUC", title="By turn")
    middle.set_xticks(range(len(names)), [name.removeprefix("turns ").removeprefix("turn ") for name in names])
    middle.legend()
    for k, name in enumerate(judged):
        low, high = result[name]["intervals"]["mcc"]
        right.errorbar(
            result[name]["mcc"], k, xerr=[[result[name]["mcc"] - low], [high - result[name]["mcc"]]], fmt="o", capsize=4
        )
    right.set(
        yticks=range(len(judged)),
        yticklabels=list(judged),
        xlabel="MCC, 95% interval",
        title="At the threshold of the validation data",
    )
    right.invert_yaxis()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
