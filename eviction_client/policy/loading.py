"""Load or compute: how much of what a tier has of a prompt is loaded; the rest is computed again.

A load pays if it takes less of all requests' time than the prefill that it saves. To compare seconds per token is wrong: where
prefill is short, what a request computes delays all that wait behind it. Of m missing tokens a tier has t, and k of them are
loaded. With p seconds of prefill per token, l seconds of transfer per token and a seconds per load, they take

    c = (m - k) p  seconds of prefill        x = a + k l  seconds of transfer, if k > 0

and L seconds of other transfers come first. Then k costs all requests, in seconds of waiting for their first tokens,

    L + x + d + c                             of this request, where d > 0 if k > 0: an engine sees a load's end after a step,
    w c + A c (w s + c / 2)                   of the w requests behind it, and of later ones,
    q x + B x (L + x / 2)                     of the q loads behind it, taken to be as many as are before it, and of later ones,

where s is the mean prefill of a request. A second of work delays every later request of its busy period. By Little's law of an
M/G/1 queue those are A = rate of requests / (1 - load) per second of work that waits (Kleinrock 1975, "Queueing Systems" I,
5.8), and B of the loads. The cost is quadratic in k, so its minimum is at 0, at t, or where its derivative is 0.

All numbers are learned from what happened. Until enough loads have been measured, everything is loaded, as engines do; later a
small load is tried now and then, so that the numbers stay current. A guard compares with that: see :class:`StockGhost`.
"""

import math
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

MEASURED_LOADS: Final = 16
"""Loads to measure before the first choice."""
PROBE_S: Final = 60.0
PROBE_AFTER: Final = 32
PROBE_TOKENS: Final = 4096
"""A load of so many tokens is tried if none has ended for this time, and so many requests in a row computed all."""
MOST_PROBE_AFTER: Final = 512
"""After a try that took more than half of what was expected, the next one comes after twice as many requests, up to these."""
AVERAGED_S: Final = 300.0
"""Time constant of the rates of requests, loads and their work."""
LEAST_AVERAGED_S: Final = 30.0
MOST_LOAD: Final = 0.9
"""Load of a server above which the number of later requests is not taken to grow any more."""
MEASURED_WEIGHT: Final = 0.5 ** (1 / 64)
"""Weight of a measured load compared with the one after it: a half-life of 64 loads."""
MOST_PENDING: Final = 4096
"""Loads under way that are remembered."""
LONGEST_S: Final = 60.0
"""A transfer that took longer counts as so long. An engine that saw a load's end so late was paused, or its clock was set."""
LOST_S: Final = 600.0
"""A load that is under way for this time is forgotten. It will not end, and must not count as one before all later loads."""
LOSS_S: Final = 10.0
"""Seconds of waiting, of all requests together, that the choices may lose to stock before stock is in force."""
LOSS_HALF_LIFE_S: Final = 600.0
"""Half-life of what the choices lost or gained."""
HOLDS_S: Final = 600.0
MOST_HOLDS_S: Final = 4800.0
"""For how long stock is in force the first time, and at most."""


class Seconds(NamedTuple):
    """What a load and a prefill take.

    Attributes:
        load, loaded: seconds of transfer per load, and per token loaded.
        computed: seconds per token computed.
        delay: seconds from the end of a load's transfer until its request goes on.
    """

    load: float
    loaded: float
    computed: float
    delay: float = 0.0


