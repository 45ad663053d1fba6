"""vLLM's CPU offload tier without a GPU: vLLM's spec, manager and connector, with a worker that copies from CPU to CPU.

Only vLLM's worker needs CUDA. ``spec_name`` and ``spec_module_path`` select this spec.
"""

import time
from typing import Any

import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class CopyingWorker(OffloadingWorker):  # type: ignore[misc]  # mypy runs where vLLM is not installed
    """Copies at once, but reports the end later, as if the chunk were in flight. A chunk is one block.

    Args:
        chunks: capacity of the tier.
        late: number of calls of :meth:`get_finished` before a transfer is reported.
        chunk_s: seconds that the link takes to load a chunk, one load after the other.
    """

    def __init__(self, caches: CanonicalKVCaches, chunks: int, late: int, chunk_s: float) -> None:
        self._pool = [cache.tensor for cache in caches.tensors]
        self._tier = [torch.zeros((chunks, *tensor.shape[1:]), dtype=tensor.dtype) for tensor in self._pool]
        self._late = late
        self._left: dict[int, int] = {}
        self._chunk_s = chunk_s
        self._link_until = 0.0
        self._loads: dict[int, tuple[float, float, int]] = {}
        """When each load ends, its seconds, and its bytes."""

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy blocks into the tier."""
        for pool, tier in zip(self._pool, self._tier, strict=True):
            tier[dst_spec.block_ids] = pool[src_spec.block_ids]
        self._left[job_id] = self._late
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy blocks out of the tier."""
        began = time.monotonic()
        for pool, tier in zip(self._pool, self._tier, strict=True):
            pool[dst_spec.block_ids] = tier[src_spec.block_ids]
        self._left[job_id] = self._late
        now, chunks = time.monotonic(), len(src_spec.block_ids)
        seconds = now - began + chunks * self._chunk_s
        self._link_until = max(self._link_until, began) + seconds
        self._loads[job_id] = self._link_until, seconds, chunks * sum(tier[0].nbytes for tier in self._tier)
        return True

    def get_finished(self) -> list[TransferResult]:
        """Return the transfers that are due to be reported."""
        now, none = time.monotonic(), (0.0, None, None)
        finished = [job for job, left in self._left.items() if left <= 0 and self._loads.get(job, none)[0] <= now]
        self._left = {job: left - 1 for job, left in self._left.items() if job not in finished}
        results = []
        for job in finished:
            _, seconds, size = self._loads.pop(job, none)
            results.append(TransferResult(job, success=True, transfer_size=size, transfer_time=seconds))
        return results

    def wait(self, job_ids: set[int]) -> None:
        """End these transfers."""
        self._left |= dict.fromkeys(job_ids & self._left.keys(), 0)


class CopyingSpec(CPUOffloadingSpec):  # type: ignore[misc]
    """A tier of ``chunks`` chunks; ``late``, ``chunk_s``: see :class:`CopyingWorker`."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.num_chunks = int(self.extra_config["chunks"])

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Return the copying worker."""
        late, chunk_s = int(self.extra_config.get("late", 0)), float(self.extra_config.get("chunk_s", 0.0))
        return CopyingWorker(kv_caches, self.num_chunks, late, chunk_s)


def connector(chunks: int, *, late: int = 0, **more: Any) -> dict[str, Any]:
    """Return the ``--kv-transfer-config`` for a tier of this many chunks. ``more``: extra configuration."""
    extra = {"cpu_bytes_to_use": 1, "spec_name": "CopyingSpec", "spec_module_path": __name__, "chunks": chunks, "late": late}
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {**extra, **more}}
