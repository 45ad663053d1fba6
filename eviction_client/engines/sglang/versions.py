"""Checks the installed SGLang and its configuration. Reads SGLang's files; imports nothing of it."""

import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any, Final

TESTED: Final = ("0.5.22", "0.5.23")
"""Releases against which the tests were run (`make test-sglang`, `make sglang-versions`)."""

SEAM: Final = "sglang.srt.mem_cache.registry.create_tree_cache"
"""The function that the plug-in hooks. It returns the radix cache of a scheduler."""

OTHER_TREES: Final = {
    "--radix-cache-backend": "radix_cache_backend",
    "--enable-lmcache": "enable_lmcache",
    "--enable-flexkv": "enable_flexkv",
}
"""Flags, with their server arguments, that replace SGLang's radix cache by another."""

OTHER_ORDERS: Final = {
    "--enable-session-radix-cache": (
        "enable_session_radix_cache",
        "the tree ranks what an open session holds above every value, so that the rule would not be in force",
    ),
    "--enable-hierarchical-cache": (
        "enable_hierarchical_cache",
        "what is evicted stays in host memory, which no ghost cache counts and no rule was tested on",
    ),
    "--enable-unified-cache-external-linker": (
        "enable_unified_cache_external_linker",
        "what is evicted stays in an external store, which no ghost cache counts and no rule was tested on",
    ),
    "--enable-streaming-session": (
        "enable_streaming_session",
        "streaming sessions hold their tokens outside the tree, so that their turns and uses are not seen",
    ),
}
"""Flags, with their server arguments, under which the tree's order or contents are not the rule's alone, and why."""

_NEEDED: Final = {
    "plugins/hook_registry.py": ("class HookRegistry", "AROUND ="),
    "mem_cache/registry.py": ("def create_tree_cache(ctx",),
    "mem_cache/cache_init_params.py": ("tree_core_backend:",),
    "mem_cache/unified_radix_cache.py": (
        "def checkpoint_into_tree(self, req: Req, *, up_to",
        "def match_prefix(self, params",
        "def on_release(self, req: Req, *, checkpointed",
    ),
    "mem_cache/unified_cache/unified_tree_core.py": (
        "self.eviction_strategy =",
        "def node_by_id(self, node_id",
        "def evict_device_start(",
        "def full_protected_size(",
    ),
    "mem_cache/unified_cache/components/full.py": ("self.tree_core.eviction_strategy.get_priority",),
}
"""Files under ``sglang/srt``, and strings that they must contain."""


def installed() -> str | None:
    """Return the installed release of SGLang, None without one."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def find_incompatibility(package: Path | None = None) -> str | None:
    """Return why the plug-in cannot work in a SGLang, None if it can.

    Args:
        package: the folder ``sglang``; None: that of the installed one.
    """
    if package is None:
        spec = importlib.util.find_spec("sglang")
        if spec is None or not spec.submodule_search_locations:
            return "SGLang is not installed"
        package = Path(spec.submodule_search_locations[0])
    for name, pieces in _NEEDED.items():
        try:
            text = (package / "srt" / name).read_text()
        except OSError:
            return f"it has no sglang/srt/{name}"
        for piece in pieces:
            if piece not in text:
                return f"`{piece.rstrip(' =(')}` is not in its sglang/srt/{name}"
    return None


def unsuitable(ctx: Any) -> str | None:
    """Return why the plug-in does not support a configuration (``TreeCacheBuildContext``), None if it does."""
    sizes = {
        "--tp-size": ctx.tp_size,
        "--pp-size": ctx.params.pp_size,
        "--attn-cp-size": ctx.params.attn_cp_size,
    }
    for flag, size in sizes.items():
        if size > 1:
            return f"with {flag} {size} each rank has a tree of its own, and all must evict alike: use one rank (TP = 1)"
    for flag, name in OTHER_TREES.items():
        if getattr(ctx.server_args, name, None):
            return f"with {flag} it uses another radix cache, which does not report when requests end"
    for flag, (name, why) in OTHER_ORDERS.items():
        if getattr(ctx.server_args, name, None) or getattr(ctx.params, name, None):
            return f"with {flag} {why}"
    components = {component.name for component in ctx.params.component_registry_override or ()}
    if components:
        return f"its tree has components of its own for this hardware ({', '.join(sorted(components))}), which were not tested"
    if getattr(ctx, "is_hybrid_swa", False) and getattr(ctx, "full_tokens_per_layer", None) == 0:
        return "a model with sliding windows in all layers has another radix cache, which does not report when requests end"
    mode = getattr(ctx.server_args, "disaggregation_mode", "null")
    if mode not in (None, "null"):
        return f"with --disaggregation-mode {mode} requests finish in another engine"
    return None
