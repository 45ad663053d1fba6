"""What `lpc embed` and `lpc export` do, in the order in which the pieces need each other."""

from pathlib import Path
from typing import Any

import torch

from lpc.logs.datasets.registry import load
from lpc.logs.records import Skipped
from lpc.logs.traces import open_trace
from lpc.model.features import FeatureSettings
from lpc.training import embedding
from lpc.training import export as exporting
from lpc.training.encoders import load_encoder
from lpc.training.graph import Precision
from lpc.training.head import DEFAULT_HEAD, Head, HeadError
from lpc.wire.terminal import console

MOONCAKE = tuple(Path(folder) / "mooncake_conversation_trace.jsonl" for folder in ("data", "../shared/data"))
"""Where the trace of the reported figures is looked for when none is named."""


def embed(
    out: Path,
    dataset: str,
    data: Path | None,
    encoder: str,
    variant: str,
    models: Path,
    precision: Precision,
    limit: int | None,
    jobs: int,
    threads: int,
) -> None:
    """Embed a dataset with an encoder; export that encoder first, under an untrained head, if it is not there."""
    skipped = Skipped()
    # First, since it refuses a wrong name or path at once, and an encoder takes its time.
    conversations = load(dataset, data, skipped)
    screen = console()
    source = load_encoder(encoder)
    width = int(source.model.config.hidden_size)  # type: ignore[union-attr, arg-type]
    metadata = {
        "name": "none",
        "features": FeatureSettings(prefix=source.prefix).to_dict(),
        "encoder": source.id,
        "encoder_sha256": source.sha256,
    }
    torch.manual_seed(0)
    blank = models / ".blank-head.safetensors"
    Head(width, 1, metadata=metadata).save(blank)
    artifact = exporting.export(models, name="encoder-only", encoder=encoder, head=blank, precision=precision)
    count = embedding.embed(
        conversations,
        artifact,
        out,
        dataset=dataset if data is None else f"{dataset} {data.resolve().name}",
        variant=variant,
        limit=limit,
        jobs=jobs,
        threads=threads,
    )
    for reason, number in skipped.counts.items():
        screen.print(f"left out: {reason}: {number} (first: {skipped.first[reason]})")
    screen.print(f"{count:,} turns in {out}")


def evaluate(embeddings: Path, heads: Path, trace: Path | None, trace_format: str, picture: Path | None) -> dict[str, Any]:
    """Evaluate every head of a folder; and think times where there is a trace."""
    from lpc.training.evaluate import evaluate as run

    found = {path.parent.name: path for path in sorted(heads.glob("*/head.safetensors"), reverse=True)}
    if not found:
        raise HeadError(f"no heads in {heads}: train one with `lpc train`")
    if trace is None and trace_format == "mooncake":
        trace = next((path for path in MOONCAKE if path.exists()), None)
    return run(embeddings, found, open_trace(trace, trace_format) if trace else None, picture)


def export(
    models: Path,
    name: str,
    encoder: str,
    head: Path | None,
    precision: Precision,
    version: str | None,
    think_time: Path | None,
) -> None:
    """Export and say where and how close to PyTorch."""
    from lpc.model.artifact import read_manifest
    from lpc.model.versions import served

    folder = exporting.export(
        models,
        name=name,
        encoder=encoder,
        head=head or DEFAULT_HEAD,
        precision=precision,
        version=version,
        think_time=think_time,
    )
    screen = console()
    screen.print(f"{folder}")
    for key, value in read_manifest(folder).verification.items():
        screen.print(f"  {key.replace('_', ' ')}: {value}")
    if (now := served(models / name)) != folder:
        screen.print(
            f"note: sidecars serve {now.name}, which is promoted or newer; `lpc models promote {folder.name}` changes that",
            highlight=False,
        )
