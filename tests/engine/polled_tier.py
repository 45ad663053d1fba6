"""A real `TieringOffloadingManager` over two tiers in memory: storage, and a peer that is served in a thread of its own.

Select it by ``spec_name`` and ``spec_module_path``. vLLM's tier for peers needs NIXL; this one asks for stored chunks in the
same calls. A chunk that only storage has is promoted for it, which evicts from the first tier, in vLLM's poll thread. Before
vLLM 0.33 there is no such thread, and peers are served at the end of a step.
"""

import inspect
import threading
from collections.abc import Iterable
from typing import Any

from vllm.v1.kv_offload.base import LookupResult, OffloadingManager, OffloadKey, ReqContext, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager

from testing.cpu_tier import CopyingSpec

PAGE = 64
ASKED = 8
"""Chunks that a peer asks for in a round."""
POLLED = "tier_poll_interval_s" in inspect.signature(TieringOffloadingManager.__init__).parameters


class Region:
    """Stands for the memory that vLLM shares with its workers."""

    def __init__(self, chunks: int) -> None:
        self._memory = bytearray(chunks * PAGE)

    def create_kv_memoryview(self) -> memoryview:
        return memoryview(self._memory).cast("B", (len(self._memory) // PAGE, PAGE))

    def cleanup(self) -> None:
        self._memory = bytearray()


class Storage(SecondaryTierManager):  # type: ignore[misc]
    """Has all that was ever stored. All transfers are done at once."""

    def __init__(self, view: memoryview, name: str) -> None:
        super().__init__(None, view, name)
        self.keys: dict[OffloadKey, None] = {}
        self._done: list[int] = []

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return LookupResult.HIT if key in self.keys else LookupResult.MISS

    def submit_store(self, job_metadata: Any) -> None:
        self.keys |= dict.fromkeys(job_metadata.keys)
        self._done.append(job_metadata.job_id)

    def submit_load(self, job_metadata: Any) -> None:
        self._done.append(job_metadata.job_id)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        done, self._done = self._done, []
        return [JobResult(job_id=job, success=True) for job in done]

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def drain_jobs(self) -> None:
        pass


class Peer(Storage):
    """Asks for chunks that storage has, over and over; has none itself.

    Attributes:
        threads: in which it was served.
        served: chunks that it has read.
    """

    tolerates_off_thread_polling = True

    def __init__(self, view: memoryview, storage: Storage) -> None:
        super().__init__(view, "peer")
        self.threads: set[int] = set()
        self.served = 0
        self._storage = storage
        self._rounds = 0

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return LookupResult.MISS

    def submit_store(self, job_metadata: Any) -> None:
        self._done.append(job_metadata.job_id)

    def serve_external_requests(self, parent: Any) -> None:
        self.threads.add(threading.get_ident())
        self._rounds += 1
        keys = list(self._storage.keys)
        if not keys:
            return
        start = self._rounds * 5 % len(keys)
        context = ReqContext(req_id=f"peer {self._rounds}")
        parent.on_new_request(context)
        for key in keys[start : start + ASKED]:
            if parent.lookup(key, context) is LookupResult.HIT:
                # At once: a promotion for the next one may evict it.
                self._done.append(parent.create_store_job([key], context).job_id)
                self.served += 1
        parent.on_request_finished(context)


class PolledSpec(CopyingSpec):
    """`CopyingSpec` with these tiers behind it."""

    def get_manager(self) -> OffloadingManager:
        first = CPUPrimaryTierOffloadingManager(
            num_chunks=self.num_chunks,
            mmap_region=Region(self.num_chunks),
            cache_policy=self.eviction_policy,
            cache_policy_module_path=self.cache_policy_module_path,
        )
        view = first.get_kv_memoryview()
        storage = Storage(view, "storage")
        polled: dict[str, Any] = {"tier_poll_interval_s": 1e-5} if POLLED else {}
        return TieringOffloadingManager(first, [storage, Peer(view, storage)], **polled)
