"""A tier below the pool, such as CPU memory: what it stores, what it has of a prompt, and loads that take time.

As vLLM's CPU offload tier (0.32, ``v1/kv_offload``):

- A block is stored when it is computed, not when the pool evicts it. Blocks of a prompt that only the pool has are stored too.
  By default replies are not stored.
- A prompt is looked up in the pool first. The tier then serves the blocks that follow without a gap.
- A request whose prompt is continued in the tier uses the tier's blocks from there on; those before, which the pool has, age.
  Any other request uses all blocks of its prompt. Blocks are placed in order when the request ends, a chain's end first.
- What does not fit among the blocks of running requests is not stored.
- Loads are transferred one after the other. A load starts when its request is first in the queue and has its blocks. The engine
  computes other prompts until it is done, and then serves the request next.

One thing is coarser: blocks that all requests use together age together, also if the pool still has the first of them.

Copies to the tier take no time here, and the two directions do not slow each other down, as on a full-duplex link.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

from eviction_client.policy.loading import LoadOrCompute
from lpc_apps.simulator.cache import BlockCache
from lpc_apps.simulator.engine import FCFS, Engine, Held, PolicyFactory
from lpc_apps.simulator.replay import END, LOADED, PREFILLED, Replay
from lpc_apps.simulator.result import Result
from lpc_apps.simulator.segments import Path
from lpc_apps.simulator.waiting import Queueing
from lpc_apps.simulator.workload import Cost, Turn, Workload

Stores = Literal["prompts", "all"]
Loads = Literal["none", "all", "auto"]


TIMES: Final = ("ttft_mean_s", "ttft_p99_s", "latency_mean_s", "prefill_load", "throughput_tokens_s")
"""Figures of `Result` that depend on what is loaded."""


@dataclass(frozen=True)
class TierSettings:
    """A tier below the pool.

    Attributes:
        tokens: capacity.
        load_tokens_s: tokens loaded per second.
        load_s: seconds that each load takes in addition.
        stores: ``prompts``, or ``all``: replies too.
        loads: what is loaded of what the tier has: ``all``, ``none``, or ``auto``, by `eviction_client.policy.loading`.
    """

    tokens: int
    load_tokens_s: float
    load_s: float = 0.0
    stores: Stores = "prompts"
    loads: Loads = "all"


@dataclass
class TierCounts:
    """Counters of a tier after the warm-up, tokens.

    Attributes:
        found: prompt tokens that the tier has beyond the pool; ``loaded``: those of them that were loaded.
        stored: tokens copied to the tier.
        refused: requests whose blocks found no room.
        load_s: seconds of transfers.
    """

    found: int = 0
    loaded: int = 0
    stored: int = 0
    refused: int = 0
    load_s: float = 0.0


class Tier:
    """The blocks of a tier, ordered by a policy of their own.

    Args:
        blocks: capacity.
        counts: is added to.
    """

    def __init__(self, blocks: int, policy: PolicyFactory, workload: Workload, *, stores: Stores, counts: TierCounts) -> None:
        self.cache = BlockCache(blocks, policy(blocks))
        self._stores = stores
        self._size = workload.block_tokens
        self._counts = counts
        self._used: dict[Turn, Path] = {}

    def start(self, turn: Turn, hits: int, servable: int, now: float, *, counted: bool) -> int:
        """Use the tier's blocks of a request that starts, and store the others; return how many continue those in the pool.

        Args:
            hits: blocks of its prompt in the pool.
            servable: blocks of its prompt that a cache may serve.
        """
        cache = self.cache
        cache.policy.arrive(turn, now)
        path = cache.policy.path(turn)
        found = max(min(cache.hit_blocks(path, hits), servable) - hits, 0)
        first = hits if found else 0
        end = len(turn.all_contents if self._stores == "all" else turn.contents)
        used = tuple(segment for segment in path if first < segment.depth + segment.size and segment.depth < end)
        before = len(cache) + cache.evicted
        if cache.allocate(used, 0, now) is None:
            self._counts.refused += counted
            used = cache.whole(used)
            cache.allocate(used, 0, now)
        cache.start(turn, now)
        self._used[turn] = used
        if counted:
            self._counts.found += found * self._size
            self._counts.stored += (len(cache) + cache.evicted - before) * self._size
        return found

    def end(self, turn: Turn, now: float) -> None:
        """Place the blocks of a request that ends."""
        self.cache.release(self._used.pop(turn), 0, turn, now)


@dataclass(frozen=True, slots=True)
class Start:
    """When a request started, its blocks in the pool, and those that continue them in the tier."""

    at: float
    hits: int
    found: int


class TieredEngine(Engine):
    """An engine with a tier below its pool. Its hits include what was loaded.

    Args:
        policy: called twice: for the pool and for the tier.

    Attributes:
        counts: counters of the tier.
        chooser: decides what is loaded; None: all or nothing is.
        starts: how each request started.
        policy: the argument.
    """

    def __init__(
        self,
        replay: Replay,
        capacity_tokens: int,
        policy: PolicyFactory,
        tier: TierSettings,
        *,
        cost: Cost,
        queueing: Queueing = FCFS,
    ) -> None:
        super().__init__(replay, capacity_tokens, policy, cost=cost, queueing=queueing)
        self.policy = policy
        self.counts = TierCounts()
        self.chooser: LoadOrCompute | None = None
        if tier.loads == "auto":
            size = replay.workload.block_tokens
            self.chooser = LoadOrCompute(prefill_s=lambda: cost.prompt_token_s, clock=lambda: replay.now, unit=size)
        self.starts: dict[Turn, Start] = {}
        self._settings = tier
        blocks = max(tier.tokens // self._size, 1)
        self._tier = Tier(blocks, policy, replay.workload, stores=tier.stores, counts=self.counts)
        self._open: dict[Turn, Held] = {}
        """Open traffic: running requests."""
        self._unserved: deque[tuple[Turn, Held, int]] = deque()
        """Open traffic: requests that wait for the server, with the blocks that the tier has of them."""
        self._loaded: deque[tuple[Turn, Held, int]] = deque()
        """Requests whose load is done, with their tokens in the pool."""
        self._loads_until = 0.0

    def _admitted(self, turn: Turn, held: Held, path: Path, servable: int) -> None:
        found = self._tier.start(turn, held.hits, servable, held.since, counted=held.counted)
        both = held.hits + found
        evicted = self._sources.start(turn, path, both, servable, held.since, counted=held.counted)
        self.waiting.note(turn.input_tokens - both * self._size, evicted)
        if not self._in_turn:
            self._open[turn] = held
            self._end_as_if_alone(turn, held)
        self._serve_with(turn, held, found)

    def _serve_with(self, turn: Turn, held: Held, found: int) -> None:
        """Serve a request of which the tier has ``found`` blocks beyond the pool's."""
        self.starts[turn] = Start(held.since, held.hits, found)
        if self._in_turn:
            self._load_or_compute(turn, held, found, held.since)
        else:
            self._unserved.append((turn, held, found))
            self._go_on(held.since)

    def _serve(self, now: float) -> None:
        if not self._in_turn:
            super()._serve(now)
            return
        while self.prefilled_at <= now and (self._loaded or self.waiting):
            if self._loaded:
                self._compute_loaded(now)
                continue
            turn = self.waiting.first()
            if not self._start(turn, now):
                break
            self.waiting.remove(turn)

    def _go_on(self, now: float) -> None:
        """Let the server go on, if it is free."""
        if self._in_turn:
            self._serve(now)
            return
        while self.prefilled_at <= now and (self._loaded or self._unserved):
            if self._loaded:
                self._compute_loaded(now)
            else:
                self._load_or_compute(*self._unserved.popleft(), now)

    def _load_or_compute(self, turn: Turn, held: Held, found: int, now: float) -> None:
        tokens = self._to_load(turn, held, found * self._size)
        if not tokens:
            self._computes(turn, held, held.hits * self._size, now)
            return
        seconds = self._settings.load_s + tokens / self._settings.load_tokens_s
        self._loads_until = max(self._loads_until, now) + seconds
        if held.counted:
            self.counts.loaded += tokens
            self.counts.load_s += seconds
        if self.chooser is not None:
            self.chooser.begin(turn, tokens)
        self._replay.add(self._loads_until, LOADED, partial(self._end_load, turn, held, tokens))

    def _to_load(self, turn: Turn, held: Held, found: int) -> int:
        if self.chooser is None:
            return 0 if self._settings.loads == "none" else found
        waiting = len(self.waiting) - 1 if self._in_turn else len(self._unserved)
        pool = held.hits * self._size
        return self.chooser.choose(found, turn.input_tokens - pool, waiting=waiting, arrived=turn.arrival, held=pool)

    def _end_load(self, turn: Turn, held: Held, tokens: int, now: float) -> None:
        if self.chooser is not None:
            self.chooser.end(turn)
        self._loaded.append((turn, held, held.hits * self._size + tokens))
        self._go_on(now)

    def _compute_loaded(self, now: float) -> None:
        self._computes(*self._loaded.popleft(), now)

    def _computes(self, turn: Turn, held: Held, hit_tokens: int, now: float) -> None:
        if self.chooser is not None:
            self.chooser.computes(turn.input_tokens - hit_tokens)
        self._compute(turn, held, hit_tokens, now)
        if not self._in_turn:
            self._replay.add(self.prefilled_at, PREFILLED, self._go_on)

    def _end(self, turn: Turn, now: float) -> None:
        if self._in_turn:
            super()._end(turn, now)
            if turn not in self._running:
                self._tier.end(turn, now)
            return
        held = self._open.pop(turn)
        self.cache.release(held.path, held.blank, turn, now)
        self._tier.end(turn, now)
        self._replay.answered(turn, now)
        self._serve(now)


