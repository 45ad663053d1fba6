"""The sample of ShareGPT that ships with the simulator, so that it has something to replay on a fresh checkout.

Whole conversations of the evaluation half: hash of the first prompt, tokens of prompts and replies, and the probabilities that
the shipped head gives; no text. `make sample` renews it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from lpc.files import replacing
from lpc.simulator.sharegpt import Lengths

SAMPLE: Final = Path(__file__).parent / "data" / "sharegpt.parquet"


def load_sample(path: Path = SAMPLE) -> list[Lengths]:
    """Return the sample."""
    table = pq.read_table(path)
    columns = (table[name].to_pylist() for name in ("key", "prompts", "replies", "probability"))
    return [Lengths(*row) for row in zip(*columns, strict=True)]


def write_sample(conversations: Sequence[Lengths], path: Path = SAMPLE) -> None:
    """Write conversations as the sample; probabilities are rounded to 16 bits."""
    tokens = pa.list_(pa.uint32())
    table = pa.table(
        {
            "key": pa.array([row.key for row in conversations]),
            "prompts": pa.array([row.prompts for row in conversations], tokens),
            "replies": pa.array([row.replies for row in conversations], tokens),
            "probability": pa.array(
                [[None if p is None else round(p, 4) for p in row.probability] for row in conversations], pa.list_(pa.float32())
            ),
        }
    )
    with replacing(path) as partial:
        pq.write_table(table, partial, compression="zstd", compression_level=19)


def main(embeddings: Path) -> None:
    """Make the sample from a folder that `lpc embed` made. Raises EmbeddingError, HeadError."""
    from lpc.simulator.embedded import embedded
    from lpc.training.head_file import DEFAULT_HEAD

    found = embedded(embeddings, DEFAULT_HEAD)
    write_sample(found)
    turns = sum(len(row.prompts) for row in found)
    print(f"{len(found):,} conversations, {turns:,} turns, {SAMPLE.stat().st_size // 1024} KiB: {SAMPLE}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
