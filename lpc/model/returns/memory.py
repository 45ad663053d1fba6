"""The turns that a return model learns from: a bounded memory of numbers, never text."""

import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpc.model.arrivals import UNSEEN, GapHistory
from lpc.model.returns.facts import WIDTH, Facts, Stratum, inputs, strata
from lpc.model.returns.hazards import EDGES, INTERVALS, Floats, interval_of

CAPACITY: Final = 20_000
"""Turns remembered: about 15 MiB."""
SPAN_S: Final = 7200.0
"""What the turns should span: where traffic is too dense for that, only a sample of the conversations is remembered."""
IDLE_S: Final = 60.0
"""The longest pause that counts as time: neither a night without traffic nor a clock set forward makes anything forgotten."""
HALF_LIFE_S: Final = 1800.0
"""Time with traffic after which a turn counts half."""
OPENINGS: Final = 10_000
"""Openings of conversations that are counted."""
FORECASTERS: Final = 2


class Past(NamedTuple):
    """What is known of a conversation up to a turn, wherever its turns arrived.

    Attributes:
        history: of arrivals.
        input_tokens, growth_tokens: of that turn, as `Facts` has them.
    """

    history: GapHistory
    input_tokens: float
    growth_tokens: float

    def arrive(self, at: float, input_tokens: float) -> "Past":
        """Return it after the next turn."""
        return Past(self.history.arrive(at), input_tokens, max(input_tokens - self.input_tokens, 0.0))


NO_PAST: Final = Past(UNSEEN, np.nan, np.nan)


class Arrived(NamedTuple):
    """A turn as it is answered.

    Attributes:
        conversation: an opaque name, the same for all of its turns; empty where it could not be recognised again.
        at: its arrival, seconds since the epoch.
        turn_count, input_tokens, reply_tokens, log_odds, category: as `Facts` has them.
        opening: a digest of how its conversation begins; empty where not known.
        past: what is known up to the turn before, here or elsewhere; None where there was none, or it is not known.
    """

    conversation: bytes
    at: float
    turn_count: int
    input_tokens: float
    reply_tokens: float
    log_odds: float
    category: str = ""
    opening: bytes = b""
    past: Past | None = None


@dataclass(slots=True)
class _Conversation:
    """Its latest turn. ``number``: -1 where that is not remembered."""

    history: GapHistory
    facts: Facts
    number: int


@dataclass(frozen=True)
class Outcomes:
    """What became of the remembered turns so far.

    Attributes:
        number: turns taken in until then; the nth is in row ``n % capacity``.
        inputs: [n, WIDTH] of the network.
        strata: of each turn.
        interval, came, age: [n] where each was left: the next turn came, or it was watched no longer; seconds.
        waiting: [n] whether the next turn may still come.
        weight: [n] by how long ago it was, in time with traffic.
    """

    number: int
    inputs: NDArray[np.float32]
    strata: Sequence[list[Stratum]]
    interval: NDArray[np.int64]
    came: NDArray[np.bool_]
    age: Floats
    waiting: NDArray[np.bool_]
    weight: Floats


