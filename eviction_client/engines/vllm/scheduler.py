"""The scheduler for vLLM's ``--scheduler-cls eviction_client.engines.vllm.LearnedScheduler``.

It is an instance of vLLM's own class, to which the plug-in attaches after the check at start. Before the check this module
imports only essential parts of vLLM, so that it starts even if a new release has moved others.
"""

import copy
import logging
import os
import time
from collections.abc import Callable
from typing import Any, ClassVar, Final

from vllm import __version__ as vllm_version

from eviction_client.background import BackgroundThread, StartBackground
from eviction_client.block_hash import BlockHash
from eviction_client.engines.fallback import stay_stock
from eviction_client.engines.tokenizer_files import finder
from eviction_client.engines.vllm import TESTED
from eviction_client.engines.vllm_cpu import loads, placing
from eviction_client.errors import EngineUnsupported
from eviction_client.observability.metrics import EngineMetrics
from eviction_client.plugin import Plugin
from eviction_client.settings import ClientSettings
from eviction_client.stores import BlockStore, open_store
from eviction_client.transport.client import PredictorClient
from eviction_client.transport.predictor import Predictor
from eviction_client.transport.tokenizer_upload import FindFiles
from lpc.errors import LpcError
from lpc.wire.variables import unknown_variables

logger = logging.getLogger(__name__)

RELEASE: Final = vllm_version.partition("+")[0]


class LearnedScheduler:
    """vLLM's scheduler, synchronous or asynchronous as configured, with learned eviction.

    Its ``__new__`` returns a scheduler of vLLM's own class. Tests and embedders subclass it to inject the parts below.

    Raises:
        EngineUnsupported: the plug-in does not work in this vLLM or this configuration, and LPC_ON_UNKNOWN_ENGINE is
            ``refuse``; else that is one line in the log and a metric, and the scheduler is stock.
        pydantic.ValidationError: an LPC_ setting is malformed.
    """

    settings: ClassVar[ClientSettings | None] = None
    clock: ClassVar[Callable[[], float] | None] = None
    background: ClassVar[StartBackground] = BackgroundThread

    @staticmethod
    def open_predictor(settings: ClientSettings, served_model: str, tokenizer: FindFiles) -> Predictor:
        """Return the predictor. ``tokenizer``: finds the engine's tokenizer files, for the sidecar."""
        return PredictorClient.of(settings, served_model, tokenizer)

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        """Build vLLM's scheduler and attach to it."""
        _join_vllms_logging()
        settings = cls.settings or ClientSettings()
        for unknown in unknown_variables(os.environ):
            logger.warning("learned prefix cache: %s", unknown)
        own = copy.copy(vllm_config.scheduler_config)
        own.scheduler_cls = None
        stock = own.get_scheduler_cls()
        cached = vllm_config.cache_config.enable_prefix_caching
        scheduler, tiers = placing.build_scheduler(
            lambda: stock(vllm_config, *args, **kwargs), vllm_config, wanted=cached and not settings.shadow
        )
        if not cached:
            logger.warning("learned prefix cache: prefix caching is off, so there is nothing to do")
            return scheduler
        metrics = EngineMetrics(str(vllm_config.parallel_config.data_parallel_index))
        started = time.perf_counter()
        try:
            import eviction_client.engines.vllm.conformance as conformance

            reason = _unsuitable(vllm_config) or conformance.find_incompatibility(scheduler)
            milliseconds = 1000 * (time.perf_counter() - started)
            if reason is None:
                cls._attach(scheduler, settings, vllm_config, metrics, tiers)
        except LpcError:
            raise  # an invalid setting
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        if reason is None:
            mode = "dry run" if settings.shadow else f"on, pooling: {settings.pools}"
            release = f"vLLM {RELEASE}" if RELEASE in TESTED else f"vLLM {RELEASE} is an untested release"
            logger.info(
                "learned prefix cache: %s; %s, check passed in %.0f ms; rule %s", mode, release, milliseconds, settings.rule
            )
            cls._report(tiers, settings, scheduler.lpc.plugin)
            return scheduler
        stay_stock(settings, metrics, engine="vLLM", release=RELEASE, reason=reason, tested=TESTED)
        return scheduler

    @staticmethod
    def _report(tiers: placing.Tiers, settings: ClientSettings, plugin: Plugin) -> None:
        """Log whether the plug-in is active in the CPU offload tier, if there is one."""
        if tiers.reason is None:
            for policy in tiers.policies:
                logger.info("learned prefix cache: also on in the CPU offload tier, %d chunks", policy.cache_capacity)
            return
        reason = f"has no place in the CPU offload tier of this vLLM {RELEASE}: {tiers.reason}."
        if settings.on_unknown_engine == "refuse":
            plugin.close()
            raise EngineUnsupported(f"The plug-in {reason} Unset LPC_ON_UNKNOWN_ENGINE=refuse to start with stock LRU there.")
        logger.error("learned prefix cache: the plug-in %s vLLM's own LRU there; the GPU's blocks are not concerned", reason)

    @classmethod
    def _attach(
        cls, scheduler: Any, settings: ClientSettings, vllm_config: Any, metrics: EngineMetrics, tiers: placing.Tiers
    ) -> None:
        import eviction_client.engines.vllm.hit_unit as hit_unit
        import eviction_client.engines.vllm.hooks as hooks
        import eviction_client.engines.vllm.metrics as shown

        model = vllm_config.model_config
        served = model.served_model_name if isinstance(model.served_model_name, str) else model.model
        hits = hit_unit.hit_unit_of(scheduler)
        hit_unit.log_hit_unit(hits, model.max_model_len)
        plugin = Plugin(
            settings,
            capacity=scheduler.kv_cache_manager.block_pool.num_gpu_blocks,
            block_tokens=scheduler.hash_block_size,
            hits=hits,
            predictor=cls.open_predictor(settings, settings.served_model or served, finder_of(vllm_config)),
            store=_store(settings, vllm_config, scheduler),
            clock=cls.clock,
            model=served,
            background=cls.background,
        )
        if settings.tenant_floors and settings.shadow:
            logger.warning("learned prefix cache: LPC_TENANT_FLOORS has no effect: a dry run changes no order")
        try:
            attached = scheduler.lpc = hooks.Hooks(scheduler, plugin, adopt=not settings.shadow, tiers=tiers)
            tiers.link(scheduler, plugin)
            attached.loads = _load_or_compute(scheduler, plugin, settings)
            attached.steps.waiting = _warm_first(scheduler, plugin, settings)
        except BaseException:
            plugin.close()
            raise
        plugin.learner.on_tick.append(lambda: metrics.update(shown.values_of(attached)))


