"""What the plug-in in SGLang shows of itself in the engine's /metrics (``--enable-metrics``)."""

from eviction_client.engines.sglang.hooks import Hooks
from eviction_client.figures import figures_of
from eviction_client.metrics import Values


def values_of(hooks: Hooks) -> Values:
    """Return what :class:`eviction_client.metrics.EngineMetrics` shows. From any thread."""
    return figures_of(hooks.scorer)
