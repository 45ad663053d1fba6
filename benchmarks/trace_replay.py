"""A trace as benchmark `engine --trace` replays it: what engine and sidecar get of each request, and which predictor is asked.

Each block of the trace is one block of the engine, whose tokens are drawn by the block's content id; a partial last block keeps
its share. The sidecar is told what it would be told of the real traffic, but its text: the prompt's token ids at the length
that the trace has, with the markup of the earlier turns, from which it knows their number and the last reply's length.
"""

import json
import random
import time
from collections import defaultdict
from collections.abc import Hashable, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.tiny_llama import BLOCK, SPECIAL
from benchmarks.told import CONTINUES, OVER, Told
from eviction_client.predictor_client import PredictorClient

PRINTABLE: Final = range(len(SPECIAL), len(SPECIAL) + 94)
"""Token ids of the printable ASCII characters in the tiny model's vocabulary: what the sidecar decodes is text."""
USER, ASSISTANT, END = (SPECIAL.index(marker) for marker in ("<|user|>", "<|assistant|>", "<|end|>"))
SHORTEST: Final = 4
"""Tokens of a user turn with its markup, at least."""
SERVED: Final = "tiny"
ANSWER_WITHIN_S: Final = 60.0
"""Real time that the sidecar has for an answer."""


class Request(NamedTuple):
    """One request of the trace, as the other process wrote it (`engine_trace.placed`).

    ``gap_s``: virtual seconds from the answer before it in its session to its arrival (closed loop).
    """

    arrival: float
    conversation: str
    turn: int
    category: str
    input_tokens: int
    output_tokens: int
    blocks: list[int]
    gap_s: float = 0.0


@lru_cache(maxsize=2**18)
def content(block: int) -> tuple[int, ...]:
    """Return the tokens of a block by its content id."""
    return tuple(random.Random(block).choices(PRINTABLE, k=BLOCK))


class Replay:
    """A trace, and what its requests look like to engine and sidecar. ``block_tokens``: of a full block of the trace."""

    def __init__(self, block_tokens: int, requests: Sequence[Request]) -> None:
        self.block_tokens = block_tokens
        self.requests = requests

    @classmethod
    def read(cls, file: Path) -> "Replay":
        """Read what `engine_trace.placed` wrote."""
        written = json.loads(file.read_text())
        return cls(written["block_tokens"], [Request(*row) for row in written["requests"]])

    def prompt(self, number: int) -> list[int]:
        """Return the token ids that the engine is given; at least one."""
        request = self.requests[number]
        full, rest = divmod(request.input_tokens, self.block_tokens)
        ids = list(chain.from_iterable(map(content, request.blocks[:full])))
        if rest:
            # Less than a whole block, since vLLM would keep that.
            ids += self._last(number, full)[: min(-(-rest * BLOCK // self.block_tokens), BLOCK - 1)]
        return ids

    def told(self, number: int) -> list[int]:
        """Return the token ids that the sidecar is asked about: the same blocks at their length in the trace, with markup."""
        request = self.requests[number]
        times = -(-self.block_tokens // BLOCK)
        full = request.input_tokens // self.block_tokens
        tokens = [(content(block) * times)[: self.block_tokens] for block in request.blocks[:full]]
        ids = list(chain(*tokens, self._last(number, full) * times))[: request.input_tokens]
        if len(ids) < SHORTEST:
            return ids
        ids[0] = USER
        for prompt, reply in self._before[number]:
            ids[prompt - 2 : prompt] = END, ASSISTANT
            ids[prompt + reply : prompt + reply + 2] = END, USER
        ids[-2:] = END, ASSISTANT
        return ids

    @cached_property
    def _before(self) -> list[list[tuple[int, int]]]:
        """Tokens of prompt and reply of each turn before a request in its conversation, as far as its prompt has room."""
        turns: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        before = []
        for request in self.requests:
            earlier, end = [], 0
            for prompt, reply in turns[request.conversation]:
                if end + SHORTEST <= prompt and prompt + reply + SHORTEST <= request.input_tokens:
                    earlier.append((prompt, reply))
                    end = prompt + reply
            before.append(earlier)
            turns[request.conversation].append((request.input_tokens, request.output_tokens))
        return before

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest prompt that the engine is given."""
        return max(-(-request.input_tokens * BLOCK // self.block_tokens) for request in self.requests)

    @cached_property
    def goes_on(self) -> list[bool]:
        """Whether the conversation of each request has a later one."""
        seen: set[str] = set()
        later = []
        for request in reversed(self.requests):
            later.append(request.conversation in seen)
            seen.add(request.conversation)
        return later[::-1]

    def _last(self, number: int, full: int) -> tuple[int, ...]:
        blocks = self.requests[number].blocks
        return content(blocks[full] if len(blocks) > full else -1 - number)


def number_of(request_id: Hashable) -> int:
    """Return a request's place in the trace; vLLM may append a random part to the id that it was given."""
    return int(str(request_id).partition("-")[0])


class Asked(PredictorClient):
    """The plug-in's own client, which waits for each answer while the virtual clock stands."""

    def __init__(self, address: str, replay: Replay) -> None:
        super().__init__(address, served_model=SERVED, timeout_s=ANSWER_WITHIN_S)
        self._replay = replay
        until = time.monotonic() + ANSWER_WITHIN_S
        while not self.healthy and time.monotonic() < until:
            time.sleep(0.05)

    def ask(self, request_id: Hashable, **known: Any) -> None:
        """As the plug-in asks, and until the answer is there."""
        known["token_ids"] = self._replay.told(number_of(request_id))
        super().ask(request_id, **known)
        until = time.monotonic() + ANSWER_WITHIN_S
        while self.waiting and time.monotonic() < until:
            if not self.healthy:
                raise SystemExit("the sidecar went away")
            time.sleep(0.0002)


def predictor_of(side: str, replay: Replay, address: str | None) -> Asked | Told | None:
    """Return what a side asks: stock nothing, lru one whose answers change nothing, oracle the trace, reuse nobody (it learns
    from the cache's reuse alone), the others a sidecar.
    """
    if side == "stock":
        return None
    if side == "lru":
        return Told(lambda _: CONTINUES)
    if side == "reuse":
        return Told(lambda _: None)
    if side == "oracle":
        return Told(lambda request: CONTINUES if replay.goes_on[number_of(request)] else OVER)
    assert address is not None
    return Asked(address, replay)