def _load_or_compute(scheduler: Any, plugin: Plugin, settings: ClientSettings) -> list[loads.TierLoads]:
    """Let the plug-in choose what is loaded from offload tiers; return where it does. If it cannot, log why. Raises nothing."""
    if settings.shadow or not settings.load_or_compute:
        return []
    try:
        return loads.attach(scheduler, plugin)
    except Exception as error:
        logger.warning(
            "learned prefix cache: vLLM %s loads all that its CPU offload tier has: %s: %s",
            *(RELEASE, type(error).__name__, error),
        )
        return []


def _warm_first(scheduler: Any, plugin: Plugin, settings: ClientSettings) -> Any:
    """Install and return the warm-first waiting queue, or log why it stays first come, first served, and return None.

    Raises:
        EngineUnsupported: the check failed, LPC_SCHEDULE is set, and LPC_ON_UNKNOWN_ENGINE is ``refuse``.
    """
    if settings.schedule == "fcfs":
        return None
    try:
        policy = scheduler.scheduler_config.policy
        if settings.shadow or policy != "fcfs":
            if "schedule" in settings.model_fields_set:
                why = "a dry run changes no order" if settings.shadow else f"vLLM's scheduling policy is {policy}"
                logger.warning("learned prefix cache: LPC_SCHEDULE=warm-first has no effect: %s", why)
            return None
        from eviction_client.engines.vllm import conformance, waiting

        reason = conformance.why_fcfs(scheduler)
        if reason is None:
            queue = waiting.adopt(scheduler, plugin)
            logger.info(
                "learned prefix cache: while the cache thrashes, warm waiting requests go first; the others are overtaken by "
                "at most %g s of prefill",
                settings.overtake_s,
            )
            return queue
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    reason = f"cannot serve warm first in this vLLM {RELEASE}: {reason}."
    if "schedule" not in settings.model_fields_set:
        logger.warning("learned prefix cache: the plug-in %s Requests are served first come, first served", reason)
        return None
    if settings.on_unknown_engine == "refuse":
        raise EngineUnsupported(f"The plug-in {reason} Unset LPC_SCHEDULE, or unset LPC_ON_UNKNOWN_ENGINE=refuse.")
    logger.error("learned prefix cache: the plug-in %s Requests are served first come, first served", reason)
    return None


def _store(settings: ClientSettings, vllm_config: Any, scheduler: Any) -> BlockStore[BlockHash] | None:
    from eviction_client.engines.vllm.namespace import namespace_of

    if settings.pools == "off" or settings.shadow:
        return None
    namespace = namespace_of(settings, vllm_config, scheduler)
    return open_store(settings, namespace)


def _unsuitable(vllm_config: Any) -> str | None:
    """Return why the plug-in does not support this configuration; None if it does."""
    if vllm_config.model_config.is_diffusion:
        return "diffusion models have a scheduler of their own"
    if getattr(getattr(vllm_config, "attention_config", None), "hisparse_config", None) is not None:
        return "HiSparse keeps blocks in several pools, which frees cross"
    return None


def finder_of(vllm_config: Any) -> FindFiles:
    """Return a thread-safe function that finds the files of the engine's tokenizer."""
    model, loading = vllm_config.model_config, getattr(vllm_config, "load_config", None)
    return finder(str(model.tokenizer), getattr(model, "tokenizer_revision", None), [getattr(loading, "download_dir", None)])


def _join_vllms_logging() -> None:
    """Log at vLLM's level, and to vLLM's handlers unless the plug-in's loggers or the root have some.

    vLLM gives handlers to its own loggers only. Some libraries that models import give one to the root, at the level WARNING.
    """
    vllms = logging.getLogger("vllm")
    for package in ("eviction_client", "lpc"):
        ours = logging.getLogger(package)
        if not ours.hasHandlers():
            for handler in vllms.handlers:
                ours.addHandler(handler)
        if ours.level == logging.NOTSET:
            ours.setLevel(vllms.level)
