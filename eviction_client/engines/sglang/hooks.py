"""Hooks of the plug-in in a radix cache of SGLang (``UnifiedRadixCache``).

- ``match_prefix``: the first match for a request is its admission. It requests a prediction and keeps the matched prefix.
- ``checkpoint_into_tree`` inserts a request's tokens into the tree, when they are computed and when the request ends. The first
  call counts the reuses in the prompt; the last one gives the nodes their reuse classes.
- ``on_release``: the nodes of a preempted request are to be used soon.
- ``reset``: the nodes are gone.
- ``tree_core.evict_device_start`` begins an eviction: sets the time at which the nodes are valued.
- ``tree_core.eviction_strategy`` becomes a :class:`eviction_client.engines.sglang.order.RuleStrategy`.

The hooks are attributes of these objects: the classes, and so all other caches of the process, stay SGLang's own. The hooks do
not change ``req.priority``, which the scheduler reads.

No hook raises into the scheduler: a failure is counted and logged once, and SGLang's own method runs. All calls come from the
scheduler's thread.
"""

import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from eviction_client.engines.sglang.chain import BLOCK_TOKENS, TokenChain
from eviction_client.engines.sglang.order import RuleStrategy, classes_of
from eviction_client.engines.sglang.requests import (
    arguments_of,
    category_of,
    completed,
    id_of,
    is_conversation,
    kind_of,
    reply_end_of,
    session_of,
    space_of,
    tenant_of,
    user_of,
)
from eviction_client.engines.sglang.waiting_prefixes import WaitingPrefixes
from eviction_client.plugin import Plugin
from eviction_client.policy.hints import Hints, Retained
from eviction_client.policy.queue.free_queue import PREEMPTED
from eviction_client.policy.request import TrackedRequest


