"""What the plug-in hangs into a radix cache of SGLang (``UnifiedRadixCache``), once that has been built.

- ``match_prefix``: the first match for a request is its admission. The predictor is asked;
- ``checkpoint_into_tree`` takes a request's tokens into the tree, when they are computed and when the request ends. At its end
  it gets its keys (:class:`eviction_client.scorer.Scorer`);
- ``insert``, by which it does that: the nodes get the priority that follows (:mod:`eviction_client.engines.sglang.priorities`).
  ``req.priority``, which the scheduler reads too, is not touched;
- ``on_release``: what a request leaves that was stopped, and goes on later, counts as used now;
- ``_evict_device_leaf``, ``reset``: what goes shows how long blocks live (:mod:`eviction_client.engines.sglang.ledger`).

All of them are attributes of this very object: its class, and so every other cache of the process, stays SGLang's own.

Nothing here may raise into the scheduler: a hook that fails is counted and logged once, and what SGLang would have done is
done. All calls are its scheduler's thread's.
"""

import math
import time
from array import array
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakSet

from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from eviction_client.engines.sglang.chain import BLOCK_TOKENS, TokenChain
from eviction_client.engines.sglang.ledger import Ledger
from eviction_client.engines.sglang.priorities import LOWEST, Priorities
from eviction_client.engines.sglang.requests import arguments_of, asks_nothing, completed, session_of, space_of
from eviction_client.hints import NO_HINTS, Hints, Retained
from eviction_client.score import Keys
from eviction_client.scorer import Scorer

MAX_LATE: Final = 1024
"""Ended requests whose tokens are kept because their answer may still come."""


