"""Fallback for an unsupported engine: it keeps its own LRU or, with LPC_ON_UNKNOWN_ENGINE=refuse, does not start."""

import logging
from collections.abc import Iterable

from eviction_client.errors import EngineUnsupported
from eviction_client.observability.metrics import EngineMetrics
from eviction_client.settings import ClientSettings

logger = logging.getLogger(__name__)


def stay_stock(
    settings: ClientSettings,
    metrics: EngineMetrics,
    *,
    engine: str,
    release: str | None,
    reason: str,
    tested: Iterable[str],
) -> None:
    """Report that an engine keeps its own LRU: log an error and set ``lpc_stock_fallback``.

    Args:
        engine, release: name and version of the engine, for the message.
        reason: why the plug-in cannot work in it.
        tested: supported releases, for the message.

    Raises:
        EngineUnsupported: LPC_ON_UNKNOWN_ENGINE is ``refuse``.
    """
    metrics.update({("lpc_stock_fallback", ""): 1.0})
    reason = f"does not work in this {engine} {release}: {reason}."
    if settings.on_unknown_engine == "refuse":
        raise EngineUnsupported(f"The plug-in {reason} Unset LPC_ON_UNKNOWN_ENGINE=refuse to start with stock LRU.")
    logger.error(
        "learned prefix cache: the plug-in %s Stock LRU instead; serving is as without it. Known to work: %s %s",
        *(reason, engine, ", ".join(tested)),
    )
