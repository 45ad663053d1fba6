"""Installs the plug-in in a V0 engine if it is compatible: vLLM 0.6 to 0.10, and forks of these.

V0 before 0.8 has no flag for a scheduler, so the general plug-in (:func:`eviction_client.engines.vllm_v0.register`) calls
:func:`watch` to wrap ``LLMEngine.__init__``: the schedulers of each engine built in this process get the hooks. (vLLM 0.6.0
loads plug-ins inside that method; there the first request installs the hooks.) First :func:`find_incompatibility` compares the
evictors' signatures, and a few evictions of small allocators of the engine's own class.
"""

import atexit
import inspect
import json
import logging
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from eviction_client.ended import Ended
from eviction_client.engines.fallback import stay_stock
from eviction_client.engines.vllm.logs import join_vllms_logging
from eviction_client.engines.vllm.tokenizer import finder_of
from eviction_client.engines.vllm_v0 import TESTED, names
from eviction_client.engines.vllm_v0.evictor import LearnedEvictor
from eviction_client.engines.vllm_v0.hooks import Hooks, gpu_allocator
from eviction_client.errors import EngineUnsupported
from eviction_client.metrics import EngineMetrics, Values
from eviction_client.plugin import Plugin, Predictor
from eviction_client.plugin_metrics import values_of_plugin, values_of_waited
from eviction_client.predictor_client import PredictorClient
from eviction_client.settings import ClientSettings
from eviction_client.stores import BlockStore, open_store
from eviction_client.stores.namespace import Namespace
from lpc.model.curve import KNOTS

logger = logging.getLogger(__name__)

INTERFACE: Final = ("add", "evict", "remove", "update", "num_blocks", "__contains__")
"""Attributes of the evictor that an allocator uses."""
BLOCKS: Final = 5
BLOCK_TOKENS: Final = 4
EVICTED: Final = [4, 3, 2, 1, 0]
"""Result of :func:`_evictions` under LRU."""


