"""What the plug-in in vLLM's V0 engine shows of itself in the engine's /metrics."""

from typing import Protocol

from eviction_client.figures import figures_of
from eviction_client.metrics import Values
from eviction_client.scorer import Scorer


class Queue(Protocol):
    """A free queue or evictor."""

    @property
    def num_runs(self) -> int:
        """Entries of its index."""


class Attached(Protocol):
    """The hooks."""

    scorer: Scorer
    raised: int

    @property
    def queue(self) -> Queue | None:
        """Ours; None in shadow mode."""


def values_of(hooks: Attached) -> Values:
    """Return what :class:`eviction_client.metrics.EngineMetrics` shows. From any thread."""
    scorer, queue = hooks.scorer, hooks.queue
    values = figures_of(scorer)
    values["lpc_pooled_raises", ""] = hooks.raised
    if queue is not None:
        values["lpc_queue_runs", ""] = queue.num_runs
    return values
