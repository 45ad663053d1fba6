"""`python -m benchmarks paper`: tables and figures of Learned Prefix Caching (NeurIPS 2025) on conversations at hand.

Steps: embed each text once, train and evaluate heads (Tables 3 to 6), replay the held-out conversations with the head's
probabilities (Figures 4, 5 and 9), write the page. An interrupted command continues with the texts and runs that are missing.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.paper import hits, page, tables
from benchmarks.paper.data import Data, read
from benchmarks.paper.texts import embed_texts
from lpc_apps.training.embedding import Embedded
from lpc_cli.outcome import note


def run(
    sources: Sequence[str],
    *,
    sample: int | None,
    seeds: Sequence[int],
    figure_seeds: Sequence[int],
    sizes: Sequence[int],
    artifact: Path,
    folder: Path,
    jobs: int,
    written: Path | None,
) -> dict[str, Any]:
    """Run everything; return the rows of tables and figures.

    Args:
        sources: as in `data.read`.
        seeds, figure_seeds: seeds of the tables, and of the figures.
        sizes: tokens of the caches of the figures.
        sample: as in `data.read`.
        artifact: a model version folder, for its encoder.
        folder: folder of embeddings and finished runs; created.
        written: page whose tables are replaced; None: print them.
    """
    sets = [read(source, sample) for source in sources]
    stored = folder / "texts.sqlite"
    folder.mkdir(parents=True, exist_ok=True)
    embedded: dict[tuple[str, str], Embedded] = {}
    scorers = {}
    for data in sets:
        note(f"{data.name}: {len(data.conversations):,} of {data.of:,} conversations")
        vectors = embed_texts(data.texts(replies=False), artifact, stored)
        kinds = [tables.PROMPTS, tables.TEN]
        if data.replies:
            vectors |= embed_texts(data.texts(replies=True), artifact, stored)
            kinds.append(tables.WITH_REPLIES)
        embedded |= {(data.name, kind.name): tables.examples(data, kind, vectors) for kind in kinds}
        head = tables.own_head(tables.with_split(embedded[data.name, tables.PROMPTS.name], 0), 0)
        scorers[data.name] = hits.WindowScorer(head, artifact, stored)
    scored = tables.measure(sets, embedded, seeds, folder / "tables.jsonl")
    conversations = [hits.prepare(data, scorers[data.name], folder) for data in sets]
    rows = hits.simulate(conversations, sizes, figure_seeds, folder / "runs.jsonl", jobs)
    if written is None:
        print("\n\n".join(f"{name}\n{block}" for name, block in page.blocks(sets, scored, rows).items()))
    else:
        page.write(written, sets, scored, rows)
    return {"data": [_facts(data) for data in sets], "tables": scored, "figures": rows}


def _facts(data: Data) -> dict[str, Any]:
    return {"name": data.name, "conversations": len(data.conversations), "of": data.of, "replies": data.replies}
