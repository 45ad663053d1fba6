"""Replay of a trace in benchmark `engine --trace`: the input of engine and sidecar for each request, and the predictors.

Each block of the trace is one block of the engine, with tokens drawn by the block's content id; a partial last block keeps its
share. The sidecar gets the same input as for real traffic except the text: token ids at the length in the trace, with the
markup of earlier turns, which shows their number and the length of the last reply.
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

from eviction_client.transport.client import PredictorClient
from eviction_client.transport.scripted_predictor import CONTINUES, OVER, ScriptedPredictor
from lpc_apps.tiny_llama import BLOCK, SPECIAL

PRINTABLE: Final = range(len(SPECIAL), len(SPECIAL) + 94)
"""Token ids of the printable ASCII characters in the tiny model's vocabulary, so that the sidecar decodes text."""
USER, ASSISTANT, END = (SPECIAL.index(marker) for marker in ("<|user|>", "<|assistant|>", "<|end|>"))
SHORTEST: Final = 4
"""Fewest tokens of a user turn with its markup."""
SERVED: Final = "tiny"
ANSWER_WITHIN_S: Final = 60.0
"""Deadline of the sidecar's answers, real seconds."""


class Request(NamedTuple):
    """One request of the trace, as written by `engine_trace.placed`.

    ``gap_s``: virtual seconds from the previous answer of its session to its arrival (closed loop).
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
    """A trace, with the input of engine and sidecar for its requests. ``block_tokens``: of a full block of the trace."""

    def __init__(self, block_tokens: int, requests: Sequence[Request]) -> None:
        self.block_tokens = block_tokens
        self.requests = requests

    @classmethod
    def read(cls, file: Path) -> "Replay":
        """Read a file written by `engine_trace.placed`."""
        written = json.loads(file.read_text())
        return cls(written["block_tokens"], [Request(*row) for row in written["requests"]])

    def prompt(self, number: int) -> list[int]:
        """Return the token ids for the engine, at least one."""
        request = self.requests[number]
        full, rest = divmod(request.input_tokens, self.block_tokens)
        ids = list(chain.from_iterable(map(content, request.blocks[:full])))
        if rest:
            # Less than a whole block, which vLLM would cache.
            ids += self._last(number, full)[: min(-(-rest * BLOCK // self.block_tokens), BLOCK - 1)]
        return ids

    def sidecar_prompt(self, number: int) -> list[int]:
        """Return the token ids for the sidecar: the same blocks at their length in the trace, with markup."""
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
        """Return prompt and reply tokens of the conversation's earlier turns, as far as they fit in the request's prompt."""
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
        """Tokens of the engine's longest prompt."""
        return max(-(-request.input_tokens * BLOCK // self.block_tokens) for request in self.requests)

    @cached_property
    def goes_on(self) -> list[bool]:
        """Return for each request whether its conversation has a later one."""
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
    """Return a request's index in the trace. vLLM may append a random part to the id."""
    return int(str(request_id).partition("-")[0])


class Asked(PredictorClient):
    """The plug-in's own client, which waits for each answer while the virtual clock is stopped."""

    def __init__(self, address: str, replay: Replay) -> None:
        super().__init__(address, served_model=SERVED, timeout_s=ANSWER_WITHIN_S)
        self._replay = replay
        until = time.monotonic() + ANSWER_WITHIN_S
        while not self.healthy and time.monotonic() < until:
            time.sleep(0.05)

    def ask(self, request_id: Hashable, **known: Any) -> None:
        """Request a prediction and wait for it."""
        known["token_ids"] = self._replay.sidecar_prompt(number_of(request_id))
        super().ask(request_id, **known)
        until = time.monotonic() + ANSWER_WITHIN_S
        while self.waiting and time.monotonic() < until:
            if not self.healthy:
                raise SystemExit("the sidecar went away")
            time.sleep(0.0002)


def rule_of(side: str) -> str:
    """Return the rule of a side, for `ClientSettings.rule`: fixed for lru, lpc and the oracle, else the guard chooses."""
    return {"lru": "lru", "lpc": "lpc", "oracle": "value"}.get(side, "auto")


def predictor_of(side: str, replay: Replay, address: str | None) -> Asked | ScriptedPredictor | None:
    """Return the predictor of a side: None for stock, a constant for lru, the trace for oracle, one without answers for plugin,
    which learns from the cache alone, and a sidecar for plugin-sidecar and lpc.
    """
    if side == "stock":
        return None
    if side == "lru":
        return ScriptedPredictor(lambda _: CONTINUES)
    if side == "plugin":
        return ScriptedPredictor()
    if side == "oracle":
        return ScriptedPredictor(lambda request: CONTINUES if replay.goes_on[number_of(request)] else OVER)
    assert address is not None
    return Asked(address, replay)
