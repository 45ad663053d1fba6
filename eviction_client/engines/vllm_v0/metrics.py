"""What the plug-in in vLLM's V0 engine shows of itself in the engine's /metrics."""

from collections.abc import Sequence
from typing import Protocol

from eviction_client.credit_queue import BUCKETS
from eviction_client.figures import figures_of
from eviction_client.metrics import Values
from eviction_client.scorer import Scorer


class Queue(Protocol):
    """A free queue or evictor."""

    @property
    def num_runs(self) -> int:
        """Entries of its index."""

    @property
    def evictions(self) -> Sequence[int]:
        """Blocks evicted by :data:`BUCKETS`."""


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
    values = figures_of(scorer, lifetime=scorer.shadow_lifetime if queue is None else scorer.lifetime.seconds)
    values["lpc_pooled_raises", ""] = hooks.raised
    if queue is not None:
        values["lpc_queue_runs", ""] = queue.num_runs
        bounds = (*(f"{bound:g}" for bound in BUCKETS), "+Inf")
        values |= {("lpc_evictions", bound): n for bound, n in zip(bounds, queue.evictions, strict=True)}
    return values
