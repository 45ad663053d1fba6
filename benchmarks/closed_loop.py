"""Sessions in a closed loop on a virtual clock: each sends its next request some time after the previous answer.

Prompts repeat the engine's own earlier answers of the session. `benchmarks.closed_serve` sends the requests to real vLLM.
"""

import heapq
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from benchmarks.trace_replay import Replay
from lpc_apps.tiny_llama import BLOCK

APART_S: Final = 1.0
"""Virtual seconds between the starts of the first sessions. Copied from the simulator, which vLLM's environment lacks."""
LONGEST_REPLY: Final = 1024
"""Tokens of the engine at which recorded replies are cut."""


class ClosedLoop:
    """A fixed number of concurrent sessions; when one ends, the next begins.

    A session has one request in flight, and each request arrives exactly its gap after the previous answer. Sessions begin in
    the given order, so that every engine gets the same ones.

    Args:
        sessions: numbers of each session's requests in order, at least one per session.
        gaps_s: by a request's number, virtual seconds from the previous answer (for a session's first request: from the end of
            the session that it replaces) to its arrival.
        at_once: number of concurrent sessions.
        start: virtual time at which the first begins; the others begin APART_S after each other.

    Attributes:
        arrived: virtual time of each request's arrival, by number.

    Raises:
        ValueError: there are fewer sessions than ``at_once``.
    """

    def __init__(self, sessions: Sequence[Sequence[int]], gaps_s: Sequence[float], *, at_once: int, start: float) -> None:
        if len(sessions) < at_once:
            raise ValueError(f"{at_once} sessions at a time need as many, there are {len(sessions)}")
        self._gaps_s = gaps_s
        self._following = {number: later for session in sessions for number, later in pairwise(session)}
        self._upcoming = iter([session[0] for session in sessions[at_once:]])
        self._arrivals = [(start + place * APART_S, session[0]) for place, session in enumerate(sessions[:at_once])]
        self.arrived: dict[int, float] = {}

    @property
    def next_arrival(self) -> float | None:
        """Virtual time of the next arrival; None if none comes before another answer."""
        return self._arrivals[0][0] if self._arrivals else None

    def arrive(self, now: float) -> list[int]:
        """Return the numbers of the requests that have arrived since the last call, in order of arrival."""
        numbers = []
        while self._arrivals and self._arrivals[0][0] <= now:
            at, number = heapq.heappop(self._arrivals)
            self.arrived[number] = at
            numbers.append(number)
        return numbers

    def answer(self, number: int, now: float) -> float:
        """Record the answer to a request; return its latency in virtual seconds."""
        following = self._following.get(number)
        if following is None:
            following = next(self._upcoming, None)
        if following is not None:
            heapq.heappush(self._arrivals, (now + self._gaps_s[following], following))
        return now - self.arrived[number]


class Prompts:
    """The token ids of each request for the engine.

    A block of the log is a block of the engine, with the same tokens for each occurrence of its content id. A request that
    continues the previous one of its session repeats that prompt and the engine's own reply; the rest is new.
    """

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._blocks: dict[int, tuple[int, ...]] = {}
        self._latest: dict[str, tuple[list[int], list[int]]] = {}  # content ids of full blocks; tokens of prompt and reply

    def prompt(self, number: int) -> list[int]:
        """Return the token ids of a request's prompt, at least one. The earlier requests of its session must be answered."""
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
        """Return the number of tokens that the engine generates, at least one."""
        tokens = -(-self._replay.requests[number].output_tokens * BLOCK // self._replay.block_tokens)
        return min(max(tokens, 1), LONGEST_REPLY)

    def answered(self, number: int, prompt: list[int], reply: list[int]) -> None:
        """Record a reply's token ids, which the session's next prompt repeats."""
        request = self._replay.requests[number]
        self._latest[request.conversation] = (request.blocks[: len(prompt) // BLOCK], prompt + reply)
