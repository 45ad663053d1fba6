"""Which releases of vLLM the plug-in works in: those whose block pool and scheduler the tests were run against."""

import hashlib
import inspect
from typing import Any, Final

from vllm import __version__ as vllm_version
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager

KNOWN_VERSIONS: Final[dict[str, str]] = {
    "0.26.0": "dcc07dc66443a48c",
    "0.27.1": "66cc29fafb599b9e",
    "0.28.0": "fd3b57488415e40b",
    "0.29.0": "8404ab456e1dad8d",
    "0.30.0": "df77d12e48561ffb",
    "0.31.0": "b399d09d2f5bfc94",
    "0.32.0": "c1ad09294ab6b6b5",
}
"""Versions against whose block pool the tests were run, with the :func:`fingerprint` of each."""

_TOUCHED: Final = (
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    *(getattr(BlockPool, name, None) for name in ("get_new_blocks", "touch", "free_blocks", "unpin_blocks")),
    *(
        getattr(owner, name, None)
        for owner in (KVCacheManager, KVCacheCoordinator, SingleTypeKVCacheManager)
        for name in ("free", "pop_blocks_for_free")
    ),
    *(
        getattr(Scheduler, name, None)
        for name in ("add_request", "_free_blocks", "_free_request_blocks", "_drain_deferred_frees", "_preempt_request")
    ),
)
_QUEUE_METHODS: Final = frozenset(
    ("popleft", "popleft_n", "remove", "append", "append_n", "prepend_n", "get_all_free_blocks", "iter_blocks_after")
)


def fingerprint() -> str:
    """Return a digest of the source of everything in vLLM that the plug-in replaces, wraps or relies on."""
    sources = [inspect.getsource(touched) if touched is not None else "" for touched in _TOUCHED]
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()[:16]


def why_not(vllm_config: Any) -> str | None:
    """Return why the plug-in cannot work in this vLLM with this configuration; None where it can."""
    version = vllm_version.partition("+")[0]
    methods = {name for name in vars(FreeKVCacheBlockQueue) if not name.startswith("_")}
    if methods != _QUEUE_METHODS or KNOWN_VERSIONS.get(version) != fingerprint():
        found = (
            "its block pool or scheduler differs from that release's" if version in KNOWN_VERSIONS else "it was never tested"
        )
        return f"vLLM {vllm_version}: {found}. Known to work: {', '.join(KNOWN_VERSIONS)}."
    if getattr(vllm_config.model_config, "is_diffusion", False):
        return "diffusion models have a scheduler of their own."
    if getattr(getattr(vllm_config, "attention_config", None), "hisparse_config", None) is not None:
        return "HiSparse keeps blocks in several pools, which frees cross."
    return None
