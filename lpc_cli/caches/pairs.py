"""Table and file of `lpc cache pairs`."""

import json
from pathlib import Path
from typing import Any

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.errors import UsageError
from lpc.files import writing
from lpc.wire.terminal import console, shown


def figures_of(pair: pb.Pair) -> dict[str, Any]:
    """Return the figures of a pair."""
    return {field.name: getattr(pair, field.name) for field in pb.Pair.DESCRIPTOR.fields}


def print_pairs(found: pb.PairsResponse) -> None:
    """Print the pairs, the latest first."""
    from rich.table import Table

    table = Table("similarity", "score", "served", "question", "candidate", title=f"{len(found.pairs):,} pairs")
    for pair in found.pairs:
        texts = (pair.question or pair.question_digest, pair.candidate or pair.candidate_digest)
        served = "yes" if pair.served else "no"
        table.add_row(f"{pair.similarity:.4f}", f"{pair.score:.4f}", served, *map(shown, texts))
    console().print(table)


def check_new(path: Path) -> None:
    """Raise UsageError if there is a file, which may have a person's labels."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists, and may have labels: name another file with --pairs, or move it")


def write(found: pb.PairsResponse, path: Path) -> None:
    """Write the pairs with text as input of `lpc cache calibrate --pairs`, without labels. Raises UsageError, OSError."""
    if found.setting != "text":
        raise UsageError('the scope keeps digests only, which nobody can judge: give it "pairs": "text" in LPC_CACHE_SCOPES')
    lines = [
        json.dumps({"a": pair.candidate, "b": pair.question, "label": None, "similarity": round(pair.similarity, 5)})
        for pair in found.pairs
        if pair.question
    ]
    with writing(path, 0o600) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
