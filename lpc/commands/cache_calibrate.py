"""`lpc cache calibrate`: what labelled pairs of questions say a scope may serve, before it serves anything, and how often the
judge of answers errs."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpc.commands.options import JsonOutput, ModelName, Models, Output
from lpc.commands.outcome import report

if TYPE_CHECKING:
    from lpc.responses.semantic.calibration import AnswerPair, Embeddings
    from lpc.responses.semantic.evidence import Evidence
    from lpc.responses.semantic.threshold import JudgeError

AT_ONCE = 4
"""Pairs that a judge is asked about at the same time."""


def calibrate(
    pairs: Annotated[
        Path | None,
        typer.Option(help="Labelled pairs: TSV or CSV with a header, or JSON lines, of question_a, question_b, label."),
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(help="Pairs of answers whose truth is known, by which the judge's error is counted: JSON lines."),
    ] = None,
    judge: Annotated[str, typer.Option(help="With --answers: embedding or model, as the scope's setting.")] = "embedding",
    judge_url: Annotated[str, typer.Option(help="Of judge model: OpenAI-compatible, ends with /v1.")] = "",
    judge_model: Annotated[str, typer.Option(help="Of judge model: its name there.")] = "",
    judge_key_file: Annotated[Path | None, typer.Option(help="Of judge model: holds its key.")] = None,
    bound: Annotated[float, typer.Option(min=0.001, max=0.5, help="Wrong answers among those served, at most.")] = 0.05,
    level: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Confidence.")] = 0.95,
    evidence_file: Annotated[
        Path | None, typer.Option("--evidence", help="Write the evidence here; a scope's setting `evidence` names it.")
    ] = None,
    vectors_folder: Annotated[Path, typer.Option("--vectors", help="Where embeddings are kept.")] = Path("data/responses"),
    output: Output = None,
    as_json: JsonOutput = False,
    models: Models = Path("models"),
    model: ModelName = "e5-small",
) -> None:
    """Tell from labelled pairs which similarity a scope may serve from, and how much that would be.

    What holds of the pairs holds of traffic like them: take pairs from the scope's own questions, each candidate with the
    question that met it, and label all of them, not only the clear ones. So with answers: take those that the scope's judge
    would have to compare, and label them yourself.
    """

    def calibrated() -> dict[str, Any]:
        from lpc.responses.semantic.calibration import Embeddings
        from lpc.responses.semantic.evidence import Evidence
        from lpc.responses.semantic.evidence_file import EvidenceError, write_evidence

        if pairs is None and answers is None:
            raise EvidenceError(
                "nothing to count: name --pairs, labelled pairs of questions, or --answers, of answers, or both"
            )
        vectors, evidence = Embeddings(models, model, vectors_folder), Evidence()
        figures: dict[str, Any] = {}
        if pairs is not None:
            figures |= _questions(pairs, bound, level, vectors, evidence)
        error = None
        if answers is not None:
            error, said = _judge(answers, judge, vectors, judge_url, judge_model, judge_key_file)
            figures["judge"] = said
        if evidence_file is not None:
            write_evidence(evidence_file, evidence, vectors.encoder, judge, judge_model if judge == "model" else "", error)
        return figures

    report(calibrated, output, evidence_file, as_json=as_json)


def _questions(path: Path, bound: float, level: float, vectors: "Embeddings", evidence: "Evidence") -> dict[str, Any]:
    """Count pairs of questions into evidence; show and return what they allow."""
    from rich.table import Table

    from lpc.responses.semantic.calibration import lookups_of, read_pairs
    from lpc.responses.semantic.evidence import edge
    from lpc.responses.semantic.threshold import thresholds
    from lpc.wire.terminal import console

    pairs = read_pairs(path)
    lookups = lookups_of(pairs, vectors.of([pair.a for pair in pairs]), vectors.of([pair.b for pair in pairs]))
    for similarity, wrong in zip(lookups.similarity.tolist(), lookups.wrong.tolist(), strict=True):
        evidence.apply([*evidence.lookup(similarity), *evidence.label(similarity, same=not wrong)])
    certified = thresholds(evidence, bound, 1 - level, looks=1)
    counts = evidence.counts().cumsum(axis=0)
    table = Table("from similarity", "pairs served", "of all", "wrong", "at most", title=f"{path.name}: {len(pairs):,} pairs")
    bounds = {threshold.level: threshold.bound for threshold in certified}
    for row in range(len(counts)):
        served, wrong = int(counts[row, 0]), int(counts[row, 2])
        if served and (row == 0 or served > counts[row - 1, 0]):
            shown = f"{bounds[row]:.1%}" if row in bounds else "-"
            table.add_row(f"{edge(row):.4f}", f"{served:,}", f"{served / len(pairs):.1%}", f"{wrong / served:.1%}", shown)
    screen = console()
    screen.print(table)
    lowest = certified[-1] if certified else None
    vetoed = len(pairs) - len(lookups.similarity)
    share = lowest.share * len(lookups.similarity) / len(pairs) if lowest else 0.0
    if lowest is None:
        said = f"No similarity keeps wrong answers within {bound:.1%} of those served, at {level:.0%}: nothing would be served."
    else:
        said = (
            f"From {lowest.similarity:.4f} on, {share:.1%} of these pairs would be served, "
            f"at most {lowest.bound:.1%} of them wrong, at {level:.0%}."
        )
    screen.print(f"{said} Vetoes stop {vetoed / len(pairs):.1%} of the pairs.")
    return {
        "pairs": len(pairs),
        "vetoed": vetoed,
        "bound": bound,
        "level": level,
        "threshold": lowest.similarity if lowest else None,
        "served_share": round(share, 5),
        "wrong_of_served_at_most": round(lowest.bound, 5) if lowest else None,
    }


def _judge(
    path: Path, judge: str, vectors: "Embeddings", url: str, model: str, key_file: Path | None
) -> tuple["JudgeError", dict[str, Any]]:
    """Return how often a judge errs on pairs of answers, and the same as figures, which are shown."""
    from lpc.responses.semantic.calibration import PairsError, read_answer_pairs
    from lpc.responses.semantic.evidence_file import EvidenceError
    from lpc.responses.semantic.threshold import ALPHA, JUDGES_PART, JudgeError
    from lpc.wire.terminal import console

    if judge not in ("embedding", "model") or (judge == "model") != bool(url and model):
        raise EvidenceError("--judge is embedding, or model with --judge-url and --judge-model; equal texts need no measuring")
    pairs = read_answer_pairs(path)
    if all(pair.same for pair in pairs):
        raise PairsError(f"{path} has no pair of answers that differ: a judge's error is counted on those")
    said = _by_embedding(pairs, vectors) if judge == "embedding" else asyncio.run(_by_model(pairs, url, model, key_file))
    different = [same for same, pair in zip(said, pairs, strict=True) if not pair.same]
    alike = [same for same, pair in zip(said, pairs, strict=True) if pair.same]
    error = JudgeError(sum(different), len(different))
    limit = error.limit(ALPHA * JUDGES_PART)
    missed = f", and {alike.count(False)} of {len(alike)} that say the same different" if alike else ""
    calls = f"Judge {judge} calls {error.false_same} of {error.different} answers that differ the same"
    console().print(f"{calls} (at most {limit:.1%}){missed}.")
    figures = {
        **error._asdict(),
        "false_same_at_most": round(limit, 5),
        "same": len(alike),
        "false_different": alike.count(False),
    }
    return error, figures


def _by_embedding(pairs: "list[AnswerPair]", vectors: "Embeddings") -> list[bool]:
    from lpc.responses.semantic.same_answer import same_by_embedding

    ones, others = vectors.of([pair.answer for pair in pairs]), vectors.of([pair.other_answer for pair in pairs])
    similarities = (ones * others).sum(axis=1).tolist()
    return [
        same_by_embedding(pair.answer, pair.other_answer, similarity)
        for pair, similarity in zip(pairs, similarities, strict=True)
    ]


async def _by_model(pairs: "list[AnswerPair]", url: str, model: str, key_file: Path | None) -> list[bool]:
    from lpc.responses.semantic.evidence_file import EvidenceError
    from lpc.responses.semantic.model_judge import ByModel, endpoint

    at_once = asyncio.Semaphore(AT_ONCE)
    async with endpoint(url, key_file, 60.0) as client:
        judge = ByModel(client, model)

        async def ask(pair: "AnswerPair") -> bool:
            async with at_once:
                said = await judge(pair.question, pair.answer, pair.other_question, pair.other_answer)
            if said is None:
                raise EvidenceError(f"the judge at {url} does not answer: is the address right, and the model's name and key?")
            return said

        return list(await asyncio.gather(*map(ask, pairs)))
