"""Loading ahead of a conversation's return, on a virtual clock: what would knowing the think times, or the returns, gain?

LMCache with our controller (`benchmarks.lmcache_counted`), an engine with few seats, and users of whom half think for 12 s and
half for 120 s (medians). Memory holds half of their conversations. Like vLLM, the engine looks a request up when it considers
it with a seat free, with ``eager`` when it arrives; it serves, in order, those that are loaded.

A *foresight* says when to load a conversation from disk. `Due` knows the return itself, which no predictor can. `Law` knows
each user's own law of think times and the share of conversations that go on, which is more than any predictor learns from
gaps and text.
"""

import math
import statistics
from array import array
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol

from rich.table import Table

from benchmarks.chat_users import Habits, Said, reply_of, script
from benchmarks.lmcache_counted import WARM_UP, Memory, World, figures
from benchmarks.virtual_lmcache import Found
from lpc.wire.terminal import console
from lpc_apps.lmcache.events import ObjectId

MEMORY: Final = Memory(chunks=312, chunk_bytes=1 << 18, disk_s=0.033)
HABITS: Final = Habits(users=48)
MEDIANS_S: Final = (12.0, 120.0)
SEATS: Final = 2
TURNS: Final = 1200
SEEDS: Final = (1, 2, 3)
LOADS: Final = 4
"""Most loads from disk at a time while another one may start ahead; LMCache serves eight."""
AGAIN_S: Final = 15.0
"""Least time between two loads of a conversation."""
LOOK_S: Final = 1.0
"""Seconds after which conversations to load are looked for again."""


class Thinking(NamedTuple):
    """A user between two requests: since when, median think time, time of the return (infinite: none), prompt's objects."""

    since: float
    median_s: float
    due: float
    objects: list[ObjectId]


class Foresight(Protocol):
    """Says whether to load a conversation now."""

    def loads(self, user: Thinking, now: float) -> bool:
        """Return whether it is time."""


@dataclass(frozen=True)
class Due:
    """Knows the return, and loads ``ahead_s`` before it."""

    ahead_s: float

    def loads(self, user: Thinking, now: float) -> bool:
        """Return whether the return is near."""
        return user.due - now <= self.ahead_s


@dataclass(frozen=True)
class Law:
    """Knows the user's law, and loads if the return within ``within_s`` has at least the probability ``least``."""

    within_s: float
    least: float

    def loads(self, user: Thinking, now: float) -> bool:
        """Return whether a return is likely enough."""
        age = now - user.since
        soon, gone = self._returned(age + self.within_s, user), self._returned(age, user)
        return soon - gone >= self.least * (1.0 - gone)

    @staticmethod
    def _returned(age: float, user: Thinking) -> float:
        return HABITS.goes_on * statistics.NormalDist(math.log(user.median_s), HABITS.think_sigma).cdf(math.log(max(age, 1e-9)))


@dataclass(eq=False)
class Request:
    """A request in the engine's queue; ``found``: what its look-up has found, None before it has."""

    user: int
    said: Said
    says: Generator[Said, str, None]
    objects: list[ObjectId]
    at: float
    asked: bool = False
    found: Found | None = None


