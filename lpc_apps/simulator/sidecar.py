"""The sidecar's return model without gRPC, untrained at the start (`lpc_apps.training.online_returns`)."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from lpc.model.returns.model import mixed
from lpc_apps.simulator.workload import Cost, Turn, Workload
from lpc_apps.training.online_returns import OnlineReturns

Floats = NDArray[np.float64]


def take_in(model: OnlineReturns, turn: Turn, arrival: float) -> Floats | None:
    """Add a turn, in order of arrival (seconds); return its return curve at AGES, or None before the model has enough data."""
    found = model.forecast(
        turn.conversation,
        turn.turn,
        arrival,
        input_tokens=turn.input_tokens,
        output_tokens=turn.output_tokens,
        category=turn.category,
        # All conversations may share the first block, the system prompt.
        opening=block_hash(turn.contents[min(1, len(turn.contents) - 1)]) if len(turn.contents) else b"",
        probability=turn.probability,
        user=turn.user or turn.tenant,  # as the plug-in asks
    )
    if found is None:
        return None
    hazards, head_share = found
    curve: Floats = mixed(hazards[:, None], head_share)[0]
    return curve


@lru_cache(maxsize=2**20)
def block_hash(content: int) -> bytes:
    """Return a 32-byte hash of a block, as in an engine."""
    length = 8 if content < 1 << 63 else 16  # a closed loop that repeats sessions gives their blocks new ids
    return hashlib.blake2b(content.to_bytes(length, "little", signed=True), digest_size=32).digest()


class _AsTheyCome(Mapping[Turn, Floats]):
    """Curves of one run of a closed loop, computed on first access, because arrivals depend on the cache.

    Args:
        answer: called with a turn and its arrival; returns None without a curve.
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
    """Return the sidecar's return curves at AGES by turn, without turns before the model has enough data.

    One sidecar serves all engines and learns from every request at its `nominal_arrivals`. Except in a closed loop, curves do
    not depend on the cache, so they are computed once for all capacities and policies.
    """
    if workload.loop is not None:
        return _AsTheyCome(partial(take_in, OnlineReturns()))
    known = _learnt.get(workload)
    if known is None:
        online = OnlineReturns()
        curves = ((turn, take_in(online, turn, arrival)) for arrival, turn in nominal_arrivals(workload))
        known = _learnt[workload] = {turn: curve for turn, curve in curves if curve is not None}
    return known


def nominal_arrivals(workload: Workload) -> list[tuple[float, Turn]]:
    """Return all turns with their arrivals, seconds, in order.

    In a closed workload arrivals depend on the cache. These are at nominal cost, with nothing cached and no waiting. They
    differ from those of a run by tenths of a second.
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
