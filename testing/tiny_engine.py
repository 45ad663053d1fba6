"""Real vLLM with the tiny model, in this process, for all benchmarks and any scheduler. Records its evictions.

Call `engine_run.settle` before the import of this module.
"""

import gc
from pathlib import Path
from typing import Any

from vllm import LLM

from eviction_client.engines.vllm import LearnedScheduler
from eviction_client.engines.vllm.metrics import values_of
from lpc_apps.tiny_llama import BLOCK
from testing.engine_internals import cache_policy_of, watch_evictions


class TinyEngine:
    """An engine with this many blocks.

    Args:
        model: folder of the tiny Llama.
        blocks: blocks of KV cache, including the one that vLLM reserves.
        learned: attributes of our scheduler (`LearnedScheduler`: settings, clock, open_predictor ...); None: stock vLLM.
        options: of vLLM's `LLM`.

    Attributes:
        engine: vLLM's engine, stepped by the caller.
        scheduler: its scheduler.
        evicted: ids of the blocks evicted from the pool, in order.
        tier_evicted: chunks evicted from the CPU offload tier, in order, numbered in the order of their first storage.
        policy: the tier's policy; None without one.
    """

    def __init__(self, model: Path, blocks: int, *, learned: dict[str, Any] | None, **options: Any) -> None:
        if learned is not None:
            options["scheduler_cls"] = type("Injected", (LearnedScheduler,), learned)
        self._llm = LLM(
            str(model),
            enforce_eager=True,
            block_size=BLOCK,
            num_gpu_blocks_override=blocks,
            dtype="float32",
            kv_cache_memory_bytes=2**28,
            enable_prefix_caching=True,
            disable_log_stats=True,
            **options,
        )
        self.engine: Any = self._llm.llm_engine
        self.scheduler: Any = self.engine.engine_core.engine_core.scheduler
        self.evicted: list[int] = []
        watch_evictions(self.scheduler.kv_cache_manager.block_pool, lambda number, _: self.evicted.append(number))
        self.tier_evicted: list[int] = []
        self.policy: Any = None
        offload = getattr(self.scheduler.connector, "connector_scheduler", None)
        if offload is not None and hasattr(offload, "manager"):
            self.policy = cache_policy_of(offload.manager)
            self._watch(offload.manager)

    def counters(self) -> dict[str, float]:
        """Return the counters of our scheduler after its pending background work."""
        self.scheduler.lpc.plugin.settle()
        values = values_of(self.scheduler.lpc)
        return {f"{name}:{label}" if label else name: value for (name, label), value in values.items()}

    def close(self) -> None:
        """Shut it down and free its memory."""
        self.engine.engine_core.shutdown()
        del self._llm, self.engine, self.scheduler, self.policy
        gc.collect()

    def _watch(self, manager: Any) -> None:
        stock = manager.prepare_store
        numbers: dict[Any, int] = {}  # block hashes have a seed that may differ between processes

        def prepare_store(*args: Any) -> Any:
            output = stock(*args)
            if output is not None:
                for key in output.keys_to_store:
                    numbers.setdefault(key, len(numbers))
                self.tier_evicted += [numbers[key] for key in output.evicted_keys]
            return output

        manager.prepare_store = prepare_store
