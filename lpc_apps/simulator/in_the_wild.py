"""What section 3 of KVCache Cache in the Wild (Wang et al., USENIX ATC 2025) measures of a service's requests, of one log.

Blocks are those of full prompts, and hits those of an infinite cache that also holds replies, as in
`lpc_apps.simulator.describe`. A *kind* is a request's place in its conversation as far as the log shows it: the only turn, the
first of several, or a later one. Types are the categories of the log. A type beyond the MOST_TYPES with most requests counts
as OTHERS, unless it is the only such one.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from lpc_apps.logs.traces import Trace
from lpc_apps.logs.traces.request import turn_bucket
from lpc_apps.simulator.characteristics import may_go_on
from lpc_apps.simulator.segments import Segment
from lpc_apps.simulator.workload import Turn, Workload

KINDS: Final = ("single", "first", "later")
"""The only turn of a conversation, the first of several, a later one."""
MOST_TYPES: Final = 5
ALL, OTHERS, UNNAMED = "(all)", "(others)", "(none)"
"""Types of requests of a log without types, of the less frequent types, and of requests without one."""
WIDTHS_S: Final = (60, 300, 900, 3600)
"""Widths of the intervals of time, seconds: the first that makes at most MOST_INTERVALS. Hours are those of the day."""
MOST_INTERVALS: Final = 24
OFFSETS: Final = (0, 1_000, 4_000, 16_000, 64_000)
"""First offsets of the bands of a prompt, tokens."""
WITHIN_S: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, 86_400)
"""Horizons of shares of reuses and lives, seconds."""
TOP: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
"""Shares of blocks and users whose part of all is shown."""

T = TypeVar("T")

Weighted = list[tuple[float, int]]
"""Numbers, each with how many blocks have it."""


def in_the_wild(trace: Trace, workload: Workload) -> dict[str, Any]:
    """Return the figures, as JSON values.

    - `kinds`, by KINDS: requests, prompt tokens, hit tokens, and `own`, those of them whose block the same conversation used
      last;
    - `types`, by type: requests, share of them that are a turn after the first, conversations that begin with the type, share
      of these with several turns, and `next_turn` by interval of time: turns, and the share of them with a successor. The
      turns that may go on after the log do not count;
    - `over_time`, by interval of time, UTC or since the start of a log without a date: requests, prompt tokens, hit tokens,
      hit tokens of later turns, and the median life, seconds, of the blocks that were first used in it and then again (None:
      no block was). Lives that go on at the end of the log are cut there;
    - `interval_s`: width of the intervals; `of_day`: whether those of all days count together;
    - `reuse_within`, `life_within`, by type: number, and share within each of WITHIN_S. A reuse has the type of the use
      before, a life that of the last use;
    - `offsets`: for each band from OFFSETS on: uses of blocks, share of them that are reuses, and p50 and p90 of the *stride*:
      tokens that other prompts read between the two uses;
    - `skew`: share of the reuses by share of the blocks (`blocks`), and share of turns and hits by share of users, the
      busiest first.
    """
    turns = sorted(workload.turns(), key=attrgetter("index"))
    seen = _Seen(trace, workload, turns)
    return {
        "kinds": {kind: seen.kinds[kind] for kind in KINDS},
        "types": _types(trace, turns, seen),
        "over_time": seen.over_time(),
        "interval_s": seen.interval_s,
        "of_day": seen.of_day,
        "reuse_within": {name: _within(seen.reuses[name]) for name in seen.types},
        "life_within": {name: _within(lives) for name, lives in seen.lives_by_type().items()},
        "offsets": seen.offsets(),
        "skew": seen.skew(),
    }


def kinds_of(turns: Sequence[Turn]) -> list[str]:
    """Return the kind of each turn. One whose number is above 1 is a later one, even if the log lacks those before it."""
    of = Counter(turn.conversation for turn in turns)
    begun: set[str] = set()
    kinds = []
    for turn in turns:
        known = turn.conversation in begun
        begun.add(turn.conversation)
        kinds.append("later" if known or turn.turn > 1 else "first" if of[turn.conversation] > 1 else "single")
    return kinds


def types_of(turns: Sequence[Turn]) -> Callable[[str], str]:
    """Return a function from a category to its type. A log whose categories only repeat the turn has one type, ALL."""
    if all(turn.category == turn_bucket(turn.turn) for turn in turns):
        return lambda _: ALL
    counts = Counter(turn.category for turn in turns)
    kept = {name for name, _ in counts.most_common(MOST_TYPES if len(counts) > MOST_TYPES + 1 else None)}
    return lambda category: (category or UNNAMED) if category in kept else OTHERS


def intervals_of(trace: Trace) -> tuple[int, bool, Callable[[float], str]]:
    """Return the width of the intervals, whether they are hours of the day, and a function from an arrival to its interval.

    An interval's name is the time at which it begins: ``17:05``. Hours of several days count together.
    """
    start = trace.start or 0.0
    width = next((each for each in WIDTHS_S if trace.duration < each * (MOST_INTERVALS - 1)), WIDTHS_S[-1])

    def name(arrival: float) -> str:
        minute = int((start + arrival) // width * width) // 60 % 1440
        return f"{minute // 60:02}:{minute % 60:02}"

    return width, width == WIDTHS_S[-1], name


def quantile(values: Weighted, share: float) -> float | None:
    """Return the least number that this share of the blocks do not exceed; None without any."""
    if not values:
        return None
    ordered = sorted(values)
    weights = np.cumsum([weight for _, weight in ordered])
    return float(ordered[int(np.searchsorted(weights, share * weights[-1] * (1 - 1e-12)))][0])


class _Seen:
    """What an infinite cache sees of the requests, in one pass over their segments."""

    def __init__(self, trace: Trace, workload: Workload, turns: Sequence[Turn]) -> None:
        self.interval_s, self.of_day, self.interval = intervals_of(trace)
        self.type_of = types_of(turns)
        self.types = [name for name, _ in Counter(self.type_of(turn.category) for turn in turns).most_common()]
        self.kinds = {kind: dict.fromkeys(("requests", "tokens", "hits", "own"), 0) for kind in KINDS}
        self.reuses: defaultdict[str, Weighted] = defaultdict(list)
        self._times: dict[str, dict[str, int]] = {}
        self._size = size = workload.block_tokens
        self._bands = [-(-offset // size) for offset in OFFSETS]
        self._uses = [0] * len(OFFSETS)
        self._strides: list[Weighted] = [[] for _ in OFFSETS]
        self._first: dict[Segment, float] = {}
        self._last: dict[Segment, tuple[float, str, int]] = {}
        """Arrival, type, and tokens read up to its end, of the last prompt with the segment."""
        self._counts: Counter[Segment] = Counter()
        self._users: dict[str, list[int]] = {}
        self.kinds_by_turn = kinds_of(turns)
        held_by: dict[Segment, str] = {}
        read = 0
        for turn, kind in zip(turns, self.kinds_by_turn, strict=True):
            servable, prompt = turn.servable(size), len(turn.contents)
            path = workload.paths.of(turn)
            hits = own = 0
            for segment in path:
                if segment not in held_by:
                    break
                if segment.depth < servable:
                    hits += segment.size
                    own += segment.size * (held_by[segment] == turn.conversation)
            for segment in path:
                held_by[segment] = turn.conversation
                if segment.depth < prompt:
                    self._use(segment, turn.arrival, self.type_of(turn.category), read, read + turn.input_tokens)
            read += turn.input_tokens
            found = {"requests": 1, "tokens": turn.input_tokens, "hits": hits * size}
            later = hits * size if kind == "later" else 0
            of_time = self._times.setdefault(
                self.interval(turn.arrival), dict.fromkeys(("requests", "tokens", "hits", "later"), 0)
            )
            for counts, more in ((self.kinds[kind], {**found, "own": own * size}), (of_time, {**found, "later": later})):
                for name, number in more.items():
                    counts[name] += number
            if turn.user:
                of_user = self._users.setdefault(turn.user, [0, 0])
                of_user[0] += 1
                of_user[1] += hits

    def _use(self, segment: Segment, now: float, kind: str, read: int, after: int) -> None:
        before = self._last.get(segment)
        if before is None:
            self._first[segment] = now
        else:
            self.reuses[before[1]].append((now - before[0], segment.size))
        ends = [*self._bands[1:], segment.depth + segment.size]
        for band, (begin, end) in enumerate(zip(self._bands, ends, strict=True)):
            blocks = min(end, segment.depth + segment.size) - max(begin, segment.depth)
            if blocks > 0:
                self._uses[band] += blocks
                if before is not None:
                    self._strides[band].append((read - before[2], blocks))
        self._last[segment] = now, kind, after
        self._counts[segment] += 1

    def _lives(self) -> Iterable[tuple[Segment, float, float, str]]:
        """Yield the segments that were used again, with their first and last use and its type."""
        for segment, count in self._counts.items():
            if count > 1:
                last, kind, _ = self._last[segment]
                yield segment, self._first[segment], last, kind

    def over_time(self) -> dict[str, dict[str, Any]]:
        lives: defaultdict[str, Weighted] = defaultdict(list)
        for segment, first, last, _ in self._lives():
            lives[self.interval(first)].append((last - first, segment.size))
        return {name: {**counts, "life_p50_s": quantile(lives[name], 0.5)} for name, counts in self.in_order(self._times)}

    def in_order(self, by_interval: Mapping[str, T]) -> Iterable[tuple[str, T]]:
        """Return what is known by interval, which came in the order of time, in the order in which it is shown."""
        return sorted(by_interval.items()) if self.of_day else by_interval.items()

    def lives_by_type(self) -> dict[str, Weighted]:
        lives: dict[str, Weighted] = {name: [] for name in self.types}
        for segment, first, last, kind in self._lives():
            lives[kind].append((last - first, segment.size))
        return lives

    def offsets(self) -> dict[str, dict[str, Any]]:
        return {
            str(offset): {
                "uses": uses,
                "reused": sum(blocks for _, blocks in strides) / uses,
                "stride_p50_tokens": quantile(strides, 0.5),
                "stride_p90_tokens": quantile(strides, 0.9),
            }
            for offset, uses, strides in zip(OFFSETS, self._uses, self._strides, strict=True)
            if uses
        }

    def skew(self) -> dict[str, dict[str, float]]:
        sizes = np.array([segment.size for segment in self._counts])
        reuses = np.array([count - 1 for count in self._counts.values()])
        found = {"blocks": _top(reuses, sizes)} if reuses.sum() else {}
        if self._users and sum(turns for turns, _ in self._users.values()) > 2 / 3 * self._counted:
            turns, hits = np.array(list(self._users.values())).T
            once = np.ones_like(turns)
            found |= {"turns": _top(turns, once), **({"hits": _top(hits, once)} if hits.sum() else {})}
        return found

    @property
    def _counted(self) -> int:
        return sum(of_kind["requests"] for of_kind in self.kinds.values())


def _types(trace: Trace, turns: Sequence[Turn], seen: _Seen) -> dict[str, dict[str, Any]]:
    requests: Counter[str] = Counter()
    later: Counter[str] = Counter()
    begun: dict[str, tuple[str, bool]] = {}
    """Type of a conversation's first request in the log, and whether it has several turns."""
    for turn, kind in zip(turns, seen.kinds_by_turn, strict=True):
        name = seen.type_of(turn.category)
        requests[name] += 1
        later[name] += kind == "later"
        begun.setdefault(turn.conversation, (name, kind != "single"))
    conversations = Counter(name for name, _ in begun.values())
    several = Counter(name for name, more in begun.values() if more)
    followed: dict[str, dict[str, list[bool]]] = {name: {} for name in seen.types}
    for request, goes_on in may_go_on(trace):
        followed[seen.type_of(request.category)].setdefault(seen.interval(request.arrival), []).append(goes_on)
    return {
        name: {
            "requests": requests[name],
            "later": later[name] / requests[name],
            "conversations": conversations[name],
            "multi_turn": several[name] / conversations[name] if conversations[name] else None,
            "next_turn": {
                at: {"turns": len(found), "share": sum(found) / len(found)} for at, found in seen.in_order(followed[name])
            },
        }
        for name in seen.types
    }


def _within(times: Weighted) -> dict[str, Any]:
    if not times:
        return {"blocks": 0, "within_s": {}}
    values, weights = np.array(times).T
    total = weights.sum()
    shares = {str(at): float(weights[values <= at].sum() / total) for at in WITHIN_S}
    last = next((number for number, at in enumerate(WITHIN_S, 1) if at >= values.max()), len(WITHIN_S))
    return {"blocks": int(total), "within_s": dict(list(shares.items())[:last])}


def _top(values: NDArray[np.int64], sizes: NDArray[np.int64]) -> dict[str, float]:
    """Return the part of all that the highest have, by their share of the number. ``sizes``: how many have each value."""
    order = np.argsort(-values, kind="stable")
    values, sizes = values[order], sizes[order]
    ends = np.cumsum(sizes)
    parts = np.cumsum(values * sizes)
    places = np.array(TOP) * ends[-1]
    shares = np.interp(places, np.concatenate(([0], ends)), np.concatenate(([0], parts))) / parts[-1]
    return {f"{share:g}": float(part) for share, part in zip(TOP, shares, strict=True)}
