"""The Redis namespace of a real vLLM has all that determines its block hashes."""

import inspect

from vllm.v1.core.kv_cache_utils import get_request_block_hasher

from eviction_client.engines.vllm.namespace import namespace_of
from eviction_client.settings import ClientSettings
from testing.bare_scheduler import Engine, vllm_config


def test_engines_whose_hashes_cover_further_tokens_do_not_pool_with_others() -> None:
    """EAGLE and MTP, since vLLM 0.33."""
    scheduler = Engine(50, learned=False).scheduler
    if "num_hash_lookahead_tokens" in inspect.signature(get_request_block_hasher).parameters:
        assert scheduler.num_hash_lookahead_tokens == 0  # else vLLM has renamed it
    spaces = set()
    for tokens in range(3):
        scheduler.num_hash_lookahead_tokens = tokens
        spaces.add(namespace_of(ClientSettings(), vllm_config(), scheduler).digest)
    assert len(spaces) == 3
