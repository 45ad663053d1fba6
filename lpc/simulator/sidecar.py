"""The sidecar as the plug-in's scorer sees it, without a wire: the return model that runs in one, learning as requests come.

It gets of a request what a sidecar gets, and nothing else: whose turn it is, its number, when it came, lengths, category,
how the conversation begins, and the model's probability where the workload has one. It starts knowing nothing.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from lpc.model.probability import logit
from lpc.model.returns.facts import Facts
from lpc.model.returns.memory import Arrived, Conversations
from lpc.model.returns.model import ReturnModel, mixed
from lpc.simulator.workload import Cost, Turn, Workload

Floats = NDArray[np.float64]

EPOCH_S: Final = 1.8e9
"""Seconds since the epoch at second 0 of a workload, so that times have the digits that they have in production."""
REFIT_S: Final = 60.0
"""As a sidecar does: between two refits, where there were requests."""


class OnlineReturns:
    """A return model that gets turns as they arrive and is refitted every minute by their clock."""

    def __init__(self) -> None:
        self.model = ReturnModel()
        self._refit_at: float | None = None
        self._conversations = Conversations()
        self._replies: dict[str, int] = {}

    def curve(self, turn: Turn, arrival: float) -> Floats | None:
        """Take a turn in; return its return curve at AGES, None before enough was learnt.

        Turns come in the order of their arrival (seconds).
        """
        at = EPOCH_S + arrival
        self._refit(at)
        came, before = self._conversations.arrive(arrived(turn, at, self._replies.get(turn.conversation, math.nan)))
        self._replies[turn.conversation] = turn.output_tokens
        forecast = self.model.forecast(came)
        if before is not None:
            self.model.follow(before)
        self.model.answer([came])
        if forecast is None:
            return None
        curve: Floats = mixed(forecast[0][:, None], forecast[1])[0]
        return curve

    def _refit(self, at: float) -> None:
        if self._refit_at is None:
            self._refit_at = at + REFIT_S
        elif at >= self._refit_at:
            # In a silence the refits between the first and the last leave nothing behind.
            last = self._refit_at + math.floor((at - self._refit_at) / REFIT_S) * REFIT_S
            with threadpool_limits(1):  # small matrices: threads would wait for each other
                for due in dict.fromkeys((self._refit_at, last)):
                    self.model.refit(due)
            self._refit_at = last + REFIT_S


def arrived(turn: Turn, at: float, reply_tokens: float) -> Arrived:
    """Return a turn as a sidecar sees it. ``at``: seconds since the epoch; ``reply_tokens``: of the turn before."""
    p = turn.probability
    return Arrived(
        conversation=turn.conversation.encode(),
        asked_at=at,
        facts=Facts(
            turn.turn,
            turn.input_tokens,
            reply_tokens=reply_tokens,
            log_odds=math.nan if p is None else logit(p),
            category=turn.category,
        ),
        # The first block often is the same for all: the system prompt.
        opening=block_hash(turn.contents[min(1, len(turn.contents) - 1)]) if len(turn.contents) else b"",
    )


@lru_cache(maxsize=2**20)
def block_hash(content: int) -> bytes:
    """Return the 32 bytes by which an engine would know a block."""
    return hashlib.blake2b(content.to_bytes(8, "little", signed=True), digest_size=32).digest()


class _AsTheyCome(Mapping[Turn, Floats]):
    """Answers for the turns of one run of a closed loop, learnt as it asks: when a turn comes depends on the cache.

    Args:
        answer: takes a turn in, with its arrival; returns None where it has no answer.
    """

    def __init__(self, answer: Callable[[Turn, float], Floats | None]) -> None:
        self._answer = answer
        self._answers: dict[Turn, Floats | None] = {}

    def __getitem__(self, turn: Turn) -> Floats:
        if turn not in self._answers:
            self._answers[turn] = self._answer(turn, turn.arrival)
        answer = self._answers[turn]
        if answer is None:
            raise KeyError(turn)
        return answer

    def __iter__(self) -> Iterator[Turn]:
        return iter(self._answers)

    def __len__(self) -> int:
        return len(self._answers)


def curves_of(workload: Workload) -> Mapping[Turn, Floats]:
    """Return the return curves at AGES that a sidecar has for the turns, of those that came after enough was learnt.

    They do not depend on the cache, so that they are learnt once for all capacities and policies, except in a closed loop. One
    sidecar serves all engines, and learns from every request of the workload, each at its `nominal_arrivals`.
    """
    if workload.loop is not None:
        return _AsTheyCome(OnlineReturns().curve)
    known = _learnt.get(workload)
    if known is None:
        online = OnlineReturns()
        curves = ((turn, online.curve(turn, arrival)) for arrival, turn in nominal_arrivals(workload))
        known = _learnt[workload] = {turn: curve for turn, curve in curves if curve is not None}
    return known


def nominal_arrivals(workload: Workload) -> list[tuple[float, Turn]]:
    """Return all turns with their arrivals, seconds, in order.

    In a closed workload a turn's arrival depends on what was cached for those before. There the arrival is the one at nominal
    cost, nothing cached and no waiting, which is tenths of a second from that of any run.
    """
    if not workload.closed:
        return [(turn.arrival, turn) for turn in workload.arrivals]
    cost = Cost()
    found: list[tuple[float, Turn]] = []
    for first in workload.arrivals:
        arrival, turn = first.arrival, first
        found.append((arrival, turn))
        while turn.next is not None:
            decode = turn.output_tokens * cost.output_token_s if workload.decodes else 0.0
            arrival += turn.input_tokens / cost.prefill_tokens_s + decode + turn.next.gap
            turn = turn.next
            found.append((arrival, turn))
    return sorted(found, key=lambda place: place[0])


_learnt: "WeakKeyDictionary[Workload, Mapping[Turn, Floats]]" = WeakKeyDictionary()