@dataclass(frozen=True)
class Kept:
    """Copies of what is kept of a memory. ``past_s``: [n] time with traffic since each turn."""

    facts: list[Facts]
    outcomes: Outcomes
    past_s: Floats

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return them as arrays, which takes a tenth of a second: without a lock."""
        columns = len(Facts._fields) - 1
        return {
            "facts": np.array([fact[:-1] for fact in self.facts], np.float64).reshape(len(self.facts), columns),
            "category": np.array([fact.category for fact in self.facts], np.str_),
            "age": self.outcomes.age,
            "came": self.outcomes.came,
            "active": self.past_s,
        }


class TurnMemory:
    """Remembers turns in a ring. Not thread-safe.

    Invariants: a turn has a number that counts up; turn ``n`` is remembered while ``n`` is among the last ``capacity``, in
    place ``n % capacity``. A conversation knows the number of its latest turn only. Conversations in the sample are known as
    long as their turns are remembered; of others the ones that came last, for their gaps.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.number = 0
        """Turns taken in so far, with those that were forgotten since."""
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
        self._facts: list[Facts] = [Facts(1)] * capacity
        self._strata: list[list[Stratum]] = [[()]] * capacity
        self._names: dict[Stratum, Stratum] = {}
        self._sampled: OrderedDict[bytes, _Conversation] = OrderedDict()
        self._others: OrderedDict[bytes, _Conversation] = OrderedDict()
        self._openings: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return min(self.number, self.capacity)

    def facts(self, turn: Arrived) -> Facts:
        """Return what is known of a turn, before it is taken in."""
        before = self._before(turn)
        if before is not None and turn.at == before.history.latest:  # the same turn asked again
            return before.facts
        history = UNSEEN if before is None else before.history.arrive(turn.at)
        gaps = history.gaps
        growth = np.nan if before is None else max(turn.input_tokens - before.facts.input_tokens, 0.0)
        return Facts(
            turn.turn_count,
            turn.input_tokens,
            growth,
            gaps.last,
            float(np.exp(gaps.mean_log)),
            turn.reply_tokens,
            np.nan if before is None else before.facts.growth_tokens,
            self._openings.get(turn.opening, 0) if turn.opening else np.nan,
            turn.log_odds,
            turn.category,
        )

    def take(
        self, turn: Arrived, facts: Facts, row: NDArray[np.float32], forecast: Floats | None
    ) -> "tuple[int, float] | None":
        """Take a turn in; return the number and the age of the one that it follows, if that was waiting.

        Args:
            row: [WIDTH] its inputs.
            forecast: [FORECASTERS, INTERVALS] predicted hazards; None if nothing was predicted.
        """
        before = self._before(turn)
        if before is not None and turn.at <= before.history.latest:  # the same turn asked again, or one overtaken
            return None
        self._elapse(turn.at)
        if turn.opening:
            self._openings[turn.opening] = self._openings.get(turn.opening, 0) + 1
            self._openings.move_to_end(turn.opening)
            if len(self._openings) > OPENINGS:
                self._openings.popitem(last=False)
        if not turn.conversation:
            return None
        left = self._sampled.pop(turn.conversation, None) or self._others.pop(turn.conversation, None)
        followed = None
        if left is not None and turn.past is not None and left is not before:
            # Its next turn arrived elsewhere, and no sidecar has reported it yet.
            followed = self._follow(left, turn.past.history.latest)
        elif before is not None:
            followed = self._follow(before, turn.at)
        elif left is not None:
            self._leave(left)
        sampled = zlib.crc32(turn.conversation) % self._every == 0
        number = self._remember(turn, facts, row, forecast) if sampled else -1
        known = self._sampled if sampled else self._others
        history = (UNSEEN if before is None else before.history).arrive(turn.at)
        known[turn.conversation] = _Conversation(history, facts, number)
        if len(known) > self.capacity:
            known.popitem(last=False)
        return followed

    def arrive_elsewhere(self, conversation: bytes, at: float) -> "tuple[int, float] | None":
        """Note that a conversation's next turn arrived at another sidecar; return as `take` does."""
        known = self._sampled.get(conversation) or self._others.get(conversation)
        if known is None or at <= known.history.latest:
            return None
        self._sampled.pop(conversation, None)
        self._others.pop(conversation, None)
        return self._follow(known, at)

    def leave(self, conversation: bytes) -> None:
        """Watch a conversation no longer: its next turn will not be recognised."""
        known = self._sampled.pop(conversation, None) or self._others.pop(conversation, None)
        if known is not None:
            self._leave(known)

    def forecast(self, numbers: NDArray[np.int64]) -> Floats:
        """Return the predictions of turns, [n, FORECASTERS, INTERVALS]; NaN where nothing was."""
        result: Floats = self._forecast[numbers % self.capacity].astype(np.float64)
        return result

    def outcomes(self, now: float) -> Outcomes:
        """Return copies of what became of the turns until ``now``, seconds since the epoch."""
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

    def state(self, now: float) -> "dict[str, NDArray[np.generic]]":
        """Return the memory as arrays, to be kept: numbers and categories. Conversations are not named in it."""
        return self.kept(now).arrays()

    def kept(self, now: float) -> "Kept":
        """Return copies of what is kept, at once."""
        some = slice(0, len(self))
        return Kept(self._facts[some], self.outcomes(now), self.active_s - self._active[some])

    def restore(self, state: "dict[str, NDArray[np.generic]]") -> None:
        """Take a kept memory; turns that waited count as watched until then. Raises KeyError, ValueError: it is damaged."""
        values = np.asarray(state["facts"], np.float64)
        age, past = (np.asarray(state[name], np.float64) for name in ("age", "active"))
        came = np.asarray(state["came"], np.bool_)
        categories = [str(name) for name in state["category"]]
        if (
            values.ndim != 2
            or values.shape[1] != len(Facts._fields) - 1
            or not (len(values) == len(age) == len(past) == len(came) == len(categories))
        ):
            raise ValueError("columns of a return model's memory do not fit each other")
        if not (np.isfinite(age).all() and np.isfinite(past).all() and (age >= 0).all() and (past >= 0).all()):
            raise ValueError("ages of a return model's memory are not ages")
        order = np.argsort(-past)[-self.capacity :]
        rows = [Facts._make([*values[i].tolist(), categories[i]]) for i in order]
        count = len(rows)
        self._inputs[:count] = inputs(rows)
        self._facts[:count] = rows
        self._strata[:count] = [self._chain(fact) for fact in rows]
        self._age[:count], self._came[:count] = age[order], came[order]
        self._active[:count] = -past[order]
        self.number, self.returns = count, int(came[order].sum())

    def _before(self, turn: Arrived) -> _Conversation | None:
        """Return what is known of a turn's conversation; None as well where the clock was set back since."""
        known = self._sampled.get(turn.conversation) or self._others.get(turn.conversation)
        past = turn.past
        if past is not None and (known is None or known.history.latest < past.history.latest):
            growth = past.growth_tokens
            known = _Conversation(past.history, Facts(1, past.input_tokens, growth_tokens=growth), -1)
        return None if known is None or turn.at < known.history.latest - IDLE_S else known

    def _elapse(self, at: float) -> None:
        passed = at - self._latest_at
        if 0 < passed < np.inf:
            self.active_s += min(passed, IDLE_S)
        if passed > 0 or passed < -IDLE_S:  # arrivals overtake each other by a little; by more, the clock was set back
            self._latest_at = at

    def _waits(self, number: int) -> bool:
        return number >= max(self.number - self.capacity, 0) and bool(np.isnan(self._age[number % self.capacity]))

    def _leave(self, before: _Conversation) -> None:
        """Watch a turn no longer: nobody knows for how long it has been watched."""
        if self._waits(before.number):
            self._age[before.number % self.capacity] = 0.0

    def _follow(self, before: _Conversation, at: float) -> "tuple[int, float] | None":
        gap = at - before.history.latest
        if not self._waits(before.number):
            return None
        place = before.number % self.capacity
        self._age[place], self._came[place] = gap, gap < EDGES[-1]
        self.returns += 1
        return before.number, gap

    def _remember(self, turn: Arrived, facts: Facts, row: NDArray[np.float32], forecast: Floats | None) -> int:
        """Return the turn's number."""
        place = self.number % self.capacity
        eighth = max(self.capacity // 8, 1)
        if self.number >= self.capacity and place == 0 and 0 <= turn.at - self._at[0] < SPAN_S:
            self._every *= 2  # once around in too short a time
        elif self._every > 1 and place % eighth == 0 and turn.at - self._at[place - eighth] > SPAN_S / 2:
            self._every //= 2  # at this pace once around would take four times as long as it should
        self._inputs[place], self._at[place], self._active[place] = row, turn.at, self.active_s
        self._age[place], self._came[place] = np.nan, False
        self._forecast[place] = np.nan if forecast is None else forecast
        self._facts[place], self._strata[place] = facts, self._chain(facts)
        self.number += 1
        return self.number - 1

    def _chain(self, facts: Facts) -> list[Stratum]:
        if len(self._names) > 8 * self.capacity:
            self._names.clear()
        return [self._names.setdefault(name, name) for name in strata(facts)]
