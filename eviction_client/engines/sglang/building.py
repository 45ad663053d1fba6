"""Builds SGLang's radix cache, and attaches the plug-in if it is enabled and compatible."""

import logging
import os
from collections.abc import Callable
from typing import Any, Final

from eviction_client.engines.fallback import stay_stock
from eviction_client.engines.sglang.chain import BLOCK_TOKENS
from eviction_client.engines.sglang.versions import TESTED, find_incompatibility, installed, unsuitable
from eviction_client.engines.tokenizer_files import finder
from eviction_client.observability.metrics import EngineMetrics
from eviction_client.plugin import Plugin
from eviction_client.plugin_metrics import values_of_plugin
from eviction_client.settings import ClientSettings
from eviction_client.transport.client import PredictorClient
from eviction_client.transport.predictor import Predictor
from lpc.errors import LpcError
from lpc.wire.variables import unknown_variables

logger = logging.getLogger(__name__)

POLICY: Final = "priority"
"""SGLang's eviction policy that switches the plug-in on."""
CORE: Final = "python"
"""SGLang's tree core with a replaceable eviction strategy. The strategies of the default core, in Rust, are built in."""

OpenPlugin = Callable[[ClientSettings, Any], Plugin]


def open_plugin(settings: ClientSettings, ctx: Any) -> Plugin:
    """Return the engine-independent part of the plug-in. ``ctx``: SGLang's ``TreeCacheBuildContext``."""
    return Plugin(
        settings,
        capacity=ctx.params.token_to_kv_pool_allocator.size // BLOCK_TOKENS,
        block_tokens=BLOCK_TOKENS,
        predictor=open_predictor(settings, ctx.server_args),
    )


def open_predictor(settings: ClientSettings, server_args: Any) -> Predictor:
    """Return the client of the sidecar."""
    model = server_args.model_path
    return PredictorClient.of(
        settings,
        server_args.served_model_name or model,
        finder(server_args.tokenizer_path or model, server_args.revision, [server_args.download_dir]),
    )


def build(stock: Callable[..., Any], ctx: Any, *args: Any, opens: OpenPlugin = open_plugin, **kwargs: Any) -> Any:
    """``create_tree_cache``: return SGLang's radix cache, with the plug-in attached if it is enabled.

    If the plug-in does not work here, log one line, set a metric, and return a cache under LRU.

    Args:
        stock: SGLang's own ``create_tree_cache``.
        ctx: SGLang's ``TreeCacheBuildContext``.
        opens: opens the plug-in, for tests and embedders.

    Raises:
        EngineUnsupported: the plug-in does not work in this SGLang or configuration, and LPC_ON_UNKNOWN_ENGINE is ``refuse``.
        pydantic.ValidationError: an LPC_ setting is invalid.
    """
    params = ctx.params
    if params.disable:
        return stock(ctx, *args, **kwargs)
    wanted = params.eviction_policy == POLICY
    if not wanted and "LPC_SHADOW" not in os.environ:
        logger.info("learned prefix cache: off; enable it with --radix-eviction-policy %s", POLICY)
        return stock(ctx, *args, **kwargs)
    settings = _settings()
    if not wanted and not settings.shadow:
        return stock(ctx, *args, **kwargs)
    metrics = EngineMetrics(str(getattr(ctx.tp_worker, "dp_rank", None) or 0))
    plugin, reason = None, find_incompatibility() or unsuitable(ctx)
    if reason is None:
        try:
            import eviction_client.engines.sglang.hooks as hooks

            plugin = opens(settings, ctx)
        except LpcError:
            raise  # an invalid setting
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
    if wanted:
        params.eviction_policy = "lru"  # replaced by ours, or kept if the plug-in does not work
    adopt = plugin is not None and not settings.shadow
    core = getattr(params, "tree_core_backend", None)
    if adopt:
        params.tree_core_backend = CORE
    cache = stock(ctx, *args, **kwargs)
    if plugin is not None:
        try:
            attached = cache.lpc = hooks.Hooks(cache, plugin, adopt=adopt)
            plugin.learner.on_tick.append(lambda: metrics.update(values_of_plugin(attached.plugin)))
        except Exception as error:
            plugin.close()
            reason = f"{type(error).__name__}: {error}"
            if adopt:
                # The tree is still empty: build it again, as SGLang would.
                params.tree_core_backend = core
                cache = stock(ctx, *args, **kwargs)
    if reason is not None:
        stay_stock(settings, metrics, engine="SGLang", release=installed(), reason=reason, tested=TESTED)
    else:
        if settings.tenant_floors:
            logger.warning("learned prefix cache: LPC_TENANT_FLOORS has no effect in SGLang")
        known = "" if installed() in TESTED else " is an untested release"
        mode = "dry run" if settings.shadow else "on"
        logger.info("learned prefix cache: %s; SGLang %s%s; rule %s", mode, installed(), known, settings.rule)
    return cache


def _settings() -> ClientSettings:
    """Return the settings. Raises pydantic.ValidationError."""
    settings = ClientSettings()
    for unknown in unknown_variables(os.environ):
        logger.warning("learned prefix cache: %s", unknown)
    if settings.pools == "fleet":
        logger.warning("learned prefix cache: SGLang engines do not pool shared blocks, so LPC_REDIS_URL is not used")
    return settings
