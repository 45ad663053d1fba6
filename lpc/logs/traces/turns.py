"""The requests of a trace as turns of their conversations, by the rules of `lpc.model.arrivals`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lpc.logs.traces.request import Trace
from lpc.model.arrivals import UNSEEN, GapHistory

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TracedTurns:
    """One row per request of a trace, in order, [n]. Simultaneous requests of a conversation are one turn.

    Attributes:
        arrival: seconds of the trace.
        conversation: number of the conversation, in order of their beginnings.
        stands: whether the request represents its turn: it is the last of its conversation at this instant.
        last_gap, mean_log_gap: the conversation's gaps up to this turn; NaN at its first.
        next_arrival: arrival of the conversation's next turn, seconds of the trace; infinite if there is none.
    """

    arrival: Floats
    conversation: NDArray[np.int64]
    stands: NDArray[np.bool_]
    last_gap: Floats
    mean_log_gap: Floats
    next_arrival: Floats


def turns_in(trace: Trace) -> TracedTurns:
    """Return the turns of a trace. All columns except `stands` and `next_arrival` depend on earlier requests only."""
    n = len(trace.requests)
    arrival = np.array([request.arrival for request in trace.requests])
    conversation = np.empty(n, np.int64)
    stands, next_arrival = np.ones(n, np.bool_), np.full(n, np.inf)
    gaps = np.empty((n, 2))
    numbers: dict[str, int] = {}
    histories: dict[int, GapHistory] = {}
    latest: dict[int, list[int]] = {}  # rows of a conversation's latest turn
    for row, request in enumerate(trace.requests):
        number = conversation[row] = numbers.setdefault(request.conversation, len(numbers))
        known = histories.get(number, UNSEEN)
        history = histories[number] = known.arrive(request.arrival)
        together = latest.get(number, [])
        if history is known:  # another request of the same turn
            stands[together[-1]] = False
            together.append(row)
        else:
            if together:
                next_arrival[together] = request.arrival
            latest[number] = [row]
        gaps[row] = history.gaps
    return TracedTurns(arrival, conversation, stands, gaps[:, 0], gaps[:, 1], next_arrival)