class Hooks:
    """The hooks in one radix cache.

    Args:
        adopt: replace the tree's order; false in a dry run.

    Raises:
        Exception: the cache lacks a required attribute. Nothing was attached.

    Attributes:
        order: the tree's eviction strategy; None in a dry run.
    """

    def __init__(self, cache: Any, plugin: Plugin, *, adopt: bool) -> None:
        self.plugin = plugin
        self.order: RuleStrategy | None = None
        self._core = cache.tree_core
        self._protected_size: Callable[[], int] = self._core.full_protected_size
        self._asked: WeakSet[Any] = WeakSet()
        self._keep = WaitingPrefixes(self._dropped) if adopt and plugin.settings.keep_waiting else None
        self._started: WeakSet[Any] = WeakSet()
        self._waiting: set[str] = set()
        """Ids of the requests that count as waiting."""
        self._stock_match: Callable[..., Any] = cache.match_prefix
        self._stock_checkpoint: Callable[..., None] = cache.checkpoint_into_tree
        self._stock_release: Callable[..., None] = cache.on_release
        self._stock_reset: Callable[[], None] = cache.reset
        # Counted in tokens: hints retain whole nodes, whose sizes differ.
        tokens = int(cache.token_to_kv_pool_allocator.size)
        plugin.retained = Retained(plugin.settings.hints_share * tokens)
        if adopt:
            if not hasattr(self._core, "eviction_strategy"):
                raise TypeError("its tree core has no eviction strategy")
            self._stock_evict: Callable[..., None] = self._core.evict_device_start
            self._core.eviction_strategy = self.order = RuleStrategy(plugin.failed, self._keep)
            self._core.evict_device_start = self.evict_device_start
            plugin.set_rule(self.order)
        cache.match_prefix, cache.checkpoint_into_tree = self.match_prefix, self.checkpoint_into_tree
        cache.on_release, cache.reset = self.on_release, self.reset

    def match_prefix(self, params: Any) -> Any:
        """``UnifiedRadixCache.match_prefix``; the first call for a request also requests a prediction."""
        started = time.perf_counter()
        joins: Any = None
        try:
            self._step()
            req = params.req
            if req is not None and req not in self._asked:
                self._asked.add(req)
                if is_conversation(req):
                    joins = req
                    self.plugin.admitted(
                        *(id_of(req), req.origin_input_ids_unpadded),
                        session=session_of(req),
                        category=kind_of(req),
                        user=user_of(req),
                    )
        except Exception as error:
            self.plugin.failed(error)
        stock = time.perf_counter()
        matched = self._stock_match(params)
        after = time.perf_counter()
        try:
            if joins is not None and self._keep is not None and not self.plugin.lru_forced:
                self._wait(joins, matched.last_device_node)
        except Exception as error:
            self.plugin.failed(error)
        self.plugin.seconds += stock - started + time.perf_counter() - after
        return matched

    def _wait(self, req: Any, node_id: Any) -> None:
        """Keep the matched prefix of a request until its prompt is computed."""
        assert self._keep is not None
        node = self._core.node_by_id(node_id)
        if self._keep.join(req, None if node is self._core.root_node else node):
            chain = TokenChain(array("q", req.origin_input_ids), space_of(req))
            self._waiting.add(id_of(req))
            self.plugin.started(id_of(req), chain, kept=True)

    def _dropped(self, request_id: str) -> None:
        """Forget a request that SGLang has dropped while it waited."""
        try:
            if request_id in self._waiting:
                self._waiting.discard(request_id)
                self.plugin.finished(request_id, completed=False, blocks=(), prompt_blocks=0)
        except Exception as error:
            self.plugin.failed(error)

    def checkpoint_into_tree(self, req: Any, *, up_to: int, **others: Any) -> None:
        """``UnifiedRadixCache.checkpoint_into_tree``; the nodes of a finished request then get their classes."""
        started = time.perf_counter()
        finished: TrackedRequest[Any] | None = None
        try:
            self._step()
            if req not in self._started:
                self._started.add(req)
                if self._keep is not None and req in self._keep:
                    self._keep.leave(req)
                    self._waiting.discard(id_of(req))
                else:
                    self.plugin.started(id_of(req), _chain_of(req, len(req.origin_input_ids)))
            if req.finished():
                finished = self._finished(req, up_to)
        except Exception as error:
            self.plugin.failed(error)
        stock = time.perf_counter()
        self._stock_checkpoint(req, up_to=up_to, **others)
        after = time.perf_counter()
        try:
            if finished is not None and self.order is not None:
                self._place(self._path_of(req.last_node), finished)
        except Exception as error:
            self.plugin.failed(error)
        self.plugin.seconds += stock - started + time.perf_counter() - after

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        """``UnifiedRadixCache.on_release``; before it, the nodes of a preempted request are marked as used soon."""
        if not checkpointed:
            try:
                if req.finished():
                    self.plugin.finished(id_of(req), completed=False, blocks=(), prompt_blocks=0)
                elif self.order is not None:
                    nodes = self._path_of(req.last_node)
                    self.order.used(nodes, [PREEMPTED] * len(nodes), self.plugin.now())
            except Exception as error:
                self.plugin.failed(error)
        self._stock_release(req, checkpointed=checkpointed)

    def evict_device_start(self, *args: Any, **kwargs: Any) -> None:
        """``UnifiedTreeCore.evict_device_start``, which calls the strategy for all leaves; sets its time first."""
        assert self.order is not None
        try:
            self.order.now = self.plugin.now()
        except Exception as error:
            self.plugin.failed(error)
        self._stock_evict(*args, **kwargs)

    def reset(self) -> None:
        """``UnifiedRadixCache.reset``, which removes all nodes."""
        self.plugin.retained.clear()
        try:
            self.plugin.reset()
        except Exception as error:
            self.plugin.failed(error)
        self._stock_reset()

    def _step(self) -> None:
        """Set the order to the rule in force and its latest tables."""
        if self.order is not None:
            self.plugin.set_rule(self.order)
        if self._keep is not None:
            self._keep.enabled = not self.plugin.lru_forced

    def _finished(self, req: Any, up_to: int) -> TrackedRequest[Any]:
        """Pass the end of a request to the plug-in."""
        blocks = _chain_of(req, up_to)
        self.plugin.in_use(self._protected_size() // BLOCK_TOKENS)
        self.plugin.served(id_of(req), req.cached_tokens)
        return self.plugin.finished(
            id_of(req),
            completed=completed(req),
            blocks=blocks,
            prompt_blocks=min(len(req.origin_input_ids) // BLOCK_TOKENS, len(blocks)),
            reply_end=reply_end_of(req),
            session=session_of(req),
            hints=Hints.of(arguments_of(req)),
            token_ids=req.origin_input_ids,
            tenant=tenant_of(req),
            category=category_of(req),
        )

    def _path_of(self, node_id: Any) -> list[Any]:
        """Return the nodes from the tree's root (exclusive) to a node."""
        path = []
        node = self._core.node_by_id(node_id)
        while node is not self._core.root_node:
            path.append(node)
            node = node.parent
        return path[::-1]

    def _place(self, path: Sequence[Any], finished: TrackedRequest[Any]) -> None:
        """Give the nodes of a finished request their reuse classes, or retain them as its hint says."""
        assert self.order is not None
        retained, until = self.plugin.retained, 0.0
        if finished.retain_s:
            until = finished.at + finished.retain_s
            if not retained.hold({node.id: len(node.key) for node in path}, until, finished.at):
                until = 0.0
        if not until:
            retained.release([node.id for node in path])
        self.order.used(path, classes_of(finished, [len(node.key) for node in path]), finished.at, until)


def _chain_of(req: Any, up_to: int) -> TokenChain:
    """Return a request's blocks; none if it is not a conversation."""
    return TokenChain(array("q", req.full_untruncated_fill_ids[:up_to] if is_conversation(req) else ()), space_of(req))
