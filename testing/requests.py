"""Requests made of real conversations."""

import random

from lpc.model.conversation import UserTurns
from lpc.v1 import predictor_pb2 as pb


def real_conversations(count: int, window: int) -> list[UserTurns]:
    """Return user turns of ShareGPT, evenly spread over the first 2,000 turns of its file."""
    # An environment with the sidecar alone lacks what reads data sets.
    from lpc_apps.logs.datasets.conversation import examples_of
    from lpc_apps.logs.datasets.sharegpt import load_sharegpt

    turns: list[UserTurns] = []
    for conversation in load_sharegpt():
        turns += [example.turns for example in examples_of(conversation, window)]
        if len(turns) >= max(2000, count):
            break
    return turns[:: max(1, len(turns) // count)][:count]


def conversations(count: int, rounds: int) -> list[list[UserTurns]]:
    """Return the user turns of ``count`` real ShareGPT conversations for each round, in different order."""
    turns = real_conversations(count, window=5)
    return [random.Random(seed).sample(turns, count) for seed in range(rounds)]


def request(turns: UserTurns) -> pb.Conversation:
    """Return a chat of these user turns."""
    messages = [pb.ChatMessage(role="user", content=prompt) for prompt in turns.prompts]
    return pb.Conversation(chat=pb.ChatMessages(messages=messages), turn_count=turns.turn_count)
