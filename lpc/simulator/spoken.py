"""ShareGPT's conversations with their words: what a response cache compares. Lengths are estimated, four characters a token.

The text is that of the installed dataset, of the evaluation half. A conversation that is drawn again is another one: its words
are marked with the round, since one user does not say them all twice.
"""

from collections.abc import Callable, Sequence
from typing import Final

from tqdm import tqdm

from lpc.logs.datasets.conversation import conversation_key, split_of
from lpc.logs.datasets.sharegpt import load_sharegpt
from lpc.logs.traces.chat import CHARS_PER_TOKEN
from lpc.model.conversation import Message, is_user_turn
from lpc.simulator.names import Named, of_messages
from lpc.simulator.sharegpt import Lengths

MARKUP: Final = 4
"""Tokens of a chat template around a message."""


def spoken() -> tuple[list[Lengths], Callable[[int], list[Named]]]:
    """Return the conversations, and what names the turns of one of them, by its place.

    Raises DatasetError: the dataset is not installed.
    """
    replayed: list[Lengths] = []
    said: list[tuple[Message, ...]] = []
    for conversation in tqdm(load_sharegpt(), "reading ShareGPT", unit=" conversations"):
        ends = [place for place, message in enumerate(conversation.messages) if is_user_turn(message)]
        if not ends:
            continue
        key = conversation_key(conversation.messages[ends[0]].content)
        if split_of(key) != "evaluation":
            continue
        prompts, replies = _lengths(conversation.messages, ends)
        replayed.append(Lengths(key, prompts, replies, [None] * len(ends)))
        said.append(conversation.messages)

    def named(place: int) -> list[Named]:
        messages = said[place]
        return [of_messages(messages[: end + 1]) for end, message in enumerate(messages) if is_user_turn(message)]

    return replayed, named


def _lengths(messages: Sequence[Message], ends: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the tokens that each turn adds to the prompt, and those of the replies; ``ends``: places of the user turns."""
    prompts, replies = [0] * len(ends), [0] * len(ends)
    turn = 0
    for place, message in enumerate(messages):
        count = -(-len(message.content) // CHARS_PER_TOKEN)
        if turn and message.role == "assistant":
            replies[turn - 1] += count
        elif turn < len(ends):
            prompts[turn] += count + MARKUP
            turn += place == ends[turn]
    return prompts, [max(reply, 1) for reply in replies]
