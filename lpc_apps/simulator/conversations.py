"""Conversations without times, replayed as in the LPC paper: random think times, a given mean number of active conversations.

The package contains a sample of ShareGPT without text: conversations of the evaluation half, with the shipped head's
probabilities. `lpc_apps.simulator.conversation_log` reads a user's own conversations into the same form. They are replayed
repeatedly if there are too few.

Simplifications: conversations share at most the beginning of their first prompts (`ConversationTokens.shared`), and a
conversation ends before its context exceeds MAX_CONTEXT tokens.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, overload

import numpy as np
from numpy.typing import NDArray

from lpc.files import writing
from lpc_apps.simulator.workload import Turn, Workload, computed_tokens

ThinkTimes = Literal["exponential", "lognormal"]
BLOCK_TOKENS: Final = 16
MAX_CONTEXT: Final = 32_768
WARM_UP_S: Final = 2400.0
COUNTED_S: Final = 1200.0
"""Twenty minutes, as in the paper."""
LOGNORMAL_SIGMA: Final = 1.0
SECONDS_PER_OUTPUT_TOKEN: Final = 0.01
ACTIVE: Final = 200
"""Mean number of active conversations, as in the paper."""
SHARED_FROM: Final = 1 << 47
"""Content ids of shared blocks: above those of the conversations' own blocks, and below `sessions.ROUND`."""
SAMPLE: Final = Path(__file__).parent / "data" / "sharegpt.json.gz"


@dataclass(frozen=True)
class ConversationTokens:
    """Token counts of a conversation, one value per request.

    Attributes:
        key: identifies the conversation in its data set.
        prompts: new tokens of each prompt, after the previous reply.
        replies: tokens of each reply.
        probability: the head's probability that another user turn follows; None without a prediction.
        waits: whether the request follows a user's think time. If not, a tool's result follows the previous reply at once.
        shared: numbers, from 0, of the first prompt's leading blocks that other conversations have as well.
    """

    key: str
    prompts: Sequence[int]
    replies: Sequence[int]
    probability: Sequence[float | None]
    waits: Sequence[bool]
    shared: Sequence[int] = ()


@dataclass(frozen=True)
class Conversations:
    """Conversations to draw from.

    Attributes:
        name: name of the data.
        found: the conversations, at least one.
        reading: counts of what was read of a file, for `lpc_cli.simulation_tables.print_reading`; None for the sample.
    """

    name: str
    found: Sequence[ConversationTokens]
    reading: dict[str, Any] | None = field(default=None, compare=False)


def load_sample(path: Path = SAMPLE) -> Conversations:
    """Return conversations from a file that `save_sample` wrote; default: the bundled sample."""
    stored = json.loads(gzip.decompress(path.read_bytes()))
    found = [ConversationTokens(*row) for row in stored["conversations"]]
    reading = stored["reading"]
    return Conversations("sharegpt" if reading is None else reading["file"], found, reading)


def save_sample(conversations: Conversations, path: Path) -> None:
    """Write conversations that were read of a file, without text: JSON, compressed with gzip."""
    rows = [[getattr(row, column.name) for column in fields(row)] for row in conversations.found]
    text = json.dumps({"reading": conversations.reading, "conversations": rows}, separators=(",", ":"))
    with writing(path) as file:
        file.write(gzip.compress(text.encode(), mtime=0))


def draw(
    conversations: Conversations,
    *,
    think_time: float = 100.0,
    law: ThinkTimes = "exponential",
    active: int = ACTIVE,
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
    found = conversations.found

    def gaps(count: int) -> NDArray[np.float64]:
        if law == "exponential":
            return generator.exponential(think_time, count)
        return generator.lognormal(np.log(think_time) - LOGNORMAL_SIGMA**2 / 2, LOGNORMAL_SIGMA, count)

    duration = float(np.mean([sum(c.waits) * think_time + sum(c.replies) * SECONDS_PER_OUTPUT_TOKEN for c in found]))
    spacing = duration / active
    until = WARM_UP_S + COUNTED_S
    arrivals: list[Turn] = []
    clock = 0.0
    number = 0
    order = generator.permutation(len(found))
    while clock < until:
        conversation = found[int(order[number % len(found)])]
        first = _turns(conversation, number, gaps(len(conversation.prompts)))
        if first is not None:
            first.arrival = clock
            arrivals.append(first)
        clock += float(generator.exponential(spacing))
        number += 1
    return Workload(
        conversations.name,
        BLOCK_TOKENS,
        arrivals,
        closed=True,
        count_from=WARM_UP_S,
        until=until,
        seed=seed,
        think_time=think_time,
        reading=conversations.reading,
    )


def requests_within(prompts: Sequence[int], replies: Sequence[int]) -> int:
    """Return the number of requests before the context exceeds MAX_CONTEXT tokens."""
    contexts = np.cumsum(np.add(prompts, replies))
    return int(np.searchsorted(contexts, MAX_CONTEXT, side="right"))


def _turns(conversation: ConversationTokens, number: int, gaps: NDArray[np.float64]) -> Turn | None:
    """Return the first turn of a conversation that is drawn as the ``number``-th one; None if it does not fit."""
    first: Turn | None = None
    last: Turn | None = None
    context = 0
    shared = [SHARED_FROM + block for block in conversation.shared]
    for i in range(requests_within(conversation.prompts, conversation.replies)):
        prompt, reply = conversation.prompts[i], conversation.replies[i]
        tokens = context + prompt
        turn = Turn(
            f"{number}",
            i + 1,
            "chat",
            tokens,
            reply,
            _blocks(shared, number, tokens),
            _blocks(shared, number, computed_tokens(tokens, reply)),
            gap=float(gaps[i]) if conversation.waits[i] else 0.0,
            probability=conversation.probability[i],
        )
        context = tokens + reply
        if last is None:
            first = turn
        else:
            last.next = turn
        last = turn
    return first


def _blocks(shared: Sequence[int], number: int, tokens: int) -> Sequence[int]:
    """Return the content ids of the full blocks: the shared ones, then those of the ``number``-th conversation alone."""
    own = range(number << 20, (number << 20) + tokens // BLOCK_TOKENS)
    return _Joined(shared, own[len(shared) :]) if shared else own


class _Joined(Sequence[int]):
    """Two sequences after each other, without a copy: many turns of many conversations hold the same ids."""

    __slots__ = ("_after", "_before")

    def __init__(self, before: Sequence[int], after: Sequence[int]) -> None:
        self._before = before
        self._after = after

    def __len__(self) -> int:
        return len(self._before) + len(self._after)

    def __iter__(self) -> Iterator[int]:
        return chain(self._before, self._after)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        at = range(len(self))[index]
        before = len(self._before)
        return self._before[at] if at < before else self._after[at - before]
