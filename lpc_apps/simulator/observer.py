"""Reconstructs requests from an engine's KV events and feeds them to a plug-in that only observes.

An event reports blocks stored after a parent block. If the parent is cached, a request has hit the chain up to it. Blocks that
follow one by one are the reply. An event for cached blocks is a hit (vLLM's ``kv_cache_report_mode=full``).

Events do not show a request that stores nothing (the whole prompt was cached, and the reply fills no block), nor the end of a
request. A request counts as ended after `PAUSE_S` without a stored block.
"""

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from eviction_client.background import AtOnce
from eviction_client.messages import Prediction
from eviction_client.offer import TokenizerState
from eviction_client.plugin import Plugin
from eviction_client.predictor_client import PredictorCounters
from eviction_client.prior import ReuseCurves
from eviction_client.settings import ClientSettings
from eviction_client.stores.base import BlockHash
from lpc_apps.simulator.kv_events import Batch

PAUSE_S: Final = 2.0
"""Seconds without a stored block after which a request counts as ended. A block of 16 tokens takes less than one second."""
GPU: Final = (None, "GPU")
"""Values of ``medium`` for the engine's own cache."""


class NoPredictor:
    """A predictor client without a sidecar."""

    counters = PredictorCounters()
    healthy = False
    reuse_curves: ReuseCurves | None = None
    tokenizer_state: TokenizerState = "unknown"

    def ask(self, request_id: Hashable, **_: object) -> None:
        """Do nothing."""

    def take(self, request_id: Hashable) -> Prediction | None:  # noqa: ARG002
        """Return None."""
        return None

    def forget(self, request_id: Hashable) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class _Request:
    """A running request. ``cached`` and ``prompt`` are numbers of blocks."""

    chain: list[BlockHash]
    cached: int
    prompt: int
    at: float
    tokens: Sequence[int]
    salt: str
    session: str | None
    replies: bool = False


class Observer:
    """Follows the events of one engine.

    Args:
        blocks: capacity of the engine's cache.

    Attributes:
        plugin: the observing plug-in; None before the first stored block.
        requests: number of ended requests.
        lost: number of lost messages.
    """

    def __init__(self, blocks: int) -> None:
        self.plugin: Plugin | None = None
        self.requests = self.lost = 0
        self._blocks = blocks
        self._now = 0.0
        self._parents: dict[BlockHash, BlockHash | None] = {}
        """Parent of each cached block."""
        self._first: dict[BlockHash, tuple[Sequence[int], str]] = {}
        """Tokens and cache salt of first blocks."""
        self._running: OrderedDict[BlockHash, _Request] = OrderedDict()
        """Running requests by their last block, the least recently active one first."""

    def see(self, batch: Batch) -> None:
        """Process a batch."""
        self._now = max(self._now, batch.at)
        self.lost += batch.lost
        if batch.lost:
            self._clear()  # the contents of the cache are unknown
        for event in batch.events:
            kind = event.get("type")
            if kind == "AllBlocksCleared":
                self._clear()
            elif event.get("medium") in GPU and not event.get("group_idx"):
                if kind == "BlockStored":
                    self._stored(event)
                elif kind == "BlockRemoved":
                    for block in map(_hash, event["block_hashes"]):
                        self._parents.pop(block, None)
                        self._first.pop(block, None)
        while self._running and next(iter(self._running.values())).at < self._now - PAUSE_S:
            self._end(self._running.popitem(last=False)[1])

    def finish(self) -> None:
        """End all requests."""
        for request in self._running.values():
            self._end(request)
        self._running.clear()

    def _clear(self) -> None:
        self.finish()
        self._parents.clear()
        self._first.clear()

    def _stored(self, event: Mapping[str, Any]) -> None:
        size: int = event["block_size"]
        if self.plugin is None:
            self.plugin = Plugin(
                ClientSettings(shadow=True),
                capacity=self._blocks,
                block_tokens=size,
                predictor=NoPredictor(),
                clock=lambda: self._now,
                background=AtOnce,
            )
        blocks = [_hash(block) for block in event["block_hashes"]]
        parent = None if event.get("parent_block_hash") is None else _hash(event["parent_block_hash"])
        if not blocks or size != self.plugin.block_tokens or (parent is not None and parent not in self._parents):
            return  # the chain began before the observer started
        hit = blocks[-1] in self._parents
        running = None if parent is None or hit else self._running.pop(parent, None)
        if parent is None:
            self._first.setdefault(blocks[0], (event["token_ids"][:size], _salt_of(event)))
        for block in blocks:
            self._parents.setdefault(block, parent)
            parent = block
        if running is not None and running.replies and len(blocks) > 1:
            self._end(running)  # several blocks after a reply are the next turn, because a reply grows block by block
            running = None
        if running is None:
            before = self._chain(self._parents[blocks[0]])
            chain = [*before, *blocks]
            cached = len(chain) if hit else len(before)
            first = self._first.get(chain[0], ((), ""))
            running = _Request(chain, cached, len(chain), self._now, *first, event.get("session_id"))
        else:
            running.chain += blocks
            running.replies |= len(blocks) == 1
            if not running.replies:
                running.prompt = len(running.chain)
        running.at = self._now
        other = self._running.pop(blocks[-1], None)
        if other is not None:
            self._end(other)
        self._running[blocks[-1]] = running

    def _chain(self, block: BlockHash | None) -> list[BlockHash]:
        """Return the cached blocks from a chain's start to this block."""
        chain = []
        while block is not None:
            chain.append(block)
            block = self._parents.get(block)
        return chain[::-1]

    def _end(self, request: _Request) -> None:
        plugin = self.plugin
        assert plugin is not None
        self.requests += 1
        size = plugin.block_tokens
        prompt = request.chain[: request.prompt]
        # One token more than the observed blocks, because an engine always computes the last token of a prompt.
        tokens = [*request.tokens, *[0] * (len(prompt) * size + 1 - len(request.tokens))]
        plugin.started(self.requests, prompt, cached=request.cached * size)
        plugin.finished(
            self.requests,
            completed=True,
            blocks=request.chain,
            prompt_blocks=len(prompt),
            session=request.session,
            token_ids=tokens,
            salt=request.salt,
        )


def _hash(block: int | bytes) -> BlockHash:
    return BlockHash(block if isinstance(block, bytes) else (block & (1 << 64) - 1).to_bytes(8, "little"))


def _salt_of(event: Mapping[str, Any]) -> str:
    """Return the salt of an event's blocks. vLLM reports it among the extra keys of a chain's first block."""
    keys = event.get("extra_keys") or [None]
    named = (key for key in keys[0] or () if isinstance(key, str) and key != event.get("lora_name"))
    return str(event.get("cache_salt") or next(named, ""))
