"""What a waiting request will hit in V0. It has no block hashes before V0 serves it, so they are made here, once for each."""

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
    """A waiting request. ``hashes``: of its first full blocks, as far as they are made; ``more`` makes the others."""

    sequence: Any
    hashes: list[int] = field(default_factory=list)
    more: Iterator[int] | None = None


class CachedPrefix:
    """Looks it up. See :class:`eviction_client.keep.Lookup`.

    Args:
        allocator: of the GPU's blocks.
        evictor: returns what keeps blocks now; None: they are only looked at.
        hashes: returns the names of the first full blocks of a sequence that V0 has allocated, so many at most.
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
        """Return the blocks looked up, and what the request needs; None: not all hashes are made yet."""
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
        # V0 computes the last token of a prompt in any case.
        most = (len(tokens) - 1) // size
        prompt = [named(hash_) for hash_ in request.hashes]
        return max(made, 1), Found(min(len(blocks), most) * size, len(tokens), prompt, needs)

    def prompt(self, request: Waiting) -> list[BlockHash]:
        """Return the names of the full blocks of a prompt that V0 has allocated."""
        return self._hashes(request.sequence, len(request.sequence.prompt_token_ids) // self._block_size)