class _TimedEngine(TieredEngine):
    """Serves requests of open traffic whose starts are known from another run, without a cache."""

    known: Mapping[Turn, Start]

    def arrive(self, turn: Turn, now: float) -> bool:
        """Serve a request when it started in the other run; return whether it did."""
        start = self.known.get(turn)
        if start is None:
            self.result.refused += self._replay.counts_arrival(turn)
        elif start.at > now:
            self._replay.add(start.at, END, partial(self._begin, turn, start))
        else:
            self._begin(turn, start, now)
        return start is not None

    def _begin(self, turn: Turn, start: Start, now: float) -> None:
        held = Held((), 0, start.hits, 0, now, counted=self._replay.counts_start(turn))
        if held.counted:
            self.counts.found += start.found * self._size
        self._serve_with(turn, held, start.found)


def simulate_tier(
    workload: Workload,
    capacity_tokens: int,
    policy: PolicyFactory,
    tier: TierSettings,
    *,
    cost: Cost | None = None,
    queueing: Queueing = FCFS,
) -> TieredEngine:
    """Replay a workload on one engine with a tier; return the engine. Arguments and errors: see `TieredEngine`, `Engine`."""
    replay = Replay(workload)
    engine = TieredEngine(replay, capacity_tokens, policy, tier, cost=cost or Cost(), queueing=queueing)
    return _run(engine, replay)


