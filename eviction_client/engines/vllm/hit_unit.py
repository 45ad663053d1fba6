"""Where hits of a vLLM engine end, which its log and metrics do not show (vllm#40696, #45238, #48401, #51250, #54607)."""

import logging
import math
from typing import Any, Final

from eviction_client.observability.misses import HitUnit

logger = logging.getLogger(__name__)

NOTED_FROM: Final = 256
"""Tokens of a unit from which on it is logged at start: many system prompts are shorter."""


def hit_unit_of(scheduler: Any) -> HitUnit:
    """Return where hits end: where blocks of all layers end, or at stored parts of blocks (``--prefix-match-unit``)."""
    coordinator = scheduler.kv_cache_manager.coordinator
    size = scheduler.hash_block_size
    unit = math.lcm(size, *(group.block_size for group in coordinator.single_type_managers))
    parts = size if getattr(coordinator, "enable_partial_hash_hits", False) else 0
    dropped = (parts or unit) if getattr(coordinator, "eagle_group_ids", None) else 0
    return HitUnit(unit, dropped, parts)


def log_hit_unit(unit: HitUnit, longest: int) -> None:
    """Log a unit that many prompts do not fill. ``longest``: tokens of the longest request, ``--max-model-len``."""
    least = unit.needed
    if least >= longest:
        logger.warning(
            "learned prefix cache: no prompt can be hit: hits need %d tokens in common, and a request has at most %d",
            *(least, longest),
        )
    elif least >= NOTED_FROM:
        logger.info(
            "learned prefix cache: prompts need %d tokens in common for a hit; blocks of all layers end at multiples of %d",
            *(least, unit.tokens),
        )
