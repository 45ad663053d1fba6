"""Benchmark `responses`: the response caches, each figure beside its plain alternative.

The semantic tier: pair sets replayed as streams of lookups, 100 seeded orders each, beside RedisVL's rule on the same pairs
and vectors; streams made to break the bound; opposites that must not be served; and how often the judges of answers err. Then
what lookups, store and gateway cost.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.progress import track
from rich.table import Table

from benchmarks import responses_gateway, responses_rows
from benchmarks.semantic import generated, judges, streams
from benchmarks.semantic.opposites import OPPOSITES, PARAPHRASES
from benchmarks.semantic.replay import REPLAYS, figures_of, redisvl_rule, replays, shuffled
from lpc.responses.semantic.lookups import lookups_of
from lpc.responses.semantic.pairs import Pair, read_pairs
from lpc.responses.semantic.threshold import DELTA
from lpc.responses.semantic.vectors import Vectors
from lpc.responses.semantic.vetoes import veto
from lpc.wire.terminal import console

GENERATED: Final = "sharegpt-rules"
QUICK: Final = 10
"""Replays of --quick."""


def run(
    models: Path,
    model: str,
    pairs: Sequence[Path] = (),
    *,
    folder: Path = Path("data/responses"),
    delta: float = DELTA,
    quick: bool = False,
    picture: Path | None = None,
) -> dict[str, Any]:
    """Measure; print tables; return semantic, streams, opposites and judges, and the rows of store and gateway.

    Args:
        models: the model repository.
        model: the model's name there; its newest version embeds.
        pairs: files of labelled pairs, besides the one that is generated from ShareGPT.
        folder: where embeddings and the generated pairs are kept.
        delta: the bound.
        quick: fewer replays, no judges, no costs.
        picture: PNG to draw.

    Raises:
        PairsError: a file of pairs cannot be read.
        DatasetError: ShareGPT is not installed.
        ArtifactError: there is no model.
        BenchmarkError: sidecar or Redis cannot be started here.
    """
    screen, count = console(), QUICK if quick else REPLAYS
    sets: dict[str, list[Pair]] = {path.stem: read_pairs(path) for path in pairs}
    if not quick or not sets:
        sets[GENERATED] = _generated(folder)
    vectors = Vectors(models, model, folder)
    semantic = [_replayed(name, found, vectors, folder, count, delta) for name, found in sets.items()]
    figures: dict[str, Any] = {
        "encoder": f"{model}/{vectors.version}",
        "semantic": semantic,
        "streams": [
            {"stream": name, **figures_of(replays(make, count, delta), delta)}
            for name, make in track(streams.STREAMS.items(), "streams", console=screen, transient=True)
        ],
        "opposites": opposites(vectors),
    }
    if not quick:
        kinds: dict[str, Sequence[Pair]] = {**judges.answer_pairs()}
        kinds |= {name: found for name, found in sets.items() if name != GENERATED}
        figures["judges"] = judges.errors(kinds, vectors)
        with tempfile.TemporaryDirectory() as place:
            figures |= responses_rows.rows(Path(place), models / model / vectors.version)
        figures |= responses_gateway.rows(models, model)
    for table in _tables(figures):
        screen.print(table)
    if picture is not None:
        from benchmarks.semantic.picture import draw

        draw(figures, picture)
    return figures


def opposites(vectors: Vectors) -> dict[str, Any]:
    """Return how many of the listed opposites an open scope would serve: those that no veto stops, at any similarity."""
    a, b = vectors.of([pair[0] for pair in OPPOSITES]), vectors.of([pair[1] for pair in OPPOSITES])
    similarity = (a * b).sum(axis=1)
    return {
        "listed": len(OPPOSITES),
        "served": sum(veto(*pair) is None for pair in OPPOSITES),
        "redisvl_serves": int((similarity >= 0.9).sum()),
        "similarity_median": round(float(sorted(similarity.tolist())[len(similarity) // 2]), 4),
        "paraphrases": len(PARAPHRASES),
        "paraphrases_passed": sum(veto(*pair) is None for pair in PARAPHRASES),
    }


def _generated(folder: Path) -> list[Pair]:
    path = folder / f"{GENERATED}.tsv"
    if not path.exists():
        generated.write(path, generated.generate(generated.questions()))
    return read_pairs(path)


def _replayed(name: str, pairs: Sequence[Pair], vectors: Vectors, folder: Path, count: int, delta: float) -> dict[str, Any]:
    first, second = vectors.of([pair.a for pair in pairs]), vectors.of([pair.b for pair in pairs])
    kept: dict[str, Any] = {"first": first, "second": second, "same": np.array([pair.same for pair in pairs])}
    np.savez(folder / f"pairs-{name}.npz", **kept)  # for `make redisvl`
    lookups = lookups_of(pairs, first, second)
    same = sum(pair.same for pair in pairs)
    return {
        "dataset": name,
        "pairs": len(pairs),
        "same": same,
        "not_vetoed": len(lookups.similarity),
        "same_not_vetoed": int((~lookups.wrong).sum()),
        **figures_of(replays(shuffled(lookups), count, delta), delta),
        "redisvl": redisvl_rule(pairs, (first * second).sum(axis=1)),
    }


def _tables(figures: Mapping[str, Any]) -> list[Table]:
    sets = Table(
        "pairs", "lookups", "served", "wrong of served", "worst", "within the bound", "of those that served",
        "RedisVL: served", "wrong", title=f"Semantic answers, bound {figures['semantic'][0]['bound']:.0%}",
    )  # fmt: skip
    for row in figures["semantic"]:
        sets.add_row(
            row["dataset"], *_cells(row), f"{row['redisvl']['served_share']:.1%}", f"{row['redisvl']['wrong_of_served']:.1%}"
        )
    hostile = Table("stream", "lookups", "served", "wrong of served", "worst", "within the bound", "of those that served")
    for row in figures["streams"]:
        hostile.add_row(row["stream"], *_cells(row))
    found = figures["opposites"]
    pairs = Table("", "pairs", "an open scope serves", "RedisVL serves")
    pairs.add_row("opposites", str(found["listed"]), str(found["served"]), str(found["redisvl_serves"]))
    pairs.add_row("paraphrases", str(found["paraphrases"]), str(found["paraphrases_passed"]), "")
    tables = [sets, hostile, pairs]
    if "judges" in figures:
        judged = Table("answers", "judge", "pairs", "different called same", "at most", "same called different")
        for row in figures["judges"]:
            shares = (row.get(name) for name in ("false_same", "false_same_at_most", "false_different"))
            judged.add_row(row["answers"], row["judge"], str(row["pairs"]), *("" if x is None else f"{x:.1%}" for x in shares))
        tables.append(judged)
    if "single_flight" in figures:
        tables.append(_costs(figures))
    return tables


def _costs(figures: Mapping[str, Any]) -> Table:
    gateway, flight, partitions = figures["gateway_overhead_p50_ms"], figures["single_flight"], figures["partitions"]
    embedding = "" if figures["embedding_p50_us"] is None else f"{figures['embedding_p50_us']:,.0f} us"
    beyond = "" if figures["beyond_embedding_ratio"] is None else f"{figures['beyond_embedding_ratio']:.2f}"
    costs = Table("what it costs", "measured", "beside", "ratio")
    costs.add_row(
        "exact lookup, p50",
        f"{figures['exact_lookup_p50_us']:.0f} us",
        f"bare GET: {figures['bare_get_p50_us']:.0f} us ({figures['held_get_p50_us']:.0f} us on a held connection)",
        f"{figures['exact_lookup_p50_ratio']:.2f}",
    )
    costs.add_row(
        "semantic lookup without the embedding, p50",
        f"{figures['beyond_embedding_p50_us']:,.0f} us",
        f"the embedding: {embedding}",
        beyond,
    )
    costs.add_row(
        f"restart with {figures['restart_entries']:,} entries",
        f"{figures['restart_s']:.1f} s",
        f"bare HSCAN: {figures['bare_hscan_s']:.1f} s",
        f"{figures['restart_ratio']:.1f}",
    )
    costs.add_row(
        "Redis memory of an entry",
        f"{figures['bytes_per_entry']:,.0f} B",
        f"RedisVL: {responses_rows.REDISVL_BYTES:,} B",
        f"{figures['bytes_per_entry_of_redisvl']:.2f}",
    )
    for name in ("miss", "hit"):
        costs.add_row(
            f"gateway, {name}, p50",
            f"{gateway[name]:.1f} ms",
            f"the same proxy without cache: {gateway['plain']:.1f} ms",
            f"{gateway[f'{name}_over_plain']:.2f}",
        )
    added = figures["silent_sidecar_added_ms"]
    costs.add_row(
        "gateway, silent sidecar, added at most",
        f"{added['first_three_most']:.0f} ms, then {added['later_p50']:.1f} ms (p50)",
        f"the deadline of a look-up: {1000 * responses_gateway.LOOKUP_S:.0f} ms, three times",
        "",
    )
    costs.add_row(f"{flight['requests']} equal requests at once", f"{flight['engine_calls']} engine calls", "", "")
    costs.add_row("the same, the first one killed", f"{flight['engine_calls_leader_killed']} engine calls", "", "")
    costs.add_row(
        f"{partitions['conversations']:,} generated conversations", f"{partitions['crossed']} answers crossed", "", ""
    )
    return costs


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['lookups']:,}",
        f"{row['served_share']:.2%}",
        f"{row['wrong_of_served']:.2%}",
        f"{row['wrong_of_served_worst']:.1%}",
        f"{row['within_bound']} of {row['replays']}",
        f"{row['within_bound_of_opened']} of {row['opened']}",
    ]
