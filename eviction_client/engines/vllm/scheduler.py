"""The scheduler that vLLM is given by ``--scheduler-cls eviction_client.engines.vllm.LearnedScheduler``."""

import logging
import os
import time
from collections.abc import Callable
from typing import Any, ClassVar, Final

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from eviction_client.background import BackgroundThread, StartBackground
from eviction_client.engines.vllm.hooks import Hooks
from eviction_client.engines.vllm.metrics import values_of
from eviction_client.engines.vllm.namespace import namespace_of
from eviction_client.engines.vllm.tokenizer import finder_of
from eviction_client.engines.vllm.versions import why_not
from eviction_client.errors import EngineUnsupported
from eviction_client.metrics import EngineMetrics
from eviction_client.offer import FindFiles
from eviction_client.predictor_client import PredictorClient
from eviction_client.scorer import Predictor, Scorer
from eviction_client.settings import ClientSettings
from eviction_client.stores import MetadataStore, open_store
from lpc.wire.access import access_of

logger = logging.getLogger(__name__)


class LearnedScheduler:
    """vLLM's scheduler, synchronous or asynchronous as configured, with learned eviction.

    Its ``__new__`` returns a scheduler of vLLM's own class. Tests and embedders subclass it to inject the parts below.

    Raises:
        EngineUnsupported: the plug-in does not work in this vLLM or this configuration, and LPC_ON_UNKNOWN_ENGINE is not
            ``stock``.
        pydantic.ValidationError: an LPC_ setting is malformed.
    """

    settings: ClassVar[ClientSettings | None] = None
    clock: ClassVar[Callable[[], float]] = staticmethod(time.time)
    background: ClassVar[StartBackground] = BackgroundThread

    @staticmethod
    def open_predictor(settings: ClientSettings, served_model: str, tokenizer: FindFiles) -> Predictor:
        """Return what is asked for predictions. ``tokenizer``: finds the files of the engine's, for the sidecar."""
        return PredictorClient(
            settings.predictor_address,
            served_model=served_model,
            timeout_s=settings.predictor_timeout_s,
            capacity=settings.predictor_capacity,
            access=access_of(settings),
            tokenizer=tokenizer,
        )

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        """Build the scheduler that ``scheduler_config.async_scheduling`` asks for, and attach to it."""
        base = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
        settings = cls.settings or ClientSettings()
        if (retired := ClientSettings.retired(os.environ)) is not None:
            logger.warning("learned prefix cache: %s", retired)
        reason = why_not(vllm_config)
        if reason is None and not vllm_config.cache_config.enable_prefix_caching:
            logger.warning("learned prefix cache: prefix caching is off, so there is nothing to do")
            return base(vllm_config, *args, **kwargs)
        if reason is not None:
            if settings.on_unknown_engine == "stock":
                logger.warning("learned prefix cache: %s Stock LRU instead.", reason)
                return base(vllm_config, *args, **kwargs)
            raise EngineUnsupported(f"{reason} Set LPC_ON_UNKNOWN_ENGINE=stock to start with stock LRU.")
        scheduler = _LEARNED[base](vllm_config, *args, **kwargs)
        pools = {manager.block_pool for manager in scheduler.kv_cache_manager.coordinator.single_type_managers}
        if pools - {scheduler.kv_cache_manager.block_pool}:
            raise EngineUnsupported("this model's KV cache lies in several block pools, which frees cross.")
        model = vllm_config.model_config
        served = model.served_model_name if isinstance(model.served_model_name, str) else model.model
        scorer = Scorer(
            settings,
            capacity=scheduler.kv_cache_manager.block_pool.num_gpu_blocks,
            predictor=cls.open_predictor(settings, settings.served_model or served, finder_of(vllm_config)),
            store=_store(settings, vllm_config, scheduler),
            clock=cls.clock,
            background=cls.background,
        )
        scheduler.lpc = Hooks(scheduler, scorer, adopt=not settings.shadow)
        metrics = EngineMetrics(str(vllm_config.parallel_config.data_parallel_index))
        scorer.on_tick.append(lambda: metrics.update(values_of(scheduler.lpc)))
        logger.info("learned prefix cache: %s", "shadow mode" if settings.shadow else f"on, keys pooled: {settings.pools}")
        return scheduler


def _learned(base: type[Scheduler]) -> type[Scheduler]:
    class Learned(base):
        lpc: Hooks

        def add_request(self, request: Request) -> None:
            super().add_request(request)
            self.lpc.admitted(request)

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            self.lpc.step()
            return super().schedule(*args, **kwargs)

        def shutdown(self) -> None:
            super().shutdown()
            self.lpc.scorer.close()

    Learned.__name__ = Learned.__qualname__ = f"Learned{base.__name__}"
    return Learned


_LEARNED: Final[dict[type[Scheduler], type[Scheduler]]] = {base: _learned(base) for base in (Scheduler, AsyncScheduler)}


def _store(settings: ClientSettings, vllm_config: Any, scheduler: Any) -> MetadataStore | None:
    if settings.pools == "off" or settings.shadow:
        return None
    namespace = namespace_of(settings, vllm_config, scheduler)
    if settings.pools == "shared":
        settings = settings.model_copy(update={"redis_url": None})
    return open_store(settings, namespace)