class LoadOrCompute:
    """Chooses how much a request loads. One for each tier, in the engine's thread; every call takes O(1).

    Args:
        prefill_s: returns the seconds that the engine takes per prompt token, > 0; None: not known yet, so all is loaded.
        clock: seconds; never goes back.
        parts: whether a part may be loaded of what the tier has; else all or nothing.
        unit: tokens at whose multiples from a prompt's start a part may end, and the least that is loaded.

    Attributes:
        chosen: requests whose prefix in the tier was loaded (``loaded``), loaded in part (``part``) or computed (``computed``).
        transfers: times of the measured loads.
        prefill_s, parts, unit: the arguments.
    """

    def __init__(
        self, *, prefill_s: Callable[[], float | None], clock: Callable[[], float], parts: bool = True, unit: int = 1
    ) -> None:
        self.chosen = {"loaded": 0, "part": 0, "computed": 0}
        self.transfers = TimeByTokens()
        self.stock = StockGhost()
        self.prefill_s = prefill_s
        self._clock = clock
        self.parts = parts
        self.unit = unit
        self._delays = self._delayed_s = 0.0
        """Decaying sums: measured delays, and their seconds."""
        self._pending: dict[Hashable, tuple[int, float, float]] = {}
        """Tokens, start, and ``_moved`` at the start, of the loads under way, the oldest first."""
        self._moved = 0.0
        """Seconds of all transfers that have ended."""
        self._pending_tokens = 0
        self._loaded_at = -math.inf
        self._computed = 0
        """Requests in a row that computed what the tier has."""
        self._try_after = PROBE_AFTER
        self._tried: Seconds | None = None
        """What was measured before the latest try; None: it has ended."""
        self._averaged_at = clock()
        self._averaged_s = 0.0
        self._requests = self._prefills = self._loads = self._transferred = 0.0
        """Decaying sums: requests and their seconds of prefill, loads and their seconds of transfer."""

    @property
    def unended(self) -> int:
        """Number of the loads that have not ended."""
        return len(self._pending)

    @property
    def delay_s(self) -> float:
        """Mean seconds that loads took beyond their transfers and those before."""
        return self._delayed_s / self._delays if self._delays else 0.0

    @property
    def loads_all(self) -> bool:
        """Whether everything is loaded, because too little is measured, or because the choices have lost to that."""
        return self._seconds() is None or self.stock.in_force

    def choose(self, found: int, missing: int, *, waiting: int, arrived: float | None = None, held: int = 0) -> int:
        """Return how many tokens a request loads that is next to be served.

        Args:
            found: tokens that the tier has beyond the pool.
            missing: prompt tokens that the pool lacks, ``found`` included.
            waiting: requests that wait behind it.
            arrived: when the request arrived; None: now.
            held: prompt tokens before those, which the pool has.
        """
        now = self._clock()
        tokens, seconds = found, self._seconds()
        if seconds is not None:
            if found > 0:
                cheapest = self._cheapest(found, missing, waiting, now, seconds)
                if not self.stock.holds(now):
                    tokens = self._whole_units(cheapest, found, held)
            before = self._before(seconds)
            self.stock.add(now if arrived is None else arrived, now, found, tokens, missing, seconds, before=before)
        if found > 0:
            self._computed = 0 if tokens else self._computed + 1
            if tokens and self._tried is None:
                self._try_after = PROBE_AFTER
            self.chosen["loaded" if tokens == found else "part" if tokens else "computed"] += 1
        return tokens

    def computes(self, tokens: int) -> None:
        """Called when a request begins to compute this many prompt tokens."""
        self._average()
        self._requests += 1.0
        self._prefills += tokens * (self.prefill_s() or 0.0)

    def begin(self, load: Hashable, tokens: int) -> None:
        """Called when a load begins."""
        self.drop(load)
        if len(self._pending) >= MOST_PENDING:
            self.drop(next(iter(self._pending)))
        self._pending[load] = tokens, self._clock(), self._moved
        self._pending_tokens += tokens
        self._average()
        self._loads += 1.0
        self._transferred += self.transfers.seconds(tokens)

    def end(self, load: Hashable, seconds: float | None = None, tokens: int | None = None) -> None:
        """Called when a load is done.

        Args:
            seconds: of its transfer; None: since it began, or since the load before it.
            tokens: that it loaded, of a tier that did not know them when it began. Such a load also waited for its engine, so
                no delay is learned from it.
        """
        begun = self._pending.get(load)
        if begun is None:
            return
        self.drop(load)
        now = self._clock()
        began_with, at, moved = begun
        took = now - max(at, self._loaded_at) if seconds is None else seconds
        if took > LONGEST_S:
            took = LONGEST_S
        self._loaded_at = now
        loaded = began_with if tokens is None else tokens
        delay = max(now - at - (self._moved + took - moved), 0.0) if tokens is None else 0.0
        if (tried := self._tried) is not None:
            self._tried = None
            expected = tried.load + loaded * tried.loaded + (tried.delay if tokens is None else 0.0)
            self._try_after = PROBE_AFTER if 2 * (took + delay) < expected else min(2 * self._try_after, MOST_PROBE_AFTER)
        if self.transfers.add(loaded, took) and tokens is None:
            self._moved += took
            if delay <= LONGEST_S:
                self._delays = MEASURED_WEIGHT * self._delays + 1.0
                self._delayed_s = MEASURED_WEIGHT * self._delayed_s + delay

    def under_way(self, load: Hashable) -> int:
        """Return the tokens of a load that has begun, 0 if there is none."""
        return self._pending.get(load, (0, 0.0, 0.0))[0]

    def drop(self, load: Hashable) -> None:
        """Called when a load failed, or its request has ended."""
        begun = self._pending.pop(load, None)
        if begun is not None:
            self._pending_tokens -= begun[0]

    def _seconds(self) -> Seconds | None:
        """Return what is measured; None: too little is."""
        prefill_s = self.prefill_s()
        if prefill_s is None or self.transfers.measured < MEASURED_LOADS:
            return None
        return Seconds(self.transfers.fixed_s, self.transfers.token_s, prefill_s, self.delay_s)

    def _cheapest(self, found: int, missing: int, waiting: int, now: float, seconds: Seconds) -> int:
        """Return the tokens to load at the least cost."""
        while self._pending and now - self._pending[load := next(iter(self._pending))][1] >= LOST_S:
            self.drop(load)
        if self._computed >= self._try_after and not self._pending and now - self._loaded_at >= PROBE_S:
            self._computed = 0
            self._tried = seconds
            self.transfers.discount()
            self._delays, self._delayed_s = self._delays / 2, self._delayed_s / 2
            return min(found, max(PROBE_TOKENS, 2 * self.unit)) if self.parts else found
        self._average()
        fixed, per_token, prefill_s, delay = seconds
        past = max(self._averaged_s, LEAST_AVERAGED_S)
        later = self._requests / past / (1.0 - min(self._prefills / past, MOST_LOAD))
        later_loads = self._loads / past / (1.0 - min(self._transferred / past, MOST_LOAD))
        before = self._before(seconds)
        loads = len(self._pending)
        backlog = waiting * self._prefills / max(self._requests, 1.0)

        def cost(tokens: float) -> float:
            computes = (missing - tokens) * prefill_s
            others = computes * (waiting + later * (backlog + computes / 2))
            if tokens <= 0:
                return computes + others
            moves = fixed + tokens * per_token
            return before + moves + delay + computes + others + moves * (loads + later_loads * (before + moves / 2))

        choices = [float(found), 0.0]
        curvature = later_loads * per_token**2 + later * prefill_s**2
        if curvature > 0.0 and self.parts:
            saves = prefill_s * (1 + waiting + later * (backlog + missing * prefill_s))
            takes = per_token * (1 + loads + later_loads * (before + fixed))
            best = (saves - takes) / curvature
            if 0.0 < best < found:
                choices.append(best)
        return int(min(choices, key=cost))

    def _before(self, seconds: Seconds) -> float:
        """Return the seconds of the transfers under way."""
        return len(self._pending) * seconds.load + self._pending_tokens * seconds.loaded

    def _whole_units(self, tokens: int, found: int, held: int) -> int:
        """Return the most of these tokens that a tier loads that loads in units."""
        if tokens >= found:
            return found
        whole = (held + tokens) // self.unit * self.unit - held
        return whole if whole >= self.unit else 0

    def _average(self) -> None:
        """Let the sums decay until now."""
        now = self._clock()
        kept = math.exp(-max(now - self._averaged_at, 0.0) / AVERAGED_S)
        self._averaged_at = now
        self._averaged_s = kept * self._averaged_s + (1.0 - kept) * AVERAGED_S
        self._requests *= kept
        self._prefills *= kept
        self._loads *= kept
        self._transferred *= kept


