"""`lpc cache calibrate`: a threshold from labelled pairs of questions, and the error rate of the judge."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpc.errors import UsageError
from lpc_cli.options import JsonOutput, ModelName, Models, Output
from lpc_cli.outcome import report

if TYPE_CHECKING:
    from response_cache.semantic.calibration import Embeddings
    from response_cache.semantic.evidence import Evidence
    from response_cache.semantic.threshold import JudgeError


def calibrate(
    pairs: Annotated[
        Path | None, typer.Option(help='Labelled pairs of questions, JSON lines: {"a": ..., "b": ..., "label": true}.')
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(help='Labelled pairs of answers, JSON lines, to measure the error rate of judge "embedding".'),
    ] = None,
    bound: Annotated[
        float, typer.Option(min=0.001, max=0.5, help="Largest acceptable share of wrong answers among those served.")
    ] = 0.05,
    level: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Confidence level of the bound.")] = 0.95,
    evidence_file: Annotated[
        Path | None, typer.Option("--evidence", help="File for the evidence, for a scope's setting `evidence`.")
    ] = None,
    output: Output = None,
    as_json: JsonOutput = False,
    models: Models = Path("models"),
    model: ModelName = "e5-small",
) -> None:
    """Derive a scope's threshold from labelled pairs, with the share of traffic that it would serve.

    The result is valid for traffic like the pairs. Sample them from the scope's own questions, each with the candidate that
    it would be served, and label all of them, not only the clear ones. Sample answers in the same way: pairs that the scope's
    judge would compare.
    """

    def calibrated() -> dict[str, Any]:
        from response_cache.semantic.calibration import Embeddings
        from response_cache.semantic.evidence import Evidence
        from response_cache.semantic.evidence_file import write_evidence

        if pairs is None and answers is None:
            raise UsageError("nothing to count: give --pairs (labelled questions), --answers (labelled answers), or both")
        vectors, evidence = Embeddings(models, model), Evidence()
        figures: dict[str, Any] = {}
        if pairs is not None:
            figures |= _questions(pairs, bound, level, vectors, evidence)
        error = None
        if answers is not None:
            error, figures["judge"] = _judge(answers, vectors)
        if evidence_file is not None:
            write_evidence(evidence_file, evidence, vectors.encoder, error)
        return figures

    report(calibrated, output, evidence_file, as_json=as_json)


def _questions(path: Path, bound: float, level: float, vectors: "Embeddings", evidence: "Evidence") -> dict[str, Any]:
    """Add pairs of questions to the evidence; print and return the threshold."""
    from rich.table import Table

    from lpc.wire.terminal import console
    from response_cache.semantic.calibration import lookups_of, read_pairs
    from response_cache.semantic.evidence import edge
    from response_cache.semantic.threshold import thresholds

    pairs = read_pairs(path)
    lookups = lookups_of(pairs, vectors.similarities(pairs))
    for score, wrong in zip(lookups.score.tolist(), lookups.wrong.tolist(), strict=True):
        evidence.apply([*evidence.lookup(score), *evidence.label(score, same=not wrong)])
    certified = thresholds(evidence, bound, 1 - level, looks=1)
    counts = evidence.counts().cumsum(axis=0)
    table = Table("from score", "pairs served", "of all", "wrong", "at most", title=f"{path.name}: {len(pairs):,} pairs")
    bounds = {threshold.level: threshold.bound for threshold in certified}
    for row in range(len(counts)):
        served, wrong = int(counts[row, 0]), int(counts[row, 2])
        if served and (row == 0 or served > counts[row - 1, 0]):
            shown = f"{bounds[row]:.1%}" if row in bounds else "-"
            table.add_row(f"{edge(row):.4f}", f"{served:,}", f"{served / len(pairs):.1%}", f"{wrong / served:.1%}", shown)
    screen = console()
    screen.print(table)
    lowest = certified[-1] if certified else None
    vetoed = len(pairs) - len(lookups.score)
    share = lowest.share * len(lookups.score) / len(pairs) if lowest else 0.0
    if lowest is None:
        result = (
            f"No threshold keeps wrong answers within {bound:.1%} of those served, at {level:.0%}: nothing would be served."
        )
    else:
        result = (
            f"From score {lowest.score:.4f}, {share:.1%} of these pairs would be served, "
            f"at most {lowest.bound:.1%} of them wrong, at {level:.0%}."
        )
    screen.print(f"{result} Vetoes stop {vetoed / len(pairs):.1%} of the pairs.")
    return {
        "pairs": len(pairs),
        "vetoed": vetoed,
        "bound": bound,
        "level": level,
        "threshold": lowest.score if lowest else None,
        "served_share": round(share, 5),
        "wrong_of_served_at_most": round(lowest.bound, 5) if lowest else None,
    }


def _judge(path: Path, vectors: "Embeddings") -> tuple["JudgeError", dict[str, Any]]:
    """Return the judge's error rate on pairs of answers, and its figures, which are also printed."""
    from lpc.wire.terminal import console
    from response_cache.semantic.calibration import PairsError, read_pairs
    from response_cache.semantic.same_answer import same_by_embedding
    from response_cache.semantic.threshold import ALPHA, JUDGES_PART, JudgeError

    pairs = read_pairs(path)
    if all(pair.same for pair in pairs):
        raise PairsError(f"{path} has no pair of different answers, on which a judge's error is measured")
    verdicts = [same_by_embedding(one.a, one.b, near) for one, near in zip(pairs, vectors.similarities(pairs), strict=True)]
    different = [same for same, pair in zip(verdicts, pairs, strict=True) if not pair.same]
    alike = [same for same, pair in zip(verdicts, pairs, strict=True) if pair.same]
    error = JudgeError(sum(different), len(different))
    limit = error.limit(ALPHA * JUDGES_PART)
    missed = f", and {alike.count(False)} of {len(alike)} equal answers different" if alike else ""
    calls = f"The judge calls {error.false_same} of {error.different} different answers the same"
    console().print(f"{calls} (at most {limit:.1%}){missed}.")
    figures = {
        **error._asdict(),
        "false_same_at_most": round(limit, 5),
        "same": len(alike),
        "false_different": alike.count(False),
    }
    return error, figures
