"""The turns that a return model learns from: a bounded ring of numbers without text."""

import math
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray

from lpc.model.arrivals import UNSEEN, GapHistory
from lpc.model.returns.facts import WIDTH, Facts, Stratum, inputs, strata
from lpc.model.returns.hazards import EDGES, INTERVALS, Floats, interval_of
from lpc.model.returns.users import NO_USER, UserPast, Users

CAPACITY: Final = 20_000
"""Number of turns in memory: about 15 MiB."""
SPAN_S: Final = 7200.0
"""Minimum time span of the turns, seconds: if traffic is denser, only a sample of the conversations is stored."""
IDLE_S: Final = 60.0
"""Maximum pause that counts as time, so that neither a night without traffic nor a clock set forward makes turns decay."""
HALF_LIFE_S: Final = 1800.0
"""Half-life of a turn's weight, in seconds with traffic."""
OPENINGS: Final = 10_000
"""Maximum number of counted conversation openings."""
FORECASTERS: Final = 2
NUMBERS: Final = len(Facts._fields) - 1
"""Number of facts of a turn, without its category."""


class Past(NamedTuple):
    """State of a conversation up to a turn, in any sidecar.

    Attributes:
        history: arrivals.
        input_tokens, growth_tokens: facts of that turn, as in `Facts`.
    """

    history: GapHistory
    input_tokens: float
    growth_tokens: float


NO_PAST: Final = Past(UNSEEN, np.nan, np.nan)


class Arrival(NamedTuple):
    """What is known of a turn when it arrives.

    Attributes:
        conversation: an opaque name, equal for all of its turns; empty if it cannot be recognised.
        asked_at: seconds since the epoch.
        facts: facts about the turn, without those that are known only when it is answered (`openings`, `model_log_odds`).
        opening: digest of the conversation's beginning; empty if unknown.
        past: the conversation up to this turn.
        user: an opaque name of who asks; empty if unknown.
        user_past: the user up to this turn, without it.
    """

    conversation: bytes
    asked_at: float
    facts: Facts
    opening: bytes = b""
    past: Past = NO_PAST
    user: bytes = b""
    user_past: UserPast = NO_USER

    def after(self, before: Past) -> Self:
        """Return the arrival with the facts that depend on the earlier turns. They are ignored if the clock was set back."""
        if self.asked_at < before.history.latest - IDLE_S:
            before = NO_PAST
        history = before.history.arrive(self.asked_at)
        growth = max(self.facts.input_tokens - before.input_tokens, 0.0)
        facts = self.facts._replace(
            growth_tokens=growth,
            last_gap=history.gaps.last,
            mean_gap=float(np.exp(history.gaps.mean_log)),
            growth_before=before.growth_tokens,
        )
        return self._replace(facts=facts, past=Past(history, facts.input_tokens, growth))

    def by(self, before: UserPast) -> tuple[Self, UserPast]:
        """Return the arrival with the facts that depend on the user's earlier turns, and the user with this one.

        Call it after :meth:`after`.
        """
        history, earlier = self.past.history, before.conversations - (self.past.history.number > 0)
        facts = self.facts._replace(
            user_conversations=max(earlier, 0.0),
            user_went_on=(before.went_on + 0.5) / (before.conversations + 1.0),
            user_turns=before.turns / before.conversations if before.conversations > 0.0 else math.nan,
            user_gap=before.gap_s,
            user_since=max(self.asked_at - before.latest, 0.0),
            user_usual=before.usual(self.asked_at),
        )
        known = self._replace(facts=facts, user_past=before)
        return known, before.arrive(self.asked_at, history.gaps.last, second=history.number == 1)


def by_user(arrival: Arrival, users: Users) -> Arrival:
    """Return an arrival with the facts of its user, which it is added to."""
    if not arrival.user:
        return arrival
    known, past = arrival.by(users.get(arrival.user, arrival.asked_at))
    users.put(arrival.user, past)
    return known


@dataclass(eq=False, slots=True, kw_only=True)
class WatchedTurn:
    """A turn whose next one is awaited. Each attribute has one writer.

    Attributes:
        arrival: replaced, by `Conversations` or a sidecar's `TurnTracker`, if earlier turns become known.
        next_at: arrival of the conversation's next turn, from the same writer; None before it arrives.
        number: number in the memory, from `TurnMemory`; -1 if it is not in the sample, None before it is answered.
        openings: earlier conversations with the same beginning when it was answered, from `TurnMemory`.
    """

    arrival: Arrival
    next_at: float | None = None
    number: int | None = None
    openings: float = math.nan


