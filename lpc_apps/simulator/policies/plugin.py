"""The plug-in's policy object (`eviction_client.policy`) on simulated blocks.

`plugin` runs as in an engine without a sidecar. `plugin-sidecar` has the groups of the sidecar's return model, which learns
from the first request on, and the probabilities of a head if the workload has them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from eviction_client.fleet_pool import FleetPool
from eviction_client.policy.ghosts import IN_USE_FOLLOWS
from eviction_client.policy.policy import Policy as Core
from eviction_client.policy.queue.free_queue import FreeQueue, Run, chain_of
from eviction_client.policy.request import TrackedRequest, Use
from eviction_client.policy.reuse_monitor import REMEMBERED
from eviction_client.stores.base import BlockStore, EngineId
from lpc.model.probability import logit
from lpc.model.returns.groups import CurveGroups
from lpc_apps.simulator.blocks import EDGE, Piece
from lpc_apps.simulator.ghosts import Samples, SegmentGhostCache
from lpc_apps.simulator.policy import EvictionPolicy, PolicySettings, register
from lpc_apps.simulator.segments import Path, Segment
from lpc_apps.simulator.sidecar import curves_of
from lpc_apps.simulator.workload import Turn, Workload


@register
class PluginPolicy(EvictionPolicy[Piece]):
    """The plug-in without a sidecar."""

    name = "plugin"
    title = "Plug-in without sidecar"
    rule = "the lowest value in the table of the block's reuse class, by the rule that hits most; no sidecar"
    source = "this project: eviction_client.policy"
    pools = True
    piece_type = Piece

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._now = self._in_use = 0.0
        self.core: Final[Core[Segment]] = Core(
            capacity,
            block_tokens=workload.block_tokens,
            clock=self._clock,
            rule=settings.rule,
            uses=SegmentUses(REMEMBERED * capacity),
            size_of=size_of,
            sample=Samples().of,
            ghost=SegmentGhostCache,
        )
        self.empty()
        self._requests: dict[Turn, TrackedRequest[Segment]] = {}
        self._finished: TrackedRequest[Segment] | None = None
        self._freed: Run | None = None
        self._pool: FleetPool[Segment] | None = None

    def empty(self) -> None:
        """Let the queue of the cache be empty; what was learned stays."""
        self.queue: FreeQueue[Piece] = FreeQueue(Piece(EDGE, 0, 0), Piece(EDGE, 0, 0), self.core.classes, clock=self._clock)
        self._follow()

    def join(self, store: BlockStore[Segment], engine: EngineId) -> None:
        """Pool claims on shared blocks, as an engine does through Redis, but at once."""
        self._pool = FleetPool(store, engine)

    def start(self, turn: Turn, now: float) -> None:
        """Count reuses; refit if due.

        A use is the allocation of blocks, not the arrival in the queue: otherwise the blocks of a waiting request would seem
        to have missed their next use, and be evicted just before it.
        """
        self._now = now
        prompt = prompt_of(turn, self.workload.paths.of(turn))
        request = self._requests[turn] = TrackedRequest(
            turn, prompt, started_at=now, tenant=turn.tenant, category=self._category(turn)
        )
        self.core.started(request)
        pool = self._pool
        if pool is not None:
            pool.started(request)
            self._exchange(pool)
        self.core.ghosts.start(turn, prompt)
        if self.core.refit_due(now):
            self._ask(now)
            self.core.ghosts.resize(self.capacity, in_use=self._in_use)
            self.core.refit(now)
        self._follow()

    def wait(self, turn: Turn, now: float) -> None:
        """Also retain the request's blocks in the ghost caches."""
        self._now = now
        self.core.ghosts.wait(turn, prompt_of(turn, self.workload.paths.of(turn)))

    def in_use(self, blocks: int) -> None:
        """Record the number of blocks in use, as the plug-in does in an engine."""
        self._in_use += IN_USE_FOLLOWS * (blocks - self._in_use)

    def finish(self, turn: Turn, now: float) -> None:
        """Set the blocks' classes; let the policy learn from the request."""
        self._now = now
        path = self.workload.paths.of(turn)
        group, log_odds = self._prediction(turn, now)
        self._finished = request = self._requests.pop(turn, None) or TrackedRequest(
            turn, tenant=turn.tenant, category=self._category(turn)
        )
        pool = self._pool
        if pool is not None:  # what was asked since it started
            self._exchange(pool)
        self.core.finished(
            request,
            path,
            len(prompt_of(turn, path)),
            now,
            group=group,
            log_odds=log_odds,
            reply_end=turn.reply_end or None,
        )
        request.follows = pool is not None and self.core.places_by_claim
        self.core.learn(request)
        if pool is not None:
            pool.finished(request, self.core)
            self._exchange(pool)
        self.core.ghosts.release(turn)
        self._follow()

    def free(self, pieces: Sequence[Piece], turn: Turn, now: float) -> None:
        """Insert each span of blocks into its class."""
        self._now = now
        assert self._finished is not None
        spans, path = self._finished.spans, self._finished.blocks
        at, parts = 0, []
        for span in reversed(spans):
            begin, depth = at, path[span.start].depth
            while at < len(pieces) and pieces[at].depth >= depth:
                at += 1
            parts.append((pieces[begin:at], span.reuse_class))
        self._freed = self.queue.insert_chain(parts, now)
        if self._finished.follows:
            self._finished.runs += [(run, run.head.segment) for run in chain_of(self._freed)]

    def continued(self, piece: Piece) -> None:
        """Let the run that was freed last go before the piece."""
        if self._freed is not None:
            self.queue.continues(piece, self._freed)

    def touch(self, piece: Piece, now: float) -> None:
        """Remove the piece from the queue."""
        self.queue.remove(piece)

    def first(self, now: float) -> Piece:
        """Return the piece to evict under the rule in force."""
        self._now = now
        return self.queue.first()

    def _category(self, turn: Turn) -> str:
        """Return the category that the caller names; empty: none."""
        return turn.category if self.settings.categories else ""

    def _exchange(self, pool: FleetPool[Segment]) -> None:
        """Let the pool read and write, and move the blocks whose value that changes."""
        pool.exchange(self.core, self._now)
        pool.place_again(self.queue, self.core, lambda: self._now)

    def _prediction(self, turn: Turn, now: float) -> tuple[int, float | None]:
        """Return the sidecar's group, 0 without one, and the log-odds of its continuation probability."""
        del turn, now
        return 0, None

    def _ask(self, now: float) -> None:
        """Give the policy the sidecar's curves."""

    def _follow(self) -> None:
        tables = self.core.tables
        if self.queue.tables is not tables:
            self.queue.set_tables(tables)

    def _clock(self) -> float:
        return self._now


