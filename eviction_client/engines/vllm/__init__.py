"""The adapter to vLLM: ``--scheduler-cls eviction_client.engines.vllm.LearnedScheduler``."""

from eviction_client.engines.vllm.scheduler import LearnedScheduler as LearnedScheduler
