"""The policy of vLLM's CPU offload tier: ``eviction_policy`` of an ``OffloadingConnector``.

It holds vLLM's own LRU policy, which sees every call, owns all that vLLM asks for, and evicts, unless the tier's order
(:class:`eviction_client.value_tier.ValueTier`) differs: then that one chooses, and its choice is removed there. So the tier
evicts what vLLM's LRU evicts, key by key, while nothing is known of reuse, under the guard's other rule, in a release with
another LRU, and after any failure here. Methods that a release adds go to its own policy.

Reuse classes reach it through the scheduler plug-in (:mod:`eviction_client.engines.vllm_cpu.placing`): vLLM gives a policy the
id of a request, neither tokens nor session. Without the plug-in the policy is LRU.

Nothing here raises into vLLM, which catches nothing.
"""

import contextlib
import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Final

from vllm.v1.kv_offload.base import OffloadKey, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus, order_request_keys
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy

from eviction_client.value_tier import ValueTier

logger = logging.getLogger(__name__)

_OURS: Final = frozenset(("insert", "remove", "touch", "on_request_access", "on_request_finished", "evict", "clear"))
"""Methods that are more than the LRU policy's."""

Evicted = list[tuple[OffloadKey, ChunkStatus]]

_made: list["LearnedCachePolicy"] | None = None
"""Where policies are noted that are made; None: nowhere."""


@contextlib.contextmanager
def policies_made() -> Iterator[list["LearnedCachePolicy"]]:
    """Return a list of the policies that are made meanwhile, in this thread. Each is to be linked, or left as LRU."""
    global _made
    made: list[LearnedCachePolicy] = []
    _made = made
    try:
        yield made
    finally:
        _made = None


class LearnedCachePolicy(CachePolicy):  # type: ignore[misc]  # mypy runs where vLLM is not installed
    """vLLM's LRU policy, and an order by value before it. Made by vLLM, with the number of chunks that the tier holds."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.lru: Any = LRUCachePolicy(cache_capacity)
        self._tier: ValueTier | None = None
        self._failed: Callable[[Exception], None] | None = None
        self._groups: Sequence[tuple[int, int]] = ()
        self._alone = _made is None
        if _made is not None:
            _made.append(self)
        # What is called for each chunk needs nothing of ours, and what a later release may add has its own policy's meaning.
        for name in dir(self.lru):
            if not name.startswith("_") and callable(method := getattr(self.lru, name)) and name not in _OURS:
                setattr(self, name, method)

    def link(self, tier: ValueTier, failed: Callable[[Exception], None], groups: Sequence[tuple[int, int]] = ()) -> None:
        """Order by this tier from now on.

        Args:
            failed: called with what it raises; from then on the policy is LRU.
            groups: of the KV cache: number, and hashes of a chain that one chunk covers.
        """
        self._tier, self._failed, self._groups = tier, failed, groups

    @property
    def tier(self) -> ValueTier | None:
        """Which orders; None: it is LRU."""
        return self._tier

    def step(self) -> bool:
        """Before a step of the scheduler: do what is due in the tier; return whether more is."""
        return self._tier is not None and bool(self._try(self._tier.step))

    def find(self, chain: Sequence[bytes], above: int) -> list[OffloadKey]:
        """Return the chunks here that follow the first ``above`` hashes of a chain without a gap, in each of the groups."""
        found: list[OffloadKey] = []
        for group, scale in self._groups if self._tier is not None else ():
            ends = range((above // scale + 1) * scale - 1, len(chain), scale)
            found.extend(takewhile(self.lru.get, (make_offload_key(chain[end], group) for end in ends)))
        return found

    def wait(self, request: Hashable, keys: Sequence[OffloadKey]) -> None:
        """Keep chunks that a request will load that waits from now on."""
        if self._tier is not None:
            self._try(self._tier.wait, request, keys)

    def served(self, request: Hashable) -> None:
        """Note that a request does not wait any more."""
        if self._tier is not None:
            self._try(self._tier.served, request)

    # What vLLM calls. See CachePolicy.

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        """Return a chunk, None where there is none."""
        chunk: ChunkStatus | None = self.lru.get(key)
        return chunk

    def insert(self, key: OffloadKey, chunk: ChunkStatus, *context: Any) -> None:
        """Add a chunk. From vLLM 0.33 on, with the context of the request that stores it."""
        self.lru.insert(key, chunk, *context)
        if self._tier is not None:
            self._try(self._tier.store, key)

    def remove(self, key: OffloadKey) -> None:
        """Remove a chunk whose store has failed."""
        self.lru.remove(key)
        if self._tier is not None:
            self._try(self._tier.remove, key)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Chunks are in use."""
        keys = list(keys)
        self.lru.touch(keys, req_context)
        self._touch(keys)

    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Chunks are seen for the first time by a request, which goes on. From vLLM 0.33 on."""
        keys = list(keys)
        self.lru.on_request_access(keys, req_context)
        self._touch(keys)

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: set[OffloadKey],
        reused_keys: set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        """A request has ended; the plug-in's hook has seen its end a step before."""
        self.lru.on_request_finished(key_groups, insertion_only_keys, reused_keys, req_context)
        if self._tier is not None:
            try:
                # The manager has put each group into its order; only several have to be merged.
                keys = key_groups[0] if len(key_groups) == 1 else order_request_keys(key_groups, req_context)
                self._tier.used(req_context.req_id, keys[::-1])
            except Exception as error:
                self._give_up(error)
        elif self._alone:
            self._alone = False
            logger.warning(
                "learned prefix cache: %s runs without our scheduler, which gives it reuse classes, and so is vLLM's own LRU: "
                "start vLLM with --scheduler-cls eviction_client.engines.vllm.LearnedScheduler",
                type(self).__name__,
            )

    def evict(self, n: int, protected: set[OffloadKey]) -> Evicted | None:
        """Evict exactly n chunks that are neither protected nor in use; else return None, and nothing has changed."""
        tier = self._tier
        if tier is None or n <= 0:
            return self._least_recent(n, protected)
        try:
            chosen = self._choose(tier, n, protected) if tier.decides else None
            if chosen is not None:
                tier.evicted([key for key, _ in chosen], by="value")
        except Exception as error:
            self._give_up(error)
            return self._least_recent(n, protected)
        if chosen is not None:
            for key, _ in chosen:
                self.lru.remove(key)
            return chosen
        evicted = self._least_recent(n, protected)
        if evicted is not None:
            self._try(tier.evicted, [key for key, _ in evicted], by="lru")
        return evicted

    def clear(self) -> None:
        """Remove all chunks."""
        self.lru.clear()
        if self._tier is not None:
            self._try(self._tier.clear)

    def _choose(
        self, tier: ValueTier, n: int, protected: Collection[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        get = self.lru.get
        # One that vLLM does not know is a failure of ours.
        keys = tier.choose(n, lambda key: key not in protected and get(key).ref_cnt == 0)
        return None if keys is None else [(key, get(key)) for key in keys]

    def _least_recent(self, n: int, protected: set[OffloadKey]) -> Evicted | None:
        evicted: Evicted | None = self.lru.evict(n, protected)
        return evicted

    def _touch(self, keys: Sequence[OffloadKey]) -> None:
        if self._tier is not None:
            self._try(self._tier.touch, keys[::-1])

    def _try(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Be LRU from now on."""
        self._tier, failed = None, self._failed
        if failed is not None:
            failed(error)