@register
class PluginSidecar(PluginPolicy):
    """The plug-in with the sidecar's groups, their curves, and its continuation probabilities."""

    name = "plugin-sidecar"
    title = "Plug-in with sidecar"
    rule = "as plugin, with the sidecar's groups among the features of a class"
    source = "this project: as plugin, with lpc/model/returns, which learns from the first request on"

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._curves = curves_of(workload)
        self._clusters = CurveGroups()

    def _prediction(self, turn: Turn, now: float) -> tuple[int, float | None]:
        curve = self._curves.get(turn)
        p = turn.probability
        if self.settings.invert:
            p = None if p is None else 1.0 - p
            curve = None if curve is None else 1.0 - curve[::-1]
        group = 0 if curve is None else int(self._clusters.join(curve[None, :], now)[0])
        return group, None if p is None else logit(p)

    def _ask(self, now: float) -> None:
        hazards = dict(enumerate(self._clusters.snapshot().hazards.tolist(), 1))
        self.core.set_sidecar_curves("simulated", hazards)


class SegmentUses:
    """The latest uses of segments. ``remembered``: bound in blocks; the least recently used are forgotten."""

    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        self._uses: dict[Segment, Use] = {}
        self._blocks = 0

    def get(self, segment: Segment, /) -> Use | None:
        """Return a segment's latest use; None: unknown."""
        return self._uses.get(segment)

    def put(self, segment: Segment, use: Use, /) -> None:
        """Set a segment's latest use."""
        uses = self._uses
        if uses.pop(segment, None) is None:
            self._blocks += segment.size
        uses[segment] = use
        while self._blocks > self._remembered:
            oldest: Any = next(iter(uses))
            del uses[oldest]
            self._blocks -= oldest.size

    def parts(self) -> Iterator[dict[Segment, Use]]:
        """Iterate over the table, as the one part that it has."""
        yield self._uses


def prompt_of(turn: Turn, path: Path) -> Path:
    """Return the segments of a turn's prompt."""
    end = len(turn.contents)
    while path and path[-1].depth >= end:
        path = path[:-1]
    return path


def size_of(path: Sequence[Segment]) -> int:
    """Return the number of blocks in some segments."""
    return sum(segment.size for segment in path)
