"""The sidecar as the plug-in's scorer sees it, without a wire: the return model that runs in one, learning as requests come.

It is told of a request what a sidecar is told, and nothing else: whose turn it is, its number, when it came, lengths, category,
how the conversation begins, and the model's probability where the workload has one. It starts knowing nothing.
"""

import hashlib
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from eviction_client.book import PredictorCounters
from eviction_client.credit import CreditGrid
from eviction_client.messages import Prediction
from eviction_client.offer import TokenizerState
from lpc.model.probability import logit
from lpc.model.returns.credit import LIFETIMES, log_index
from lpc.model.returns.memory import Arrived
from lpc.model.returns.model import AVERAGE_EVERY, AVERAGE_TURNS, ReturnModel, mixed
from lpc.simulator.cost import Cost
from lpc.simulator.workload import Turn, Workload

Floats = NDArray[np.float64]
T = TypeVar("T")

EPOCH_S: Final = 1.8e9
"""Seconds since the epoch at second 0 of a workload, so that times have the digits that they have in production."""
REFIT_S: Final = 60.0
"""As a sidecar does: between two refits, where there were requests."""

_GRID: Final = CreditGrid(LIFETIMES.tolist())


class OnlineReturns:
    """A return model that is told of turns as they arrive and refitted every minute by their clock."""

    def __init__(self) -> None:
        self.model = ReturnModel()
        self._refit_at: float | None = None
        self._replies: dict[str, int] = {}

    def credits(self, turn: Turn, arrival: float) -> Floats:
        """Take a turn in; return its credits, seconds at LIFETIMES. Turns come in the order of their arrival (seconds)."""
        answer: Floats = self.model.answer([self._next(turn, arrival)]).credit_s[0]
        return answer

    def curve(self, turn: Turn, arrival: float) -> Floats | None:
        """Take a turn in, instead of `credits`; return its return curve at AGES, None before enough was learnt."""
        came = self._next(turn, arrival)
        told = self.model.foretell(came)
        self.model.answer([came])
        if told is None:
            return None
        curve: Floats = mixed(told[0][:, None], told[1])[0]
        return curve

    def _next(self, turn: Turn, arrival: float) -> Arrived:
        at = EPOCH_S + arrival
        if self._refit_at is None:
            self._refit_at = at + REFIT_S
        elif at >= self._refit_at:
            # In a silence the refits between the first and the last leave nothing behind.
            last = self._refit_at + math.floor((at - self._refit_at) / REFIT_S) * REFIT_S
            with threadpool_limits(1):  # small matrices: threads would wait for each other
                for due in dict.fromkeys((self._refit_at, last)):
                    self.model.refit(due)
            self._refit_at = last + REFIT_S
        reply = self._replies.get(turn.conversation, math.nan)
        self._replies[turn.conversation] = turn.output_tokens
        return arrived(turn, at, reply)


def arrived(turn: Turn, at: float, reply_tokens: float) -> Arrived:
    """Return a turn as a sidecar sees it. ``at``: seconds since the epoch; ``reply_tokens``: of the turn before."""
    p = turn.probability
    return Arrived(
        turn.conversation.encode(),
        at,
        turn.turn,
        turn.input_tokens,
        reply_tokens,
        math.nan if p is None else logit(p),
        turn.category,
        # The first block often is the same for all: the system prompt.
        block_hash(turn.contents[min(1, len(turn.contents) - 1)]) if len(turn.contents) else b"",
    )


@lru_cache(maxsize=2**20)
def block_hash(content: int) -> bytes:
    """Return the 32 bytes by which an engine would know a block."""
    return hashlib.blake2b(content.to_bytes(8, "little", signed=True), digest_size=32).digest()


