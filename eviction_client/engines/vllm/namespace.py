"""Which other engines' block hashes mean what this vLLM's mean."""

import json
import logging
import os
import secrets
from typing import Any

from vllm.v1.core import kv_cache_utils

from eviction_client.settings import ClientSettings
from eviction_client.stores.namespace import Namespace

logger = logging.getLogger(__name__)


def namespace_of(settings: ClientSettings, vllm_config: Any, scheduler: Any) -> Namespace:
    """Return the namespace of an engine's pooled times. With a random hash seed nobody shares it, which is logged."""
    model = vllm_config.model_config
    algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
    seed = os.environ.get("PYTHONHASHSEED")
    if seed is None and algorithm.startswith("sha256"):
        seed = getattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED", None)
    if seed is None:
        if settings.pools == "fleet":
            logger.warning(
                "learned prefix cache: block hashes of this engine start from a random seed, so that no other engine has the "
                "same: nothing is pooled in the fleet. Set PYTHONHASHSEED to one value in all engines."
            )
        seed = secrets.token_hex(16)
    return Namespace(
        hash_algorithm=algorithm,
        hash_seed=seed,
        block_size=scheduler.hash_block_size,
        model=json.dumps([model.model, model.revision]),
        lookahead=getattr(scheduler, "num_hash_lookahead_tokens", 0),  # since vLLM 0.33
    )