class Queueing(World):
    """Users, node and service with an engine of SEATS seats.

    Attributes:
        fetched: chunks that were on disk only when a foresight loaded them.
    """

    def __init__(self, seed: int, *, learned: bool, eager: bool = False, foresight: Foresight | None = None) -> None:
        self.fetched = 0
        self._eager = eager
        self._foresight = foresight
        self._waiting: list[Request] = []
        self._seats = SEATS
        self._thinking: dict[tuple[int, float], Thinking] = {}
        self._loaded_at: dict[tuple[int, float], float] = {}
        super().__init__(replace(HABITS, users=0), seed, memory=MEMORY, learned=learned)
        for user in range(HABITS.users):
            says = script(replace(HABITS, think_s=MEDIANS_S[user % 2]), seed * 10_000 + user)
            self._think(user, says, next(says), [])
        if foresight is not None:
            self.time.after(LOOK_S, self._load_ahead)

    def _think(self, user: int, says: Generator[Said, str, None], said: Said, before: list[ObjectId]) -> None:
        key, due = (user, self.time()), self.time() + said.wait_s
        if before:
            goes_on = said.number > 1
            self._thinking[key] = Thinking(key[1], MEDIANS_S[user % 2], due if goes_on else math.inf, before)

        def speak() -> None:
            if said.number > 1:  # nobody learns that a conversation has ended
                self._thinking.pop(key, None)
            objects = self.node.objects(array("I", list(said.prompt.encode())))
            request = Request(user, said, says, objects, self.time())
            self._waiting.append(request)
            if self._eager:
                self._look_up(request)
            self._admit()

        self.time.after(said.wait_s, speak)

    def _look_up(self, request: Request) -> None:
        def found(what: Found) -> None:
            request.found = what
            self._admit()

        request.asked = True
        self.node.look_up(request.objects, found)

    def _admit(self) -> None:
        for request in list(self._waiting):
            if not self._seats:
                return
            if request.found is not None:
                self._waiting.remove(request)
                self._seat(request, request.found)
            elif not request.asked:
                self._look_up(request)

    def _seat(self, request: Request, found: Found) -> None:
        self._seats -= 1

        def ended(chain: list[ObjectId]) -> None:
            self._seats += 1
            self._think(request.user, request.says, request.says.send(reply_of(HABITS.reply)), chain)
            self._admit()

        self.serve(request.said, request.objects, request.at, found, ended)

    def _load_ahead(self) -> None:
        assert self._foresight is not None
        now = self.time()
        for key, user in self._thinking.items():
            if self.node.in_flight >= LOADS:
                break
            missing = self.node.on_disk_only(user.objects)
            rested = now - self._loaded_at.get(key, -math.inf) >= AGAIN_S
            if missing and rested and self._foresight.loads(user, now):
                self._loaded_at[key] = now
                self.fetched += missing
                self._load(user.objects)
        self.time.after(LOOK_S, self._load_ahead)

    def _load(self, objects: list[ObjectId]) -> None:
        def loaded(found: Found) -> None:
            held = objects[: found.memory + found.disk]
            self.node.read(held)
            self.node.end(held)

        self.node.look_up(objects, loaded)


CASES: Final[dict[str, dict[str, Any]]] = {
    "LMCache alone": {"learned": False},
    "LMCache alone, eager": {"learned": False, "eager": True},
    "controller": {"learned": True},
    "controller, eager": {"learned": True, "eager": True},
    "loads 2 s before the return": {"learned": True, "foresight": Due(2.0)},
    **{
        f"law: {least:.0%} within {within:.0f} s": {"learned": True, "foresight": Law(within, least)}
        for within, least in ((5.0, 0.3), (10.0, 0.2), (10.0, 0.4), (20.0, 0.4))
    },
}


def run(*, quick: bool = False) -> dict[str, Any]:
    """Run all cases; print a table; return the figures of each seed: mean seconds to the first token, chunks read from disk."""
    seeds, turns = (SEEDS[:1], 300) if quick else (SEEDS, TURNS)
    screen, rows = console(), {}
    table = Table(
        "", "first token, mean", "of the controller's", "worst seed", "chunks read", title="returning turns, modelled"
    )
    for name, case in CASES.items():
        rows[name] = [measured(seed, turns, **case) for seed in seeds]
    base = rows["controller"]
    for name, row in rows.items():
        ratios = [mine["ttft_mean_s"] / its["ttft_mean_s"] for mine, its in zip(row, base, strict=True)]
        mean, loads = (statistics.fmean(one[key] for one in row) for key in ("ttft_mean_s", "loaded_chunks"))
        table.add_row(name, f"{mean:.3f} s", f"{statistics.fmean(ratios):.2f}", f"{max(ratios):.2f}", f"{loads:,.0f}")
    screen.print(table)
    return {"seeds": seeds, "turns": turns, "cases": rows}


def measured(seed: int, turns: int, **case: Any) -> dict[str, float]:
    """Return the mean seconds to the first token of returning turns, and the chunks read from disk, of ``turns`` turns."""
    found = figures(Queueing(seed, **case), WARM_UP, turns, MEMORY)
    return {name: found[name] for name in ("ttft_mean_s", "loaded_chunks")}
