"""The prompts of sessions in a closed loop: each repeats what the engine itself has answered before in its session."""

from typing import Final

from benchmarks.tiny_llama import BLOCK
from benchmarks.trace_replay import Replay

LONGEST_REPLY: Final = 1024
"""Tokens of the engine; recorded replies above it are cut."""


class Prompts:
    """What the engine is given of each request.

    A block of the log is a block of the engine, with the same tokens wherever its content id occurs. A request that continues
    the one before it in its session repeats that one's prompt and the engine's own reply; what follows these is new.
    """

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._blocks: dict[int, tuple[int, ...]] = {}
        self._latest: dict[str, tuple[list[int], list[int]]] = {}  # content ids of full blocks; tokens of prompt and reply

    def prompt(self, number: int) -> list[int]:
        """Return the token ids of a request's prompt, at least one. Its session's earlier requests must be answered."""
        request = self._replay.requests[number]
        ids = self._replay.prompt(number)
        full = request.blocks[: len(ids) // BLOCK]
        for place, block in enumerate(full):
            ids[place * BLOCK : (place + 1) * BLOCK] = self._blocks.get(block, ids[place * BLOCK : (place + 1) * BLOCK])
        before, history = self._latest.get(request.conversation, ([], []))
        if full[: len(before)] == before:
            repeated = history[: len(ids)]
            ids[: len(repeated)] = repeated
        for place, block in enumerate(full):
            self._blocks.setdefault(block, tuple(ids[place * BLOCK : (place + 1) * BLOCK]))
        return ids

    def reply_tokens(self, number: int) -> int:
        """Return how many tokens the engine answers, at least one."""
        tokens = -(-self._replay.requests[number].output_tokens * BLOCK // self._replay.block_tokens)
        return min(max(tokens, 1), LONGEST_REPLY)

    def answered(self, number: int, prompt: list[int], reply: list[int]) -> None:
        """Note a reply, token ids, which the session's next prompt repeats."""
        request = self._replay.requests[number]
        self._latest[request.conversation] = (request.blocks[: len(prompt) // BLOCK], prompt + reply)
