"""The adapter to vLLM: ``--scheduler-cls eviction_client.engines.vllm.LearnedScheduler``.

Everything that this project knows of vLLM is in this file. What it touches of a scheduler, after that has been built:

- ``kv_cache_manager.block_pool.free_block_queue`` becomes a :class:`LearnedFreeQueue` with the same blocks, which keeps
  vLLM's own linked list in the order of scores;
- ``kv_cache_manager.free`` and ``pop_blocks_for_free`` are wrapped. Every free of a request passes there (finish, abort,
  preemption, failed load, deferred free), and there the score is laid beside the free that it is meant for: for the length
  of the call, or on the list of blocks whose free is deferred. It never lies on a block, so it cannot outlive its free;
- ``block_pool.unpin_blocks`` is wrapped likewise, where it exists;
- ``add_request`` asks the predictor once vLLM has taken the request.

Frees that carry no score (sliding windows, copy on write) get the prior at the current time. Blocks of a request that goes
on (preempted, failed load) and unpinned ones get the highest score that the queue has at that moment: they go last, as in
stock vLLM, and sink with the others. A score above all that come later would pin them for good if the request never
resumes, and the order under a constant prior would not be stock's.

Nothing here may raise into the scheduler: a hook that fails is counted and logged once, and the blocks get the prior.
"""

import hashlib
import inspect
import json
import logging
import os
import secrets
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

from vllm import __version__ as vllm_version
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
from vllm.v1.request import Request, RequestStatus

from eviction_client.errors import EngineUnsupported
from eviction_client.metrics import EngineMetrics, Values
from eviction_client.predictor_client import PredictorClient
from eviction_client.queue import HEAD, KEY, NEXT, RUN_WIDTH, TO_KEY, FreeBlockQueue
from eviction_client.scorer import Hints, Predictor, Scorer
from eviction_client.settings import ClientSettings
from eviction_client.stores import MetadataStore, open_store
from eviction_client.stores.namespace import Namespace
from lpc.wire.access import access_of

logger = logging.getLogger(__name__)

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

LOOK_AHEAD: Final = 256
"""Blocks to be evicted next about which the store is asked."""

BUCKETS: Final = (-8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 8.0)
"""Upper bounds, log-odds at eviction, of the buckets in which evictions are counted; one more is open."""

_COMPLETED: Final = frozenset(
    getattr(RequestStatus, name)
    for name in ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION")
    if hasattr(RequestStatus, name)
)

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


