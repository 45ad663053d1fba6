"""Real conversations as requests."""

import random

from lpc.model.conversation import UserTurns
from lpc.training.export import real_conversations
from lpc.v1 import predictor_pb2 as pb


def conversations(count: int, rounds: int) -> list[list[UserTurns]]:
    """Return the user turns of ``count`` real ShareGPT conversations for each round, in another order each time."""
    turns = real_conversations(count, window=5)
    return [random.Random(seed).sample(turns, count) for seed in range(rounds)]


def request(turns: UserTurns) -> pb.Conversation:
    """Return the chat that has just these user turns."""
    messages = [pb.ChatMessage(role="user", content=prompt) for prompt in turns.prompts]
    return pb.Conversation(chat=pb.ChatMessages(messages=messages), turn_count=turns.turn_count)
