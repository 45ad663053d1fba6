"""Cached prefixes of waiting requests in V0. V0 hashes a request's blocks only when it serves it, so they are hashed here."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any

from eviction_client.engines.vllm_v0.evictor import LearnedEvictor, named
from eviction_client.engines.vllm_v0.names import content_hashes
from eviction_client.keep import Found, Keeper
from eviction_client.stores.base import BlockHash


@dataclass(slots=True)
class Waiting:
    """A waiting request. ``hashes``: of its first full blocks, computed so far; ``more`` computes the others."""

    sequence: Any
    hashes: list[int] = field(default_factory=list)
    more: Iterator[int] | None = None


class CachedPrefix:
    """Looks up cached prefixes. See :class:`eviction_client.keep.Lookup`.

    Args:
        allocator: of the GPU's blocks.
        evictor: returns the evictor that keeps blocks; it returns None in a dry run.
        hashes: returns the hashes of an allocated sequence's first full blocks, up to the given number.
    """

    def __init__(
        self,
        allocator: Any,
        block_size: int,
        evictor: Callable[[], LearnedEvictor | None],
        hashes: Callable[[Any, int], list[BlockHash]],
    ) -> None:
        self._allocator = allocator
        self._block_size = block_size
        self._evictor = evictor
        self._hashes = hashes

    def find(self, request: Waiting, budget: int) -> tuple[int, Found | None]:
        """See :meth:`eviction_client.keep.Lookup.find`. The prefix is None while hashes are missing."""
        size, tokens = self._block_size, request.sequence.prompt_token_ids
        if request.more is None:
            extra = getattr(request.sequence, "extra_hash", None)
            request.more = content_hashes(tokens, size, None if extra is None else extra())
        before = len(request.hashes)
        request.hashes.extend(islice(request.more, budget))
        made = len(request.hashes) - before
        if len(request.hashes) < len(tokens) // size:
            return made, None
        cached, computed = self._allocator._cached_blocks, self._allocator.block_is_computed
        blocks = list(takewhile(lambda block: block is not None and computed(block), map(cached.get, request.hashes)))
        evictor = self._evictor()
        needs: list[tuple[Keeper, Sequence[Any]]] = [] if evictor is None else [(evictor.queue, blocks)]
        # V0 always computes the last token of a prompt.
        most = (len(tokens) - 1) // size
        prompt = [named(hash_) for hash_ in request.hashes]
        return max(made, 1), Found(min(len(blocks), most) * size, len(tokens), prompt, needs)

    def prompt(self, request: Waiting) -> list[BlockHash]:
        """See :meth:`eviction_client.keep.Lookup.prompt`."""
        return self._hashes(request.sequence, len(request.sequence.prompt_token_ids) // self._block_size)
