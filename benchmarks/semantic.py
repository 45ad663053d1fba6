"""`python -m benchmarks semantic FOLDER`: what the tiers with evidence serve of public questions, and how much of it is wrong.

Each set's ranking is fitted on the other sets, so that no stream is served by coefficients that have seen its questions. The
gate, the vetoes and the encoder are the shipped ones, in process and without Redis. The baseline is a fixed cosine threshold on
the same streams.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.question_stream import Outcome, Stream, erring, order_of, replay, replay_cosine
from benchmarks.questions import INTENTS, Questions, read
from benchmarks.ranking import fit, rows_of
from lpc.errors import UsageError
from response_cache.semantic.gate import Gate
from response_cache.semantic.normal import normal_form
from response_cache.semantic.ranking import Ranking
from response_cache.semantic.threshold import UNERRING, JudgeError

COSINE: Final = 0.93
LOOKUPS: Final = 12_000
SHOWN: Final = ("banking77", "clinc150", "covidq", "quora", "bq", "atec", "lcqmc")
JUDGED: Final = 200
"""Pairs of different answers on which the error of the erring judge was measured, exactly at its rate."""
ERRS: Final = 0.05


class Condition(NamedTuple):
    """How the streams of a row are made."""

    name: str
    errs: bool = False
    changes: bool = False


SHUFFLED: Final = Condition("shuffled")
CONDITIONS: Final = (
    SHUFFLED,
    Condition("judge calls 5% of different answers the same", errs=True),
    Condition("mix changes half-way", changes=True),
)


def run(
    folder: Path, models: Path, model: str, *, streams: int, bound: float, sets: Sequence[str], page: Path | None
) -> dict[str, Any]:
    """Replay the sets of a folder; return the figures of each set and condition."""
    questions = {one.name: one for one in read(folder, models, model)}
    print("read", flush=True)
    if unknown := set(sets) - set(questions):
        raise UsageError(f"{folder} has no questions of {', '.join(sorted(unknown))}")
    rows = {name: rows_of(one) for name, one in questions.items()}
    found = []
    for name in [one for one in SHOWN if one in (sets or questions)]:
        others = [rows[other] for other in rows if other != name]
        if not others:
            raise UsageError("fit the ranking on other questions: put a second set into the folder")
        pairs = alike_pairs(questions[name])
        different = sum(not questions[name].same(*pair) for pair in pairs)
        print(
            f"{name}: {len(pairs)} questions have the normal form of another one, {different} of them another answer",
            flush=True,
        )
        ranking = fit(others)
        for condition in CONDITIONS if name in INTENTS else CONDITIONS[:2]:
            figures = _figures(questions[name], ranking, condition, streams, bound)
            found.append(figures)
            print(_line(figures), flush=True)
    if page is not None:
        _write(page, found, bound)
    return {"bound": bound, "streams": streams, "sets": found}


def alike_pairs(questions: Questions) -> list[tuple[int, int]]:
    """Return pairs of questions with one normal form: of a set of pairs those, of a set of intents each with an earlier one."""
    forms = [normal_form(text) for text in questions.texts]
    if questions.pairs:
        return [(a, b) for a, b in questions.pairs if forms[a] == forms[b]]
    first: dict[str, int] = {}
    return [(first[form], at) for at, form in enumerate(forms) if first.setdefault(form, at) != at]


def _figures(questions: Questions, ranking: Ranking, condition: Condition, streams: int, bound: float) -> dict[str, Any]:
    doubts: dict[tuple[int, int], Any] = {}
    tier, cosine = [], []
    for seed in range(streams):
        order = order_of(questions, seed, LOOKUPS, changes=condition.changes)
        error = JudgeError(round(ERRS * JUDGED), JUDGED) if condition.errs else UNERRING
        judge: Callable[[bool], bool] = erring(ERRS, 0.0, random.Random(f"judge {seed}")) if condition.errs else bool
        gate, normalised = (Gate(bound, judge=error, draw=random.Random(draws)) for draws in (seed, f"normalised {seed}"))
        tier.append(replay(Stream(questions, doubts), order, ranking, gate, normalised, judge))
        if condition is SHUFFLED:
            cosine.append(replay_cosine(Stream(questions, doubts), order, COSINE))
    figures: dict[str, Any] = {"set": questions.name, "condition": condition.name, "lookups": sum(tier[0].lookups)}
    figures |= _summary(tier, bound)
    if cosine:
        figures["cosine"] = _summary(cosine, bound)
    return figures


def _summary(outcomes: Sequence[Outcome], bound: float) -> dict[str, Any]:
    served = [one.served[1] / one.lookups[1] for one in outcomes]
    wrong = [sum(one.wrong) / max(1, sum(one.served)) for one in outcomes]
    first = [one.first for one in outcomes if one.first]
    return {
        "served_second_half": [round(float(x), 4) for x in (min(served), np.median(served), max(served))],
        "wrong_of_served": [round(float(x), 4) for x in (np.median(wrong), max(wrong))],
        "within_bound": sum(one <= bound for one in wrong),
        "first_hit_after": round(float(np.median(first))) if first else None,
        "streams": len(outcomes),
    }


def _line(figures: dict[str, Any]) -> str:
    return " | ".join(_cells(figures))


def _cells(figures: dict[str, Any]) -> Iterable[str]:
    low, middle, high = figures["served_second_half"]
    median, worst = figures["wrong_of_served"]
    yield from (figures["set"], figures["condition"], f"{figures['lookups']:,}")
    yield f"{middle:.0%} ({low:.0%} to {high:.0%})"
    yield f"{median:.1%}, {worst:.1%}" if high else "-"
    yield f"{figures['within_bound']} of {figures['streams']}"
    first = figures["first_hit_after"]
    yield "-" if first is None else f"{first:,}"
    if "cosine" in figures:
        yield f"{figures['cosine']['served_second_half'][1]:.0%}, {figures['cosine']['wrong_of_served'][0]:.0%} wrong"
    else:
        yield ""


def _write(page: Path, found: Sequence[dict[str, Any]], bound: float) -> None:
    """Write the table and the picture to a folder."""
    heads = (
        "set",
        "streams",
        "look-ups",
        "served, second half",
        "wrong, median and worst",
        f"within {bound:.0%}",
        "first hit",
        f"cosine {COSINE}",
    )
    rows = [heads, tuple("---" for _ in heads), *(tuple(_cells(figures)) for figures in found)]
    page.mkdir(parents=True, exist_ok=True)
    (page / "semantic.md").write_text("\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n")
    import matplotlib.pyplot as plt

    shown = [figures for figures in found if "cosine" in figures]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharey=True)
    places = np.arange(len(shown))
    for axis, key, index, title in (
        (left, "served_second_half", 1, "served, second half"),
        (right, "wrong_of_served", 0, "wrong of served"),
    ):
        axis.barh(places - 0.2, [100 * one[key][index] for one in shown], 0.4, label=f"semantic tier, bound {bound:.0%}")
        axis.barh(places + 0.2, [100 * one["cosine"][key][index] for one in shown], 0.4, label=f"cosine {COSINE}", color="0.7")
        axis.set(title=title, xlabel="%", yticks=places, yticklabels=[one["set"] for one in shown])
        axis.invert_yaxis() if axis is left else axis.axvline(100 * bound, color="black", linewidth=0.8)
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize="small")
    figure.savefig(page / "semantic.png", dpi=110)