def watch(settings: ClientSettings, release: str) -> None:
    """Attach hooks to every engine that this process builds from now on. Raises ImportError if this vLLM has no V0 engine."""
    import vllm.core.scheduler  # noqa: F401  # removed with V0, in 0.11
    from vllm.engine.llm_engine import LLMEngine

    if getattr(LLMEngine.__init__, "lpc", False):
        return
    stock_init, stock_add = LLMEngine.__init__, LLMEngine._add_processed_request

    def init(engine: Any, *args: Any, **kwargs: Any) -> None:
        stock_init(engine, *args, **kwargs)
        attach(engine, settings, release)

    def add(engine: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(engine, "lpc"):
            attach(engine, settings.model_copy(update={"on_unknown_engine": "stock"}), release)
        return stock_add(engine, *args, **kwargs)

    init.lpc = True  # type: ignore[attr-defined]
    LLMEngine.__init__, LLMEngine._add_processed_request = init, add


def attach(
    engine: Any,
    settings: ClientSettings,
    release: str,
    open_predictor: Callable[[ClientSettings, Any], Predictor] | None = None,
) -> None:
    """Attach hooks to each scheduler of an engine (one per pipeline stage) and list them in ``engine.lpc``. Log one line.

    If the plug-in does not work in this engine, stock LRU stays.

    Raises:
        EngineUnsupported: the plug-in does not work in this engine, and LPC_ON_UNKNOWN_ENGINE is ``refuse``.
    """
    engine.lpc = []
    try:
        _attach_to_all(engine, settings, release, open_predictor or _predictor)
    except EngineUnsupported:
        raise
    except Exception as error:
        logger.error("learned prefix cache: cannot enable it in the V0 engine: %s: %s", type(error).__name__, error)


def _attach_to_all(
    engine: Any, settings: ClientSettings, release: str, open_predictor: Callable[[ClientSettings, Any], Predictor]
) -> None:
    join_vllms_logging()
    for number, scheduler in enumerate(engine.scheduler):
        if not scheduler.cache_config.enable_prefix_caching:
            logger.warning("learned prefix cache: off, because prefix caching is off in vLLM")
            return
        metrics = EngineMetrics(str(number))
        reason = find_incompatibility(scheduler)
        if reason is None:
            try:
                engine.lpc.append(_attach(scheduler, settings, engine, open_predictor, metrics))
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
        if reason is not None:
            stay_stock(settings, metrics, engine="vLLM", release=release, variant=" (V0)", reason=reason, tested=TESTED)
            return
    if settings.tenant_floors:
        logger.warning("learned prefix cache: LPC_TENANT_FLOORS has no effect in the V0 engine")
    mode = "dry run" if settings.shadow else "on"
    tested = f"vLLM {release}" if release in TESTED else f"vLLM {release} is an untested release"
    logger.info("learned prefix cache: %s in the V0 engine; %s, check passed", mode, tested)


def find_incompatibility(scheduler: Any) -> str | None:
    """Return why the plug-in does not work in this scheduler, None if it does. Raises nothing."""
    try:
        manager = scheduler.block_manager
        if not hasattr(manager, "block_allocator"):
            return f"its {type(manager).__name__} does not evict blocks by id: start it with --use-v2-block-manager"
        allocator = gpu_allocator(manager)
        return _interface(allocator.evictor) or _order(allocator)
    except Exception as error:
        return f"the check of its allocator failed: {type(error).__name__}: {error}"


def _interface(stock: Any) -> str | None:
    for cls in type(stock).__mro__:
        unknown = set(getattr(cls, "__abstractmethods__", ())) - {*INTERFACE, "__init__"}
        if unknown:
            return f"it uses `{min(unknown)}` of its evictor, which our evictor lacks"
    for name in ("add", "evict", "remove", "update"):
        theirs, ours = (list(inspect.signature(getattr(cls, name)).parameters) for cls in (type(stock), LearnedEvictor))
        if theirs != ours:
            return f"its evictor's {name}({', '.join(theirs[1:])}) takes other arguments"
    return None


def _order(allocator: Any) -> str | None:
    for whose, value_enabled in (("", None), (" with our evictor", False), (" with our evictor, by value,", True)):
        found = _evictions(_small(allocator), value_enabled)
        if found != EVICTED:
            return f"its allocator{whose} evicts blocks in the order {found}, not {EVICTED}"
    return None


def _evictions(allocator: Any, value_enabled: bool | None) -> list[int]:
    """Use two chains of two blocks, and the first again; return the blocks in the order in which the allocator reuses them.

    Args:
        value_enabled: rule of our evictor, where all blocks have one falling value, which is LRU; None: the stock evictor.
    """
    evictor: LearnedEvictor | None = None
    if value_enabled is not None:
        now = count(2e9, 1.0).__next__
        allocator.evictor = evictor = LearnedEvictor(allocator.evictor, 1, block_size=BLOCK_TOKENS, clock=now)
        evictor.queue.set_tables([[1.0 / (1.0 + age) for age in KNOTS]])
        evictor.queue.value_enabled = value_enabled

    def allocate(*contents: int) -> list[Any]:
        chain: list[Any] = []
        for content in contents:
            previous = chain[-1] if chain else None
            chain.append(allocator.allocate_immutable_block(prev_block=previous, token_ids=[content] * BLOCK_TOKENS))
        return chain

    def free(chain: list[Any]) -> None:
        for block in chain:
            allocator.free(block)

    for number, contents in enumerate(((1, 2), (3, 4), (1, 2))):
        chain = allocate(*contents)
        allocator.mark_blocks_as_accessed([block.block_id for block in chain], 1e9 + number)
        if evictor is None:
            free(chain)
        else:
            evictor.placing(Ended(None, None, (), 0, 0.0, 0, ()), free, chain)
    return [allocate(content)[0].block_id for content in range(5, 5 + BLOCKS)]


def _small(allocator: Any) -> Any:
    return type(allocator)(num_blocks=BLOCKS, block_size=BLOCK_TOKENS)


def _attach(
    scheduler: Any,
    settings: ClientSettings,
    engine: Any,
    open_predictor: Callable[[ClientSettings, Any], Predictor],
    metrics: EngineMetrics,
) -> Hooks:
    allocator = gpu_allocator(scheduler.block_manager)
    block_size = scheduler.block_manager.block_size
    plugin = Plugin(
        settings,
        capacity=allocator.get_num_total_blocks(),
        block_tokens=block_size,
        predictor=open_predictor(settings, engine),
        store=_store(settings, block_size),
    )
    try:
        named_alike = names.alike(_small(allocator))
        if not named_alike and settings.keep_waiting:
            logger.warning("learned prefix cache: unknown kind of block hashes: no blocks are kept for waiting requests")
        hooks = Hooks(scheduler, plugin, adopt=not settings.shadow, named_alike=named_alike)
    except BaseException:
        plugin.close()
        raise
    plugin.on_tick.append(lambda: metrics.update(_values_of(hooks)))
    atexit.register(plugin.close)  # a V0 scheduler has no shutdown
    return hooks


def _values_of(hooks: Hooks) -> Values:
    values = values_of_plugin(hooks.plugin) | values_of_waited(hooks.keep.waited)
    if hooks.evictor is not None:
        values["lpc_queue_runs", ""] = hooks.evictor.queue.num_runs
    return values


def _predictor(settings: ClientSettings, engine: Any) -> Predictor:
    model = engine.model_config
    served = model.served_model_name if isinstance(model.served_model_name, str) else model.model
    return PredictorClient.of(settings, served, finder_of(engine))


def _store(settings: ClientSettings, block_size: int) -> BlockStore | None:
    """Return a store in this process: V0's content hashes are Python's, seeded per process, so a fleet cannot share them."""
    if settings.pools == "off" or settings.shadow:
        return None
    if settings.pools == "fleet":
        logger.warning("learned prefix cache: V0's block hashes differ between processes: keys are pooled in this engine only")
    namespace = Namespace("python", json.dumps(None), block_size, "")
    return open_store(settings.model_copy(update={"redis_url": None}), namespace)
