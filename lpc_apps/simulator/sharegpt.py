"""ShareGPT conversations as in the LPC paper: random think times, a given mean number of active conversations.

Only conversations of the evaluation half are replayed, repeatedly if there are too few. The package contains a sample of them
without text: hash of the first prompt, tokens of prompts and replies, and the shipped head's probabilities.

Simplifications: conversations share no blocks (identical first prompts are rare), and a conversation ends before its context
exceeds MAX_CONTEXT tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lpc_apps.simulator.workload import Turn, Workload

ThinkTimes = Literal["exponential", "lognormal"]
BLOCK_TOKENS: Final = 16
MAX_CONTEXT: Final = 32_768
WARM_UP_S: Final = 2400.0
COUNTED_S: Final = 1200.0
"""Twenty minutes, as in the paper."""
LOGNORMAL_SIGMA: Final = 1.0
SECONDS_PER_OUTPUT_TOKEN: Final = 0.01
SAMPLE: Final = Path(__file__).parent / "data" / "sharegpt.parquet"


@dataclass(frozen=True)
class Lengths:
    """Token counts of a conversation.

    Attributes:
        key: key of the conversation in the embeddings.
        prompts, replies: tokens per turn.
        probability: per turn, the head's probability that another turn follows; None without a prediction.
    """

    key: str
    prompts: Sequence[int]
    replies: Sequence[int]
    probability: Sequence[float | None]


def load_sample(path: Path = SAMPLE) -> list[Lengths]:
    """Return the sample."""
    table = pq.read_table(path)
    columns = (table[name].to_pylist() for name in ("key", "prompts", "replies", "probability"))
    return [Lengths(*row) for row in zip(*columns, strict=True)]


def sharegpt(
    conversations: Sequence[Lengths],
    *,
    think_time: float = 100.0,
    law: ThinkTimes = "exponential",
    active: int = 200,
    seed: int = 0,
) -> Workload:
    """Return a workload drawn with ``seed``.

    Args:
        conversations: conversations to draw from.
        think_time: mean seconds between the end of a turn and the next.
        law: distribution of the think times.
        active: mean number of active conversations.
    """
    generator = np.random.default_rng(seed)

    def gaps(count: int) -> NDArray[np.float64]:
        if law == "exponential":
            return generator.exponential(think_time, count)
        return generator.lognormal(np.log(think_time) - LOGNORMAL_SIGMA**2 / 2, LOGNORMAL_SIGMA, count)

    duration = float(np.mean([len(c.prompts) * think_time + sum(c.replies) * SECONDS_PER_OUTPUT_TOKEN for c in conversations]))
    spacing = duration / active
    until = WARM_UP_S + COUNTED_S
    arrivals: list[Turn] = []
    clock = 0.0
    number = 0
    order = generator.permutation(len(conversations))
    while clock < until:
        conversation = conversations[int(order[number % len(conversations)])]
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
    )


def _turns(conversation: Lengths, number: int, gaps: NDArray[np.float64]) -> Turn | None:
    first: Turn | None = None
    last: Turn | None = None
    context = 0
    first_id = number << 20  # content ids are unique to the conversation
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
            range(first_id, first_id + tokens // BLOCK_TOKENS),
            range(first_id, first_id + (tokens + reply) // BLOCK_TOKENS),
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
