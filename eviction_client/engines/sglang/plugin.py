"""Entry point ``sglang.srt.plugins``, which SGLang loads in each of its processes.

``--radix-eviction-policy priority`` enables the plug-in. An SGLANG_PLUGINS without its name keeps it from loading. It imports
nothing until a scheduler builds its radix cache: most processes build none, and some must not import prometheus_client before
SGLang has set up its own metrics.
"""

from collections.abc import Callable
from typing import Any

from eviction_client.engines.sglang.versions import SEAM


def register() -> None:
    """Register the hook in SGLang's factory of radix caches. Called by SGLang."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(SEAM, around, HookType.AROUND)


def around(stock: Callable[..., Any], ctx: Any, *args: Any, **kwargs: Any) -> Any:
    """``create_tree_cache``, with the plug-in attached to the result if it is enabled."""
    from eviction_client.engines.sglang.building import build

    return build(stock, ctx, *args, **kwargs)