def timed(
    other: TieredEngine, workload: Workload, tier: TierSettings, *, cost: Cost | None = None
) -> tuple[Result, TierCounts]:
    """Return what :func:`simulate_tier` counts at another rate of loads or prefill, or with other ``loads``: in moments.

    Hits do not depend on times if requests take their blocks when they arrive: in open traffic at fixed times.

    Args:
        other: of the same workload, capacities and stores.
    """
    replay = Replay(workload)
    engine = _TimedEngine(replay, workload.block_tokens, other.policy, replace(tier, tokens=0), cost=cost or Cost())
    engine.known = other.starts
    _run(engine, replay)
    result, counts, of = engine.result, engine.counts, other.result
    result.sources, result.unused, result.evicted, result.waits = of.sources, of.unused, of.evicted, of.waits
    result.waited = of.waited
    counts.stored, counts.refused = other.counts.stored, other.counts.refused
    return result, counts


LOADS: Final[tuple[Loads, ...]] = ("all", "none", "auto")


def tier_figures(
    workload: Workload,
    capacity_tokens: int,
    policy: PolicyFactory,
    tier: TierSettings,
    *,
    cost: Cost,
    queueing: Queueing = FCFS,
) -> dict[str, Any]:
    """Return the figures of a run that loads all (`Result.figures`), and what the tier does, for each of LOADS.

    Open traffic is replayed once. With ``in_turn`` and in a closed loop, hits depend on times, and each way to load has a run.
    """
    once = simulate_tier(workload, capacity_tokens, policy, replace(tier, loads="all"), cost=cost, queueing=queueing)
    again = workload.loop is not None or workload.closed or queueing.in_turn
    ways: dict[str, dict[str, Any]] = {}
    for loads in LOADS:
        settings = replace(tier, loads=loads)
        if loads == "all":
            result, counts = once.result, once.counts
        elif again:
            engine = simulate_tier(workload, capacity_tokens, policy, settings, cost=cost, queueing=queueing)
            result, counts = engine.result, engine.counts
        else:
            result, counts = timed(once, workload, settings, cost=cost)
        prompts = max(result.prompt_tokens, 1)
        figures = result.figures()
        ways[loads] = {
            "pool_hit_rate": (result.hit_tokens - counts.loaded) / prompts,
            "found_rate": counts.found / prompts,
            "loaded_rate": counts.loaded / prompts,
            "stored_rate": counts.stored / prompts,
            "not_stored": counts.refused,
            "load_busy": counts.load_s / result.seconds if result.seconds > 0 else 0.0,
            **{name: figures[name] for name in TIMES},
        }
    return {**once.result.figures(), "tier": {"tokens": tier.tokens, "load_tokens_s": tier.load_tokens_s, "loads": ways}}


def _run(engine: TieredEngine, replay: Replay) -> TieredEngine:
    replay.run(engine.arrive)
    engine.close(replay.last)
    engine.result.seconds = replay.seconds
    return engine