class TimeByTokens:
    """Time of a load, or of a step's prefill, by its tokens: least squares over the latest, neither part below 0.

    Attributes:
        measured: how many were measured.
        fixed_s, token_s: seconds each, and per token.
        most_token_s: the upper end of the 95% interval of ``token_s``, at most all seconds by all tokens.
    """

    def __init__(self) -> None:
        self.measured = 0
        self.fixed_s = self.token_s = self.most_token_s = 0.0
        self._sums = [0.0] * 6
        """Weights; tokens; seconds; squared tokens; tokens x seconds; squared seconds."""

    def seconds(self, tokens: int) -> float:
        """Return the time that a load takes once it is its turn."""
        return self.fixed_s + tokens * self.token_s

    def discount(self) -> None:
        """Halve the weight of all that was measured so far, because it is old."""
        self._sums = [each / 2 for each in self._sums]

    def add(self, tokens: int, seconds: float) -> bool:
        """Count one that took this time after the one before it; return whether it can be."""
        if tokens <= 0 or not 0.0 <= seconds <= LONGEST_S:
            return False
        self.measured += 1
        new = (1.0, tokens, seconds, tokens * tokens, tokens * seconds, seconds * seconds)
        self._sums = [MEASURED_WEIGHT * old + each for old, each in zip(self._sums, new, strict=True)]
        n, x, y, xx, xy, yy = self._sums
        spread = n * xx - x * x
        spreads = spread > 1e-9 * n * xx
        slope = (n * xy - x * y) / spread if spreads else y / x
        intercept = (y - slope * x) / n
        self.most_token_s = y / x
        if spreads and slope > 0.0 and n > 2.0:
            scatter = max(yy - intercept * y - slope * xy, 0.0) / (n - 2.0)
            self.most_token_s = min(slope + 2.0 * math.sqrt(scatter * n / spread), y / x)
        if intercept < 0.0:
            slope, intercept = xy / xx, 0.0
        elif slope < 0.0:
            slope, intercept = 0.0, y / n
        self.token_s, self.fixed_s = slope, intercept
        return True