class Hooks:
    """What is attached to one radix cache.

    Args:
        adopt: order the tree; else (shadow mode) SGLang's own order stays.

    Attributes:
        adopted: the tree is ordered.
    """

    def __init__(self, cache: Any, scorer: Scorer, *, adopt: bool) -> None:
        self.scorer = scorer
        self.adopted = adopt
        self._cache = cache
        self._priorities = Priorities()
        scorer.lifetime.capacity = max(int(cache.token_to_kv_pool_allocator.size), 1)  # in tokens, as evictions are
        self._ledger = Ledger(scorer.lifetime)
        scorer.retained = Retained(scorer.settings.hints_share * scorer.lifetime.capacity, rises=True)  # in tokens, too
        scorer.owners = None  # a priority only rises: `done` cannot lower what another request has used
        self._base = cache.tree_components[0]
        # Only where a tree holds nothing but KV does SGLang itself insert once more what is in the tree already.
        self._raises = adopt and len(cache.tree_components) == 1
        self._asked: WeakSet[Any] = WeakSet()
        self._lowered: WeakSet[Any] = WeakSet()
        """Running requests whose nodes have the lowest priority."""
        self._ended = 0
        self._late: dict[Any, Any] = {}
        """Keys of the tree by the request whose answer may still come."""
        self._priority: int | None = None
        """What the nodes get that are inserted now."""
        self._inserted: Any = None
        self._stock_match: Callable[..., Any] = cache.match_prefix
        self._stock_checkpoint: Callable[..., None] = cache.checkpoint_into_tree
        self._stock_insert: Callable[..., Any] = cache.insert
        self._stock_release: Callable[..., None] = cache.on_release
        self._stock_evict: Callable[..., Any] = cache._evict_device_leaf
        self._stock_reset: Callable[[], None] = cache.reset
        cache.match_prefix, cache.checkpoint_into_tree = self.match_prefix, self.checkpoint_into_tree
        if adopt:
            cache.insert, cache.on_release = self.insert, self.on_release
            cache._evict_device_leaf, cache.reset = self.evict_device_leaf, self.reset

    def match_prefix(self, params: Any) -> Any:
        """``UnifiedRadixCache.match_prefix``, which at the first time for a request asks the predictor."""
        started = time.perf_counter()
        try:
            self._step()
            req = params.req
            if req is not None and req not in self._asked:
                self._asked.add(req)
                if not asks_nothing(req):
                    self.scorer.admitted(
                        req.rid, req.origin_input_ids_unpadded, session=session_of(req), category=req.lora_id or ""
                    )
        except Exception as error:
            self.scorer.failed(error)
        self.scorer.seconds += time.perf_counter() - started
        return self._stock_match(params)

    def checkpoint_into_tree(self, req: Any, *, up_to: int, **others: Any) -> None:
        """``UnifiedRadixCache.checkpoint_into_tree``, whose nodes get the request's priority."""
        started = time.perf_counter()
        keys = None
        try:
            self._step()
            hints = Hints.of(arguments_of(req))
            if req.finished():
                keys, moved = self._keys_of(req, up_to, hints)
                self._priority = self._priorities.ended(keys, self.scorer.now(), moved)
                self._lowered.discard(req)
            elif self._raises and req.session is None and (self._priorities.trusting or self._allowed(hints).done):
                # What it gets at its end could not be lower than what it gets now; until then it is not evicted.
                self._priority = LOWEST
                self._lowered.add(req)
            else:
                self._priority = self._priorities.going_on(self.scorer.now())
        except Exception as error:
            self.scorer.failed(error)
        stock = time.perf_counter()
        try:
            self._stock_checkpoint(req, up_to=up_to, **others)
        finally:
            self._priority = None
        ours = stock - started
        stock = time.perf_counter()
        try:
            if keys is not None and self.adopted:
                self._remember(req, keys)
        except Exception as error:
            self.scorer.failed(error)
        self._inserted = None
        self.scorer.seconds += ours + time.perf_counter() - stock

    def insert(self, params: Any) -> Any:
        """``UnifiedRadixCache.insert``, which gives the priority of the request that is taken into the tree."""
        try:
            if self._priority is not None:
                params.priority = self._priority
                if self._inserted is None:
                    self._inserted = params.key
            else:
                params.priority = self._priorities.going_on(self.scorer.now())
        except Exception as error:
            self.scorer.failed(error)
        return self._stock_insert(params)

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        """``UnifiedRadixCache.on_release``, before which what is left of a request that was stopped is given its priority."""
        if not checkpointed:
            try:
                if req in self._lowered:
                    self._lowered.discard(req)
                    tokens = req.full_untruncated_fill_ids[: req.kv.cache_protected_len]
                    bigrams = self._cache.tree_core.is_eagle
                    key = RadixKey(tokens, req.extra_key, is_bigram=bigrams, cache_salt=req.cache_salt)
                    self._raise(key, req.last_node, self._priorities.going_on(self.scorer.now()))
                if req.finished():
                    self.scorer.predictor.forget(req.rid)
            except Exception as error:
                self.scorer.failed(error)
        self._stock_release(req, checkpointed=checkpointed)

    def evict_device_leaf(self, node_id: Any, tracker: Any) -> Any:
        """``UnifiedRadixCache._evict_device_leaf``, from which the lifetime is learnt."""
        before = self._counted(tracker)
        result = self._stock_evict(node_id, tracker)
        try:
            tokens = self._counted(tracker) - before
            self._ledger.evicted(node_id, tokens, self.scorer.now(), trusting=self._priorities.trusting)
        except Exception as error:
            self.scorer.failed(error)
        return result

    def _counted(self, tracker: Any) -> int:
        """Return the tokens that were evicted so far, by SGLang's own count."""
        try:
            return int(tracker.get(self._base, 0))
        except Exception as error:
            self.scorer.failed(error)
            return 0

    def reset(self) -> None:
        """``UnifiedRadixCache.reset``, with which the nodes are gone."""
        self._ledger.clear()
        self._late.clear()
        self.scorer.retained.clear()
        self._stock_reset()

    def _step(self) -> None:
        """Do what is due: follow the guard, lay credit that came late."""
        scorer, priorities = self.scorer, self._priorities
        priorities.follow(scorer.trusting, scorer.now())
        for request_id, keys in scorer.late():
            key = self._late.pop(request_id, None)
            if key is not None and keys is not None and priorities.trusting and self._raises:
                self._raise_key(key, priorities.ended(keys, scorer.now(), 0.0))

    def _allowed(self, hints: Hints) -> Hints:
        return hints if self.scorer.settings.hints else NO_HINTS

    def _keys_of(self, req: Any, up_to: int, hints: Hints) -> tuple[Keys, float]:
        """Return the keys of a request that ends, and by how many seconds a hint moves its last use; -inf: it is done."""
        scorer = self.scorer
        tokens = array("q", req.full_untruncated_fill_ids[:up_to])
        self._ended += 1
        chain = TokenChain(tokens, space_of(req))
        finished = scorer.finished(
            req.rid,
            completed=completed(req),
            blocks=chain,
            prompt_blocks=len(req.origin_input_ids) // BLOCK_TOKENS,
            # In the tree a key only rises, as a block's does that is shared. A name of its own for each request makes the
            # shadow caches do as the tree does.
            session=str(self._ended),
            hints=hints,
        )
        if not self.adopted:
            scorer.lifetime.seconds = scorer.shadow_lifetime
        keys, asked = finished.keys, finished.asked
        if asked.own is not None:
            return Keys.done(finished.ended), -math.inf
        seconds = asked.retain_s
        if seconds:
            sizes = chain.sizes(tokens[len(chain) * BLOCK_TOKENS :])
            if not scorer.retained.hold(sizes, keys.t_last + seconds, finished.ended):
                return keys, 0.0
            return keys.retained_for(seconds), seconds
        return keys, 0.0

    def _remember(self, req: Any, keys: Keys) -> None:
        """Note the keys of the nodes of a request that has ended, and its tokens where its answer may still come."""
        (path,) = self._cache.tree_core.collect_path_info([req.last_node])
        self._ledger.used((node.node_id for node in path), keys)
        if self._inserted is not None and self._raises and self.scorer.awaits(req.rid):
            while len(self._late) >= MAX_LATE:
                self._late.pop(next(iter(self._late)))
            self._late[req.rid] = self._inserted

    def _raise_key(self, key: Any, priority: int) -> None:
        """Raise what is still there of a key of the tree."""
        cache = self._cache
        match = cache.tree_core.match_prefix(MatchPrefixParams(key=key))
        cache._apply_cache_actions(match.cache_actions)
        if match.device_prefix_len > 0:
            self._raise(key[: match.device_prefix_len], match.last_device_node, priority)

    def _raise(self, key: Any, node: Any, priority: int) -> None:
        """Insert what is there once more: as SGLang itself does, so that nothing is taken for a duplicate and freed."""
        values = self._cache.path_device_indices(node)
        if len(values) != len(key):
            return
        known = len(key)
        self._stock_insert(InsertParams(key=key, value=values, prev_prefix_len=known, inserted_len=known, priority=priority))