class Conversations:
    """The latest turn of each conversation in a log with names. A sidecar recognises conversations in `TurnTracker`."""

    def __init__(self) -> None:
        self._latest: dict[bytes, WatchedTurn] = {}

    def arrive(self, arrival: Arrival, users: Users) -> tuple[WatchedTurn, WatchedTurn | None]:
        """Add a turn, in order of arrival, also to its user; return it, and the previous turn if there is one.

        Simultaneous arrivals are one turn: then the first one is returned.
        """
        before = self._latest.get(arrival.conversation)
        if before is not None and arrival.asked_at == before.arrival.asked_at:
            return before, None
        turn = WatchedTurn(arrival=by_user(arrival.after(NO_PAST if before is None else before.arrival.past), users))
        if before is not None:
            before.next_at = arrival.asked_at
        if arrival.conversation:
            self._latest[arrival.conversation] = turn
        return turn, before


@dataclass(frozen=True)
class Outcomes:
    """A snapshot of the outcomes of the turns in memory.

    Attributes:
        number: number of turns added until then; turn n is in row ``n % capacity``.
        inputs: [n, WIDTH] inputs of the network.
        strata: strata of each turn.
        interval, came, age: [n] interval and age (seconds) at which the next turn arrived or observation ended, and whether it
            arrived.
        waiting: [n] whether the next turn may still arrive.
        weight: [n] weights, which decay in time with traffic.
    """

    number: int
    inputs: NDArray[np.float32]
    strata: Sequence[list[Stratum]]
    interval: NDArray[np.int64]
    came: NDArray[np.bool_]
    age: Floats
    waiting: NDArray[np.bool_]
    weight: Floats