class LearnedFreeQueue(FreeBlockQueue[KVCacheBlock], FreeKVCacheBlockQueue):
    """vLLM's free queue in the order of scores. A drop-in: without scores it is the stock queue.

    Attributes:
        score: of the blocks that the current call frees; None outside of such calls.
        untagged: gives the score of blocks that no call has scored.
        even: score at which the log-odds were 0 when a block was last scored; what evictions are counted against.
        evictions: blocks evicted by :data:`BUCKETS`.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock] = (), untagged: Callable[[], float] | None = None) -> None:
        super().__init__(KVCacheBlock(block_id=-1), KVCacheBlock(block_id=-1))
        self.fake_free_list_head = self.head
        self.fake_free_list_tail = self.tail
        self.score: float | None = None
        self.untagged = untagged or (lambda: 0.0)
        self.even = 0.0
        self.evictions = [0] * (len(BUCKETS) + 1)
        self.prepend_n(blocks)

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks with content into the order, ``blocks[0]`` to be evicted first."""
        if not blocks:
            return
        score = self.score
        self.insert(blocks, self.untagged() if score is None else score)

    def append(self, block: KVCacheBlock) -> None:
        """As :meth:`append_n`."""
        self.append_n((block,))

    def popleft(self) -> KVCacheBlock:
        """Take out the block to be evicted first. Raises ValueError, in vLLM's words, when there is none."""
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take out the n blocks to be evicted first, in order; ValueError when fewer are free."""
        if n == 0:
            return []
        first = self._first[NEXT]
        if first[HEAD] is self.head.next_free_block and first[KEY] is not None:
            self.evictions[bisect_left(BUCKETS, first[KEY] - TO_KEY - self.even)] += n
        return super().popleft_n(n)

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:  # noqa: ARG002
        """Iterate free blocks in eviction order, from the front: blocks freed since may lie before any cursor."""
        return iter(self)


class DeferredBlocks(list[KVCacheBlock]):
    """Blocks whose free vLLM defers, and the score that they are to get.

    vLLM frees such a list in reverse order, tail first; the score is in force from the last block that it takes out of the
    iterator until the queue has been given what it was meant for.
    """

    def __init__(self, blocks: Iterable[KVCacheBlock], lay: Callable[[float | None], None], score: float | None) -> None:
        super().__init__(blocks)
        self._lay = lay
        self._score = score

    def __reversed__(self) -> Iterator[KVCacheBlock]:
        yield from super().__reversed__()
        self._lay(self._score)


class Plugin:
    """What is attached to one scheduler. All methods belong to its thread, but for ``values``."""

    def __init__(self, scheduler: Any, scorer: Scorer, *, adopt: bool) -> None:
        self.scorer = scorer
        self.raised = 0
        self._hash_block_size: int = getattr(scheduler, "hash_block_size", None) or scheduler.block_size
        manager = scheduler.kv_cache_manager
        self._stock_free: Callable[[Request], None] = manager.free
        self._stock_pop: Callable[[Request], list[KVCacheBlock]] = manager.pop_blocks_for_free
        manager.free = self.free
        manager.pop_blocks_for_free = self.pop_blocks_for_free
        self.queue: LearnedFreeQueue | None = None
        if adopt:
            pool = manager.block_pool
            self.queue = LearnedFreeQueue(pool.free_block_queue.get_all_free_blocks(), self._prior)
            pool.free_block_queue = self.queue
            if hasattr(pool, "unpin_blocks"):
                self._stock_unpin = pool.unpin_blocks
                pool.unpin_blocks = self.unpin_blocks

    # Hooks.

    def admitted(self, request: Request) -> None:
        """Ask the predictor, unless there are no token ids or they will change (streamed input)."""
        started = time.perf_counter()
        try:
            if request.prompt_token_ids and not getattr(request, "resumable", False):
                lora = request.lora_request
                self.scorer.admitted(
                    request.request_id,
                    request.prompt_token_ids,
                    session=_session(request),
                    category="" if lora is None else lora.lora_name,
                )
        except Exception as error:
            self.scorer.failed(error)
        self.scorer.seconds += time.perf_counter() - started

    def free(self, request: Request) -> None:
        """``KVCacheManager.free`` with the request's score in force."""
        score = self._score_of(request)
        queue = self.queue
        if queue is None:
            self._stock_free(request)
            return
        queue.score = score
        try:
            self._stock_free(request)
        finally:
            queue.score = None
        self._look_ahead(queue)

    def pop_blocks_for_free(self, request: Request) -> list[KVCacheBlock]:
        """``KVCacheManager.pop_blocks_for_free``, whose blocks keep the score until they are freed."""
        score = self._score_of(request)
        blocks = self._stock_pop(request)
        return blocks if self.queue is None or not blocks else DeferredBlocks(blocks, self._lay_once, score)

    def unpin_blocks(self, blocks: Iterable[KVCacheBlock], on_reuse: Callable[[KVCacheBlock], None]) -> None:
        """``BlockPool.unpin_blocks``: these go last."""
        queue = self.queue
        assert queue is not None
        queue.score = self._last()
        try:
            self._stock_unpin(blocks, on_reuse)
        finally:
            queue.score = None

    # Scores. None of these raises.

    def _score_of(self, request: Request) -> float | None:
        started = time.perf_counter()
        score: float | None = None
        try:
            if request.is_finished():
                size = self._hash_block_size
                computed = request.block_hashes[: request.num_computed_tokens // size]
                score = self.scorer.finished(
                    request.request_id,
                    completed=request.status in _COMPLETED,
                    blocks=computed,
                    prompt_blocks=min(len(computed), request.num_prompt_tokens // size),
                    session=_session(request),
                    hints=Hints.of(_arguments(request)),
                )
            elif self.queue is not None:
                score = self._last()
        except Exception as error:
            self.scorer.failed(error)
        if self.queue is not None:
            self.queue.even = self.scorer.even
        self.scorer.seconds += time.perf_counter() - started
        # NaN has no place in an order.
        return score if score == score else None

    def _prior(self) -> float:
        try:
            score = self.scorer.prior_score()
            if score == score:
                return score
        except Exception as error:
            self.scorer.failed(error)
        return max(self.queue.highest_score, 0.0) if self.queue is not None else 0.0

    def _last(self) -> float:
        prior = self._prior()
        return prior if self.queue is None else max(prior, self.queue.highest_score)

    def _lay_once(self, score: float | None) -> None:
        """Put a score in force for the one call of the queue that follows, whether it brings blocks or not."""
        queue = self.queue
        assert queue is not None

        def append_n(blocks: Sequence[KVCacheBlock]) -> None:
            del queue.append_n
            queue.score = score
            try:
                queue.append_n(blocks)
            finally:
                queue.score = None

        queue.append_n = append_n  # type: ignore[method-assign]

    def _look_ahead(self, queue: LearnedFreeQueue) -> None:
        started = time.perf_counter()
        try:
            raises = self.scorer.look_ahead(lambda: [h[:-4] for b in queue.next_blocks(LOOK_AHEAD) if (h := b.block_hash)])
            if raises:
                ceiling = self.scorer.ceiling()
                for block, score in queue.candidates(LOOK_AHEAD):
                    # The last four bytes of a block's hash are the number of its KV-cache group.
                    key = block.block_hash
                    known = None if key is None else raises.get(key[:-4])
                    if known is not None and min(known, ceiling) > score + RUN_WIDTH:
                        queue.rescore(block, min(known, ceiling))
                        self.raised += 1
        except Exception as error:
            self.scorer.failed(error)
        self.scorer.seconds += time.perf_counter() - started

    # Metrics; the scorer's thread.

    def values(self) -> Values:
        """What :class:`eviction_client.metrics.EngineMetrics` shows."""
        scorer = self.scorer
        asked = scorer.predictor.counters
        shadows = scorer.shadow_counters
        ended = scorer.scored["prediction"] + scorer.scored["prior"]
        fates = ("asked", "answered", "late", "failed", "dropped", "rejected", "forgotten")
        values: Values = {("lpc_predictions", fate): getattr(asked, fate) for fate in fates}
        values |= {("lpc_requests_scored", by): count for by, count in scorer.scored.items()}
        values |= {
            ("lpc_fallback_share", ""): scorer.scored["prior"] / ended if ended else 0.0,
            ("lpc_pooled_raises", ""): self.raised,
            ("lpc_scheduler_seconds", ""): scorer.seconds,
            ("lpc_failures", ""): scorer.failures,
            ("lpc_beta", ""): scorer.beta,
            ("lpc_regret", ""): scorer.regret,
            ("lpc_shadow_blocks", "asked"): shadows.asked,
            ("lpc_shadow_blocks", "trusting"): shadows.trusting_hits,
            ("lpc_shadow_blocks", "lru"): shadows.lru_hits,
            ("lpc_predictor_connected", ""): float(scorer.predictor.healthy),
            ("lpc_store_healthy", ""): float(scorer.store is not None and scorer.store.healthy),
        }
        if self.queue is not None:
            values["lpc_queue_runs", ""] = self.queue.num_runs
            bounds = (*(f"{bound:g}" for bound in BUCKETS), "+Inf")
            values |= {("lpc_evictions", bound): n for bound, n in zip(bounds, self.queue.evictions, strict=True)}
        return values


class LearnedScheduler:
    """vLLM's scheduler, synchronous or asynchronous as configured, with learned eviction.

    Its ``__new__`` returns a scheduler of vLLM's own class. Tests and embedders subclass it to inject the parts below.

    Raises:
        EngineUnsupported: this vLLM or this configuration is none in which the plug-in works, and
            LPC_ON_UNKNOWN_ENGINE is not ``stock``.
        pydantic.ValidationError: an LPC_ setting is malformed.
    """

    settings: ClassVar[ClientSettings | None] = None
    clock: ClassVar[Callable[[], float]] = staticmethod(time.time)

    @staticmethod
    def open_predictor(settings: ClientSettings, served_model: str) -> Predictor:
        """Return what is asked for predictions."""
        return PredictorClient(
            settings.predictor_address,
            served_model=served_model,
            timeout_s=settings.predictor_timeout_s,
            capacity=settings.predictor_capacity,
            access=access_of(settings),
        )

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        """Build the scheduler that ``scheduler_config.async_scheduling`` asks for, and attach to it."""
        base = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
        settings = cls.settings or ClientSettings()
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
            predictor=cls.open_predictor(settings, settings.served_model or served),
            store=_store(settings, vllm_config, scheduler),
            clock=cls.clock,
        )
        scheduler.lpc = Plugin(scheduler, scorer, adopt=not settings.shadow)
        metrics = EngineMetrics(str(vllm_config.parallel_config.data_parallel_index))
        scorer.on_tick.append(lambda: metrics.update(scheduler.lpc.values()))
        logger.info("learned prefix cache: %s", "shadow mode" if settings.shadow else f"on, scores pooled: {settings.pools}")
        return scheduler


def _learned(base: type[Scheduler]) -> type[Scheduler]:
    class Learned(base):
        lpc: Plugin

        def add_request(self, request: Request) -> None:
            super().add_request(request)
            self.lpc.admitted(request)

        def shutdown(self) -> None:
            super().shutdown()
            self.lpc.scorer.close()

    Learned.__name__ = Learned.__qualname__ = f"Learned{base.__name__}"
    return Learned


_LEARNED: Final[dict[type[Scheduler], type[Scheduler]]] = {base: _learned(base) for base in (Scheduler, AsyncScheduler)}


def _arguments(request: Request) -> dict[str, Any] | None:
    return None if request.sampling_params is None else request.sampling_params.extra_args


def _session(request: Request) -> str | None:
    """Name of the conversation: vLLM's session id, or ``session_id`` among the extra arguments where vLLM has none.

    Under a cache salt, which keeps tenants apart, it is a digest of both: tenants may use the same ids, and the salt is secret.
    """
    session = getattr(request, "session_id", None)
    if session is None and (arguments := _arguments(request)):
        session = arguments.get("session_id")
    if not isinstance(session, str):
        return None
    salt = getattr(request, "cache_salt", None)
    return session if not salt else hashlib.blake2b(session.encode(), key=_key(salt), digest_size=16).hexdigest()


def _key(salt: str) -> bytes:
    return hashlib.sha256(salt.encode()).digest()


def _store(settings: ClientSettings, vllm_config: Any, scheduler: Any) -> MetadataStore | None:
    if settings.pools == "off" or settings.shadow:
        return None
    model = vllm_config.model_config
    algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
    seed = os.environ.get("PYTHONHASHSEED")
    if seed is None and algorithm.startswith("sha256"):
        seed = getattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED", None)
    if seed is None:
        if settings.pools == "fleet":
            logger.warning(
                "learned prefix cache: block hashes of this engine start from a random seed, so that no other engine has the "
                "same: no scores are pooled in the fleet. Set PYTHONHASHSEED to one value in all engines."
            )
        seed = secrets.token_hex(16)
    namespace = Namespace(
        hash_algorithm=algorithm,
        hash_seed=seed,
        block_size=getattr(scheduler, "hash_block_size", None) or scheduler.block_size,
        model=json.dumps([model.model, getattr(model, "revision", None)]),
        tau=settings.tau_s,
    )
    if settings.pools == "shared":
        settings = settings.model_copy(update={"redis_url": None})
    return open_store(settings, namespace)
