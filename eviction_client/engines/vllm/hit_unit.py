"""Where hits of a vLLM engine end, which its log and metrics do not show (vllm#40696, #45238, #48401, #51250, #54607).

A draft model (EAGLE, MTP) computes the key and value of a position from the next token too. So vLLM takes the last block of a
match for unproven and drops it. From 0.33 on a block's hash covers the next token instead, unless a KV connector or
``disable_lookahead_block_hashes`` is configured: then it drops as before.
"""

import logging
import math
from typing import Any, Final

from vllm.v1.core import kv_cache_utils
from vllm.v1.core.single_type_kv_cache_manager import MambaManager

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
    return HitUnit(
        unit,
        dropped=_dropped(coordinator, parts or unit),
        parts=parts,
        lookahead=getattr(scheduler, "num_hash_lookahead_tokens", 0),  # since vLLM 0.33
        # The hybrid coordinator of vLLM 0.32 and later: the dropped block may be the last one of the prompt.
        beyond=hasattr(coordinator, "attention_groups") and hasattr(kv_cache_utils, "eagle_proof_margin"),
        replayed=getattr(scheduler, "prefix_replay_tokens", 0),  # since vLLM 0.31: windows that are not cached
    )


def _dropped(coordinator: Any, hits_end: int) -> int:
    """Return how many tokens the groups of layers with a draft model drop of a match. Recurrent layers drop none."""
    dropping: Any = getattr(coordinator, "drop_eagle_group_ids", None)
    if dropping is None:  # before vLLM 0.33 all groups that are flagged drop
        dropping = getattr(coordinator, "eagle_group_ids", ())
    groups = [coordinator.single_type_managers[number] for number in dropping]
    return max((min(hits_end, group.block_size) for group in groups if not isinstance(group, MambaManager)), default=0)


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
