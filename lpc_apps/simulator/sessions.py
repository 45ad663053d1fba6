"""Sessions in a closed loop: each request follows the previous answer, and a new session follows the end of another.

So the load depends on the engine: a slower engine delays the next requests. Gaps come from the log, from the end of an answer
to the next request, limited to [SHORTEST_GAP_S, LONGEST_GAP_S]. If the log has no durations, a request's duration is that at
nominal cost with nothing cached.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from lpc_apps.simulator.workload import ClosedLoop, Cost, Turn, Workload

REQUESTS: Final = 4_000
SHORTEST_GAP_S: Final = 0.2
LONGEST_GAP_S: Final = 3600.0
STAGGER_S: Final = 1.0
"""Seconds between the starts of the first sessions."""
PAUSE_S: Final = 1.0
"""Seconds from the end of a session to the start of the next one."""
ROUND: Final = 1 << 48
"""Exceeds the content ids of every log."""


def closed_loop(
    log: Workload, sessions: int, requests: int = REQUESTS, seed: int = 0, *, warm_up: int | None = None
) -> Workload:
    """Return the conversations of a workload as sessions in a closed loop. Sets the gaps of the workload's turns.

    Args:
        sessions: number of concurrent sessions.
        requests: number of requests after which the run ends.
        seed: seed of the order of the sessions.
        warm_up: number of requests after which hits are counted; default: a quarter.
    """
    firsts = log.arrivals if log.closed else _with_gaps(log)
    loop = ClosedLoop(sessions, requests, requests // 4 if warm_up is None else warm_up)
    never = float("inf")
    return replace(log, arrivals=firsts, closed=True, count_from=never, until=never, seed=seed, loop=loop)


def _with_gaps(log: Workload) -> list[Turn]:
    """Return the first turns of the conversations, and set the gaps of the others."""
    cost = Cost()
    later: set[Turn] = set()
    for turn in log.arrivals:
        following = turn.next
        if following is not None:
            later.add(following)
            took = None if log.trace is None else log.trace.requests[turn.index].served_s
            if took is None:
                took = turn.input_tokens / cost.prefill_tokens_s + turn.output_tokens * cost.output_token_s
            following.gap = min(max(following.arrival - turn.arrival - took, SHORTEST_GAP_S), LONGEST_GAP_S)
    return [turn for turn in log.arrivals if turn not in later]


class Sessions:
    """The sessions of one run in a random order, repeated endlessly.

    A repeated session gets a new name and new blocks, except for blocks that several sessions of the log share.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._loop = workload.loop
        self._firsts = list(workload.arrivals)
        random.Random(workload.seed).shuffle(self._firsts)
        self._started = 0
        self._shared: set[int] | None = None

    def first(self) -> Iterator[Turn]:
        """Yield the first turns of the initial sessions."""
        assert self._loop is not None
        for number in range(self._loop.sessions):
            yield self.start(number * STAGGER_S)

    def start(self, at: float) -> Turn:
        """Return the first turn of the next session, which arrives at ``at`` seconds. The turns are copies for this run."""
        again, index = divmod(self._started, len(self._firsts))
        self._started += 1
        turns = [replace(turn) for turn in chain(self._firsts[index])]
        for before, turn in zip([None, *turns], turns, strict=False):
            if before is not None:
                before.next = turn
            if again:
                self._renew(turn, again)
        self._workload.paths.extend(turns)
        turns[0].arrival = at
        return turns[0]

    def _renew(self, turn: Turn, again: int) -> None:
        if self._shared is None:
            self._shared = _shared(self._firsts)
        whole = turn.all_contents
        # Blocks are chained, so shared blocks come first.
        kept = next((index for index, content in enumerate(whole) if content not in self._shared), len(whole))
        turn.all_contents = (*whole[:kept], *(content + again * ROUND for content in whole[kept:]))
        turn.contents = turn.all_contents[: len(turn.contents)]
        turn.conversation = f"{turn.conversation}#{again + 1}"


def chain(first: Turn) -> Iterator[Turn]:
    """Yield a conversation's turns."""
    turn: Turn | None = first
    while turn is not None:
        yield turn
        turn = turn.next


def _shared(firsts: list[Turn]) -> set[int]:
    """Return the content ids that occur in several sessions."""
    seen: set[int] = set()
    shared: set[int] = set()
    for first in firsts:
        own = set().union(*(turn.all_contents for turn in chain(first)))
        shared |= own & seen
        seen |= own
    return shared