class StockGhost:
    """The guard: two simulated engines, one with the choices, and one that loads all, as stock does.

    Both get the same requests, and serve their prefill and their loads in order, with the learned times. What the first loses
    to the second is added up, of all requests together, with a half-life of LOSS_HALF_LIFE_S. Beyond LOSS_S stock is in force
    for HOLDS_S, and until half of LOSS_S is left; each time in a row for twice as long, up to MOST_HOLDS_S. While it is, the
    first engine loads all as well. Choices made for another engine's queues would be no choices for its own, and would always
    seem to lose. So the choices lose at most LOSS_S to stock, all requests together, and what the last request loses, before
    each of these times.

    Attributes:
        lost: seconds.
        gained: seconds that the choices have won from stock in all, without decay. Below 0: lost.
        in_force: whether everything is loaded.
        times: how often stock was put in force.
    """

    def __init__(self) -> None:
        self.lost = self.gained = 0.0
        self.in_force = False
        self.times = 0
        self._at = -math.inf
        self._held_until = -math.inf
        self._holds_s = HOLDS_S
        self._ours: list[float] = []
        """When the prefill and the transfers of the engine that chooses end; ``_stocks``: of stock."""
        self._stocks: list[float] = []

    def holds(self, now: float) -> bool:
        """Return whether everything is loaded now."""
        if self.in_force and now >= self._held_until and self.lost <= LOSS_S / 2:
            self.in_force = False
        return self.in_force

    def add(
        self, arrived: float, now: float, found: int, chosen: int, missing: int, seconds: Seconds, *, before: float = 0.0
    ) -> None:
        """Count a request. ``before``: seconds of the transfers under way, with which both begin."""
        if not self._ours:
            self._ours, self._stocks = [arrived, now + before], [arrived, now + before]
        elif self._at < now:
            self.lost *= 0.5 ** ((now - self._at) / LOSS_HALF_LIFE_S)
        self._at = now
        ours = self.serve(self._ours, arrived, chosen, missing, seconds)
        stock = self.serve(self._stocks, arrived, found, missing, seconds)
        self.lost += ours - stock
        self.gained += stock - ours
        if self.lost <= 0.0:
            self._holds_s = HOLDS_S
        elif self.lost > LOSS_S and not self.in_force:
            self.in_force = True
            self.times += 1
            self._held_until = now + self._holds_s
            self._holds_s = min(2 * self._holds_s, MOST_HOLDS_S)

    @staticmethod
    def serve(until: list[float], arrived: float, loads: int, missing: int, seconds: Seconds) -> float:
        """Return when the first token of a request comes."""
        fixed, per_token, per_computed, delay = seconds
        computes = (missing - loads) * per_computed
        begins = max(until[0], arrived)
        if loads:
            until[1] = max(until[1], begins) + fixed + loads * per_token
            first = max(begins, until[1] + delay) + computes
        else:
            first = begins + computes
        until[0] = begins + computes
        return first
