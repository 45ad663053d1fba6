"""A simulated later release of vLLM: `vllm serve --scheduler-cls tests.engine.drifted.LearnedScheduler`."""

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue

from eviction_client.engines.vllm import LearnedScheduler as LearnedScheduler

FreeKVCacheBlockQueue.append_n = FreeKVCacheBlockQueue.prepend_n  # evicts the most recently freed block first
