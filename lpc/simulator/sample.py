"""The sample of ShareGPT that ships with the simulator, so that it has something to replay on a fresh checkout.

Whole conversations of the evaluation half: hash of the first prompt, tokens of prompts and replies, and the probabilities that
the shipped head gives; no text. `make sample` renews it.
"""

import json
import sys
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from lpc.simulator.sharegpt import Conversations, Lengths

SAMPLE: Final = Path(__file__).parent / "data" / "sharegpt.parquet"
_BY_TURN: Final = b"by_turn"


def load_sample(path: Path = SAMPLE) -> Conversations:
    """Return the sample."""
    table = pq.read_table(path)
    columns = (table[name].to_pylist() for name in ("key", "prompts", "replies", "probability"))
    replayed = [Lengths(*row) for row in zip(*columns, strict=True)]
    return Conversations(replayed, json.loads(table.schema.metadata[_BY_TURN]))


def write_sample(conversations: Conversations, path: Path = SAMPLE) -> None:
    """Write conversations as the sample; probabilities are rounded to 16 bits."""
    rows = conversations.replayed
    tokens = pa.list_(pa.uint32())
    table = pa.table(
        {
            "key": pa.array([row.key for row in rows]),
            "prompts": pa.array([row.prompts for row in rows], tokens),
            "replies": pa.array([row.replies for row in rows], tokens),
            "probability": pa.array(
                [[None if p is None else round(p, 4) for p in row.probability] for row in rows], pa.list_(pa.float32())
            ),
        }
    )
    table = table.replace_schema_metadata({_BY_TURN: json.dumps([round(p, 4) for p in conversations.by_turn])})
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    pq.write_table(table, partial, compression="zstd", compression_level=19)
    partial.replace(path)


def main(embeddings: Path) -> None:
    """Make the sample from a folder that `lpc embed` made. Raises EmbeddingError, HeadError."""
    from lpc.simulator.embedded import embedded
    from lpc.training.head_file import DEFAULT_HEAD

    found = embedded(embeddings, DEFAULT_HEAD)
    write_sample(found)
    turns = sum(len(row.prompts) for row in found.replayed)
    print(f"{len(found.replayed):,} conversations, {turns:,} turns, {SAMPLE.stat().st_size // 1024} KiB: {SAMPLE}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
