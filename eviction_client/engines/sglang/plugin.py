"""How SGLang gets the plug-in: entry point ``sglang.srt.plugins``, which SGLang loads in each of its processes.

It is on where SGLang is started with ``--radix-eviction-policy priority`` and this package is installed; SGLANG_PLUGINS without
its name keeps it out. Nothing is imported before a scheduler builds its radix cache: most processes have none, and in some
prometheus_client may not be imported before SGLang has set up its own metrics.
"""

from collections.abc import Callable
from typing import Any

from eviction_client.engines.sglang.versions import SEAM


def register() -> None:
    """Hang in where SGLang builds a radix cache. Called by SGLang."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(SEAM, around, HookType.AROUND)


def around(stock: Callable[..., Any], ctx: Any, *args: Any, **kwargs: Any) -> Any:
    """``create_tree_cache``, whose result the plug-in is attached to where that is asked for."""
    from eviction_client.engines.sglang.building import build

    return build(stock, ctx, *args, **kwargs)
