"""The plug-in's view of an engine without a plug-in: requests, as its KV events show them.

An event says that blocks were stored behind a parent block. So an event behind a block that is already there is a request that
has hit the chain up to there. Blocks that follow one by one are its reply. An event that reports blocks which are held already
is a hit (vLLM's ``kv_cache_report_mode=full``).

What events do not show: a request that stores nothing (all of its prompt was cached, and its reply fills no block), and when a
request ends. It counts as ended when nothing was stored behind it for `PAUSE_S`.
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
from lpc.simulator.kv_events import Batch

PAUSE_S: Final = 2.0
"""Seconds without a stored block after which a request has ended. A block of 16 tokens takes less than one second."""
GPU: Final = (None, "GPU")
"""Media of the engine's own cache."""


class Nobody:
    """No sidecar."""

    counters = PredictorCounters()
    healthy = False
    reuse_curves: ReuseCurves | None = None
    tokenizer_state: TokenizerState = "unknown"

    def ask(self, request_id: Hashable, **_: object) -> None:
        """Nobody is asked."""

    def take(self, request_id: Hashable) -> Prediction | None:  # noqa: ARG002
        """There is no answer."""
        return None

    def forget(self, request_id: Hashable) -> None:
        """Nothing is known."""

    def close(self) -> None:
        """Nothing is open."""


@dataclass(slots=True)
class _Request:
    """A request as far as seen. Blocks."""

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
        blocks: of the engine's cache.

    Attributes:
        plugin: what the plug-in would know; None: no block has been stored yet.
        requests: that were seen.
        lost: messages that did not arrive.
    """

    def __init__(self, blocks: int) -> None:
        self.plugin: Plugin | None = None
        self.requests = self.lost = 0
        self._blocks = blocks
        self._now = 0.0
        self._parents: dict[BlockHash, BlockHash | None] = {}
        """Of the blocks that the engine holds."""
        self._first: dict[BlockHash, tuple[Sequence[int], str]] = {}
        """Tokens and cache salt of first blocks."""
        self._running: OrderedDict[BlockHash, _Request] = OrderedDict()
        """By their last block, those that stored one longest ago first."""

    def see(self, batch: Batch) -> None:
        """Follow a batch."""
        self._now = max(self._now, batch.at)
        self.lost += batch.lost
        if batch.lost:
            self._clear()  # what is held is not known any more
        for event in batch.events:
            kind = event.get("type")
            if kind == "AllBlocksCleared":
                self._clear()
            elif event.get("medium") in GPU and not event.get("group_idx"):
                if kind == "BlockStored":
                    self._stored(event)
                elif kind == "BlockRemoved":
                    for block in map(_named, event["block_hashes"]):
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
                predictor=Nobody(),
                clock=lambda: self._now,
                background=AtOnce,
            )
        blocks = [_named(block) for block in event["block_hashes"]]
        parent = None if event.get("parent_block_hash") is None else _named(event["parent_block_hash"])
        if not blocks or size != self.plugin.block_tokens or (parent is not None and parent not in self._parents):
            return  # begins where we did not listen
        hit = blocks[-1] in self._parents
        running = None if parent is None or hit else self._running.pop(parent, None)
        if parent is None:
            self._first.setdefault(blocks[0], (event["token_ids"][:size], _salt_of(event)))
        for block in blocks:
            self._parents.setdefault(block, parent)
            parent = block
        if running is not None and running.replies and len(blocks) > 1:
            self._end(running)  # the next turn: a reply grows block by block
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
        """Return the blocks from a chain's start to a block that is held."""
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
        # One token more than the blocks that were seen: the last one of a prompt is never a hit.
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


def _named(block: int | bytes) -> BlockHash:
    return BlockHash(block if isinstance(block, bytes) else (block & (1 << 64) - 1).to_bytes(8, "little"))


def _salt_of(event: Mapping[str, Any]) -> str:
    """Return the salt of an event's blocks: SGLang names it, vLLM has it among the extra keys of a chain's first block."""
    keys = event.get("extra_keys") or [None]
    named = (key for key in keys[0] or () if isinstance(key, str) and key != event.get("lora_name"))
    return str(event.get("cache_salt") or next(named, ""))
