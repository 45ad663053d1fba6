"""Policy for vLLM's CPU offload tier: the ``eviction_policy`` of an ``OffloadingConnector``.

It wraps vLLM's own LRU policy, which gets every call, owns the data, and evicts, unless the tier's order
(:class:`eviction_client.policy.tier.ChunkTier`) differs: then that order chooses, and the LRU policy removes the chosen chunks.
So the tier evicts exactly like vLLM's LRU while `lru` is in force, in a release with another LRU, and after any failure here.
Methods that a release adds go to its own policy.

Reuse classes come from the scheduler plug-in (:mod:`eviction_client.engines.vllm_cpu.placing`): vLLM gives a policy the id of a
request, but neither tokens nor session. Without the plug-in the policy is LRU.

A tier that serves peers (0.33) calls the policy from a thread of its own too, under its manager's lock. The plug-in's calls
(:meth:`LearnedCachePolicy.step`, ``find``, ``wait``, ``release``) come from the scheduler's thread and take no lock of vLLM's,
because the scheduler must not wait for a transfer: they change nothing of vLLM's, and :class:`ChunkTier` keeps threads apart.

Nothing here raises into vLLM, which catches no exception.
"""

import contextlib
import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Final

from vllm.v1.kv_offload.base import OffloadKey, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus, order_request_keys
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy

from eviction_client.policy.tier import ChunkTier

logger = logging.getLogger(__name__)

_OURS: Final = frozenset(("insert", "remove", "touch", "on_request_access", "on_request_finished", "evict", "clear"))
"""Methods that do more than the LRU policy's."""

Evicted = list[tuple[OffloadKey, ChunkStatus]]

_made: list["LearnedCachePolicy"] | None = None
"""New policies within :func:`policies_made`; otherwise None."""


@contextlib.contextmanager
def policies_made() -> Iterator[list["LearnedCachePolicy"]]:
    """Return a list of the policies created within the context. Link them; the others stay LRU."""
    global _made
    made: list[LearnedCachePolicy] = []
    _made = made
    try:
        yield made
    finally:
        _made = None


class LearnedCachePolicy(CachePolicy):  # type: ignore[misc]  # mypy runs where vLLM is not installed
    """vLLM's LRU policy, with an order by value in front. vLLM creates it with the tier's capacity in chunks."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.lru: Any = LRUCachePolicy(cache_capacity)
        self._tier: ChunkTier | None = None
        self._failed: Callable[[Exception], None] | None = None
        self._groups: Sequence[tuple[int, int]] = ()
        self._alone = _made is None
        if _made is not None:
            _made.append(self)
        # Bind all other methods to the LRU policy: those called per chunk without a detour, and those of later releases.
        for name in dir(self.lru):
            if not name.startswith("_") and callable(method := getattr(self.lru, name)) and name not in _OURS:
                setattr(self, name, method)

    def link(self, tier: ChunkTier, failed: Callable[[Exception], None], groups: Sequence[tuple[int, int]] = ()) -> None:
        """Order by this tier from now on.

        Args:
            failed: called with an exception of the tier; from then on the policy is LRU.
            groups: KV-cache groups: number, and block hashes that one chunk covers.
        """
        self._failed, self._groups = failed, groups
        self._tier = tier  # last: another thread may call from here on

    @property
    def tier(self) -> ChunkTier | None:
        """The tier that orders; None: the policy is LRU."""
        return self._tier

    def step(self) -> bool:
        """Do the tier's work due before a step of the scheduler; return whether some is left."""
        tier = self._tier
        return tier is not None and bool(self._try(tier.step))

    def find(self, chain: Sequence[bytes], above: int) -> list[OffloadKey]:
        """Return the stored chunks that continue a chain without a gap after its first ``above`` hashes, for each group.

        If there are any, those before them come first: without these they could not be reached once the pool loses its copies.
        Another thread may store and evict at the same time: :meth:`wait` ignores what is gone.
        """
        found: list[OffloadKey] = []
        get = self.lru.get
        for group, scale in self._groups if self._tier is not None else ():
            ends, first = range(scale - 1, len(chain), scale), above // scale
            if beyond := list(takewhile(get, (make_offload_key(chain[end], group) for end in ends[first:]))):
                found += filter(get, (make_offload_key(chain[end], group) for end in ends[:first]))
                found += beyond
        return found

    def wait(self, request: Hashable, keys: Sequence[OffloadKey]) -> None:
        """Keep the chunks that a waiting request will load."""
        if (tier := self._tier) is not None:
            self._try(tier.wait, request, keys)

    def release(self, request: Hashable) -> None:
        """Stop keeping chunks for a request."""
        if (tier := self._tier) is not None:
            self._try(tier.release, request)

    # Called by vLLM. See CachePolicy.

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        """Return a chunk, None if it is not stored."""
        chunk: ChunkStatus | None = self.lru.get(key)
        return chunk

    def insert(self, key: OffloadKey, chunk: ChunkStatus, *context: Any) -> None:
        """Add a chunk. vLLM 0.33 and later pass the context of the request that stores it."""
        self.lru.insert(key, chunk, *context)
        if (tier := self._tier) is not None:
            self._try(tier.store, key)

    def remove(self, key: OffloadKey) -> None:
        """Remove a chunk that could not be stored."""
        self.lru.remove(key)
        if (tier := self._tier) is not None:
            self._try(tier.remove, key)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Called when chunks are in use."""
        keys = list(keys)
        self.lru.touch(keys, req_context)
        self._touch(keys)

    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Called when a running request uses chunks for the first time. vLLM 0.33 and later."""
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
        """Called when a request has ended, a step after the plug-in's hook."""
        self.lru.on_request_finished(key_groups, insertion_only_keys, reused_keys, req_context)
        if (tier := self._tier) is not None:
            try:
                # Each group is already in order; several must be merged.
                keys = key_groups[0] if len(key_groups) == 1 else order_request_keys(key_groups, req_context)
                tier.used(req_context.req_id, keys[::-1])
            except Exception as error:
                self._give_up(error)
        elif self._alone:
            self._alone = False
            logger.warning(
                "learned prefix cache: %s is vLLM's own LRU because it gets no reuse classes: "
                "start vLLM with --scheduler-cls eviction_client.engines.vllm.LearnedScheduler",
                type(self).__name__,
            )

    def evict(self, n: int, protected: set[OffloadKey]) -> Evicted | None:
        """Evict exactly n chunks that are neither protected nor in use, or return None and change nothing."""
        tier = self._tier
        if tier is None or n <= 0:
            return self._least_recent(n, protected)
        try:
            chosen = self._choose(tier, n, protected)
            if chosen is not None:
                tier.evicted([key for key, _ in chosen], by="plugin")
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
        if (tier := self._tier) is not None:
            self._try(tier.clear)

    def _choose(
        self, tier: ChunkTier, n: int, protected: Collection[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        get = self.lru.get
        # An unknown key raises: a bug of ours.
        keys = tier.choose(n, lambda key: key not in protected and get(key).ref_cnt == 0)
        return None if keys is None else [(key, get(key)) for key in keys]

    def _least_recent(self, n: int, protected: set[OffloadKey]) -> Evicted | None:
        evicted: Evicted | None = self.lru.evict(n, protected)
        return evicted

    def _touch(self, keys: Sequence[OffloadKey]) -> None:
        if (tier := self._tier) is not None:
            self._try(tier.touch, keys[::-1])

    def _try(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Switch to LRU for good."""
        self._tier, failed = None, self._failed
        if failed is not None:
            failed(error)