class TurnMemory:
    """Stores turns in a ring. Not thread-safe.

    Invariants: numbers of turns increase; turn ``n`` is in row ``n % capacity`` while it is among the last ``capacity``.
    Conversations are not stored, because their turns contain the facts about earlier turns.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.number = 0
        """Number of turns added, including overwritten ones."""
        self.returns = 0
        self.active_s = 0.0
        """Time with traffic."""
        self._latest_at = -np.inf
        self._every = 1
        self._inputs = np.zeros((capacity, WIDTH), np.float32)
        self._at = np.zeros(capacity)
        self._active = np.zeros(capacity)
        self._age = np.full(capacity, np.nan)
        self._came = np.zeros(capacity, np.bool_)
        self._forecast = np.full((capacity, FORECASTERS, INTERVALS), np.nan, np.float32)
        self._values = np.zeros((capacity, NUMBERS))
        self._categories = [""] * capacity
        self._strata: list[list[Stratum]] = [[()]] * capacity
        self._names: dict[Stratum, Stratum] = {}
        self._openings: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return min(self.number, self.capacity)

    def facts(self, turn: WatchedTurn, facts: Facts) -> Facts:
        """Return the facts about a turn with its `openings`; those of one that was added before do not change."""
        if turn.number is not None:
            return facts._replace(openings=turn.openings)
        if not turn.arrival.opening:
            return facts
        return facts._replace(openings=self._openings.get(turn.arrival.opening, 0))

    def take(self, turn: WatchedTurn, facts: Facts, row: NDArray[np.float32], forecast: Floats | None) -> None:
        """Add a turn, unless it was added before.

        Args:
            facts, row: facts about the turn, and its inputs [WIDTH].
            forecast: [FORECASTERS, INTERVALS] predicted hazards; None without a prediction.
        """
        if turn.number is not None:
            return
        turn.number, turn.openings = -1, facts.openings
        conversation, asked_at, opening = turn.arrival.conversation, turn.arrival.asked_at, turn.arrival.opening
        self._elapse(asked_at)
        if opening:
            self._openings[opening] = self._openings.get(opening, 0) + 1
            self._openings.move_to_end(opening)
            if len(self._openings) > OPENINGS:
                self._openings.popitem(last=False)
        if conversation and zlib.crc32(conversation) % self._every == 0:
            turn.number = self._remember(asked_at, facts, row, forecast)

    def record_return(self, turn: WatchedTurn) -> float | None:
        """Record that a turn's next one has arrived; return the gap, seconds. None if the turn was not waiting for it."""
        if turn.next_at is None or not self._waits(turn.number):
            return None
        gap = turn.next_at - turn.arrival.past.history.latest
        if not -IDLE_S <= gap < np.inf:  # another sidecar's clock differs
            self.leave(turn)
            return None
        row, gap = turn.number % self.capacity, max(gap, 0.0)
        self._age[row], self._came[row] = gap, gap < EDGES[-1]
        self.returns += 1
        return gap

    def leave(self, turn: WatchedTurn) -> None:
        """End the observation of a turn at age 0, because its next one would not be recognised."""
        if self._waits(turn.number):
            self._age[turn.number % self.capacity] = 0.0

    def forecast(self, numbers: NDArray[np.int64]) -> Floats:
        """Return the predictions of turns, [n, FORECASTERS, INTERVALS]; NaN without a prediction."""
        result: Floats = self._forecast[numbers % self.capacity].astype(np.float64)
        return result

    def outcomes(self, now: float) -> Outcomes:
        """Return a copy of the turns' outcomes until ``now``, seconds since the epoch."""
        kept = slice(0, len(self))
        waiting = np.isnan(self._age[kept])
        age = np.where(waiting, np.maximum(now - self._at[kept], 0.0), self._age[kept])
        came = self._came[kept] & (age < EDGES[-1])
        return Outcomes(
            self.number,
            self._inputs[kept].copy(),
            self._strata[kept],
            interval_of(age),
            came,
            age,
            waiting,
            0.5 ** ((self.active_s - self._active[kept]) / HALF_LIFE_S),
        )

    def state(self, now: float) -> dict[str, NDArray[np.generic]]:
        """Return a copy of the state: numbers and categories, without names of conversations."""
        some, outcomes = slice(0, len(self)), self.outcomes(now)
        return {
            "facts": self._values[some].copy(),
            "category": np.array(self._categories[some], np.str_),
            "age": outcomes.age,
            "came": outcomes.came,
            "active": self.active_s - self._active[some],
        }

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Load a state; observation of waiting turns ended when it was saved. Raises KeyError, ValueError: it is damaged."""
        values = np.asarray(state["facts"], np.float64)
        age, past = (np.asarray(state[name], np.float64) for name in ("age", "active"))
        came = np.asarray(state["came"], np.bool_)
        categories = [str(name) for name in state["category"]]
        if (
            values.ndim != 2
            or values.shape[1] != NUMBERS
            or not (len(values) == len(age) == len(past) == len(came) == len(categories))
        ):
            raise ValueError("columns of a return model's memory do not fit each other")
        if not (np.isfinite(age).all() and np.isfinite(past).all() and (age >= 0).all() and (past >= 0).all()):
            raise ValueError("ages of a return model's memory are not ages")
        order = np.argsort(-past)[-self.capacity :]
        rows = [Facts._make([*values[i].tolist(), categories[i]]) for i in order]
        count = len(rows)
        self._inputs[:count] = inputs(rows)
        self._values[:count], self._categories[:count] = values[order], [row.category for row in rows]
        self._strata[:count] = [self._chain(fact) for fact in rows]
        self._age[:count], self._came[:count] = age[order], came[order]
        self._active[:count] = -past[order]
        self.number, self.returns = count, int(came[order].sum())

    def _elapse(self, at: float) -> None:
        passed = at - self._latest_at
        if 0 < passed < np.inf:
            self.active_s += min(passed, IDLE_S)
        if passed > 0 or passed < -IDLE_S:  # a small step back is reordering; a large one is a clock set back
            self._latest_at = at

    def _waits(self, number: int | None) -> TypeGuard[int]:
        return (
            number is not None
            and number >= max(self.number - self.capacity, 0)
            and bool(np.isnan(self._age[number % self.capacity]))
        )

    def _remember(self, asked_at: float, facts: Facts, row: NDArray[np.float32], forecast: Floats | None) -> int:
        """Store a turn; return its number."""
        slot = self.number % self.capacity
        eighth = max(self.capacity // 8, 1)
        if self.number >= self.capacity and slot == 0 and 0 <= asked_at - self._at[0] < SPAN_S:
            self._every *= 2  # the ring filled in less than SPAN_S
        elif self._every > 1 and slot % eighth == 0 and asked_at - self._at[slot - eighth] > SPAN_S / 2:
            self._every //= 2  # at this rate the ring would take more than four times SPAN_S to fill
        self._inputs[slot], self._at[slot], self._active[slot] = row, asked_at, self.active_s
        self._age[slot], self._came[slot] = np.nan, False
        self._forecast[slot] = np.nan if forecast is None else forecast
        self._values[slot], self._categories[slot] = facts[:-1], facts.category
        self._strata[slot] = self._chain(facts)
        self.number += 1
        return self.number - 1

    def _chain(self, facts: Facts) -> list[Stratum]:
        if len(self._names) > 8 * self.capacity:
            self._names.clear()
        return [self._names.setdefault(name, name) for name in strata(facts)]
