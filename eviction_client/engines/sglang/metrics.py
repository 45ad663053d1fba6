"""What the plug-in in SGLang shows of itself in the engine's /metrics (``--enable-metrics``)."""

from eviction_client.engines.sglang.hooks import Hooks
from eviction_client.metrics import Values
from eviction_client.plugin_metrics import values_of_plugin


def values_of(hooks: Hooks) -> Values:
    """Return what :class:`eviction_client.metrics.EngineMetrics` shows. From any thread."""
    return values_of_plugin(hooks.plugin)
