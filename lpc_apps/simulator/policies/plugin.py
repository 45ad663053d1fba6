"""Eviction by retention value at the block's age, with the modules that run inside an engine (`eviction_client`).

`plugin` groups requests as an engine without a sidecar does. `plugin-sidecar` uses groups of the sidecar's return model, which
learns from the first request on.
"""

from collections.abc import Sequence
from typing import Any, Final

from eviction_client.policy.free_queue import FreeQueue
from eviction_client.policy.ghosts import Ghosts
from lpc_apps.simulator.blocks import EDGE, Piece
from lpc_apps.simulator.policy import Policy, PolicySettings, register
from lpc_apps.simulator.reuse_classes import ReuseClasses, SidecarClasses
from lpc_apps.simulator.workload import Turn, Workload


@register
class Plugin(Policy[Piece]):
    """The plug-in without a sidecar: classes by gap and by the number of new tokens, curves from its own reuse."""

    name = "plugin"
    rule = "the lowest retention value at the block's age, or least recently used while that hits more; no sidecar"
    source = "this project: eviction_client.policy.reuse_monitor, eviction_client.policy.free_queue; Gittins 1979"
    piece_type = Piece

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._now = 0.0
        self.reuse: Final = self._classes()
        self.ghosts: Ghosts[int] = Ghosts(capacity, self.reuse.classes, every_block, clock=self._clock)
        self.queue: FreeQueue[Piece] = FreeQueue(Piece(EDGE, 0, 0), Piece(EDGE, 0, 0), self.reuse.classes, clock=self._clock)
        self.queue.value_enabled = not settings.guard

    def _classes(self) -> ReuseClasses:
        return ReuseClasses(self.capacity, self.workload)

    def start(self, turn: Turn, now: float) -> None:
        """Count reuses; apply a refit."""
        self._now = now
        self.reuse.start(turn, now)
        self._follow()

    def wait(self, turn: Turn, now: float) -> None:
        """Also retain the request's blocks in the ghost caches."""
        self._now = now
        if self.settings.guard:
            self.ghosts.wait(turn, self.reuse.sampled_prompt(turn, self.ghosts.every))

    def finish(self, turn: Turn, now: float) -> None:
        """Record the last use; let the ghost caches choose the rule."""
        self._now = now
        reuse = self.reuse
        reuse.finish(turn, now)
        self._follow()
        if self.settings.guard:
            every = self.ghosts.every
            self.queue.value_enabled = self.ghosts.observe(reuse.sample(reuse.prompt, every), reuse.freed(every))
            self.ghosts.served(turn)

    def free(self, pieces: Sequence[Piece], turn: Turn, now: float) -> None:
        """Insert each gap span of blocks into its class."""
        self._now = now
        at, parts = 0, []
        for start, _, number in reversed(self.reuse.runs):
            begin, depth = at, self.reuse.path[start].depth
            while at < len(pieces) and pieces[at].depth >= depth:
                at += 1
            parts.append((pieces[begin:at], number))
        self.queue.insert_chain(parts, now)

    def touch(self, piece: Piece, now: float) -> None:
        """Remove the piece from the queue."""
        self.queue.remove(piece)

    def first(self, now: float) -> Piece:
        """Return the piece to evict under the current rule."""
        self._now = now
        return self.queue.first()

    def _follow(self) -> None:
        tables = self.reuse.tables
        if self.queue.tables is not tables:
            self.queue.set_tables(tables)
            self.ghosts.set_tables(tables)

    def _clock(self) -> float:
        return self._now


@register
class PluginSidecar(Plugin):
    """The plug-in with the sidecar's groups, and their curves as prior."""

    name = "plugin-sidecar"
    rule = "the lowest retention value at the block's age, or least recently used while that hits more"
    source = "this project: as plugin, with groups and prior from lpc/model/returns, which learns from the first request on"

    def _classes(self) -> ReuseClasses:
        return SidecarClasses(self.capacity, self.workload, invert=self.settings.invert)


def every_block(content: Any, every: int) -> bool:
    """Return True, because `ReuseClasses.sample` has already selected the blocks."""
    del content, every
    return True