class Sidecar:
    """The scorer's `Predictor`. A request's id is its `Turn`.

    One sidecar serves all engines, and learns from every request of the workload, each at its `nominal_arrivals`.

    Args:
        workload: whose turns will be asked about.
        invert: answer the opposite, minus each credit.
    """

    healthy = True

    def __init__(self, workload: Workload, *, invert: bool = False) -> None:
        self._credits = credits_of(workload)
        self._sign = -1.0 if invert else 1.0
        self._waiting: dict[Hashable, Prediction] = {}

    def ask(
        self,
        request_id: Hashable,
        *,
        token_ids: Sequence[int] = (),
        category: str = "",
        conversation_id: str = "",
    ) -> None:
        """Answer for a turn that arrives now. Of the arguments only the turn counts: it says all that a sidecar is told."""
        del token_ids, category, conversation_id
        assert isinstance(request_id, Turn)
        turn = request_id
        self._waiting[turn] = Prediction(
            0.5 if turn.probability is None else turn.probability,
            "simulated",
            None,
            None,
            turn.turn,
            _GRID.table((self._sign * self._credits[turn]).tolist()),
        )

    def take(self, request_id: Hashable) -> Prediction | None:
        """Return the answer; it is there at once, and once."""
        return self._waiting.pop(request_id, None)

    def forget(self, request_id: Hashable) -> None:
        """Forget a turn."""
        self._waiting.pop(request_id, None)

    def take_or_leave(self, request_id: Hashable) -> tuple[Prediction | None, bool]:
        """Return the answer; none comes later."""
        return self.take(request_id), False

    def late_answers(self) -> Sequence[tuple[Hashable, Prediction | None]]:
        """No answer comes later."""
        return ()

    def close(self) -> None:
        """Nothing is open."""

    @property
    def counters(self) -> PredictorCounters:
        """Nothing is counted."""
        return PredictorCounters()

    @property
    def tokenizer_state(self) -> TokenizerState:
        """Nothing is read."""
        return "unknown"


class _AsTheyCome(Mapping[Turn, T]):
    """Answers for the turns of one run of a closed loop, learnt as it asks: when a turn comes depends on the cache.

    Args:
        answer: takes a turn in, with its arrival; returns None where it has no answer.
    """

    def __init__(self, answer: Callable[[Turn, float], T | None]) -> None:
        self._answer = answer
        self._answers: dict[Turn, T | None] = {}

    def __getitem__(self, turn: Turn) -> T:
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


def credits_of(workload: Workload) -> Mapping[Turn, Floats]:
    """Return the credits that every turn is answered, [lifetimes] seconds each. The same object for the same workload.

    They do not depend on the cache, so that they are learnt once for all capacities and policies; but in a closed loop.
    """
    if workload.loop is not None:
        return _AsTheyCome(OnlineReturns().credits)
    known = _learnt.get(workload)
    if known is None:
        online = OnlineReturns()
        known = _learnt[workload] = {turn: online.credits(turn, arrival) for arrival, turn in nominal_arrivals(workload)}
    return known


class Foretold(NamedTuple):
    """What is known of a turn when it arrives: its return curve, and ln of the average conversation's index, both at AGES."""

    curve: Floats
    average: Floats


def curves_of(workload: Workload) -> Mapping[Turn, Foretold]:
    """Return the return curves that a sidecar has for the turns, of those that came after enough was learnt."""
    if workload.loop is not None:
        return _AsTheyCome(_Curves().next)
    known = _foretold.get(workload)
    if known is None:
        curves = _Curves()
        told = ((turn, curves.next(turn, arrival)) for arrival, turn in nominal_arrivals(workload))
        known = _foretold[workload] = {turn: curve for turn, curve in told if curve is not None}
    return known


class _Curves:
    """Return curves as requests come, each with the average of the latest ones, as that beside which credits are given."""

    def __init__(self) -> None:
        self._online = OnlineReturns()
        self._told = 0
        self._mean: Floats | None = None
        self._average = np.zeros(0)

    def next(self, turn: Turn, arrival: float) -> Foretold | None:
        curve = self._online.curve(turn, arrival)
        if curve is None:
            return None
        keep = 0.5 ** (1.0 / AVERAGE_TURNS)
        self._mean = curve if self._mean is None else keep * self._mean + (1.0 - keep) * curve
        if self._told % AVERAGE_EVERY == 0:
            self._average = log_index(self._mean[None, :])[0]
        self._told += 1
        return Foretold(curve, self._average)


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


_foretold: "WeakKeyDictionary[Workload, dict[Turn, Foretold]]" = WeakKeyDictionary()
_learnt: "WeakKeyDictionary[Workload, Mapping[Turn, Floats]]" = WeakKeyDictionary()
