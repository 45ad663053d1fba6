"""`lpc cache calibrate`: what labelled pairs of questions say a scope may serve, before it serves anything."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lpc.commands.options import JsonFile, ModelName, Models
from lpc.commands.outcome import report


def calibrate(
    pairs: Annotated[Path, typer.Option(help="Labelled pairs: TSV, CSV or JSON lines of question_a, question_b, label.")],
    bound: Annotated[float, typer.Option(min=0.001, max=0.5, help="Wrong answers among those served, at most.")] = 0.05,
    level: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Confidence.")] = 0.95,
    out: Annotated[Path | None, typer.Option(help="Write the evidence here; a scope's setting `evidence` names it.")] = None,
    data: Annotated[Path, typer.Option(help="Where embeddings are kept.")] = Path("data/responses"),
    json_file: JsonFile = None,
    models: Models = Path("models"),
    model: ModelName = "e5-small",
) -> None:
    """Tell from labelled pairs which similarity a scope may serve from, and how much that would be.

    What holds of the pairs holds of traffic like them: take pairs from the scope's own questions, each candidate beside the
    question that met it, and label all of them, not only the clear ones.
    """
    report(lambda: _calibrated(pairs, bound, level, out, data, models, model), json_file)


def _calibrated(
    path: Path, bound: float, level: float, out: Path | None, data: Path, models: Path, model: str
) -> dict[str, Any]:
    from rich.table import Table

    from lpc.bench.semantic.pairs import read_pairs
    from lpc.bench.semantic.replay import lookups_of
    from lpc.bench.semantic.vectors import Vectors
    from lpc.responses.semantic.evidence import Evidence
    from lpc.responses.semantic.evidence_file import write_evidence
    from lpc.responses.semantic.levels import edge
    from lpc.responses.semantic.threshold import thresholds
    from lpc.wire.terminal import console

    pairs = read_pairs(path)
    vectors = Vectors(models, model, data)
    lookups = lookups_of(pairs, vectors.of([pair.a for pair in pairs]), vectors.of([pair.b for pair in pairs]))
    evidence = Evidence()
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
    if out is not None:
        write_evidence(out, evidence, vectors.encoder)
    return {
        "pairs": len(pairs),
        "vetoed": vetoed,
        "bound": bound,
        "level": level,
        "threshold": lowest.similarity if lowest else None,
        "served_share": round(share, 5),
        "wrong_of_served_at_most": round(lowest.bound, 5) if lowest else None,
    }
