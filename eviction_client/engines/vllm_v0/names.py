"""Content hashes of a prompt before V0 allocates its blocks: V0 computes each hash when it allocates the block."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from vllm.core.block.prefix_caching_block import PrefixCachingBlock

TRIED: Final = ((1, 2, 3, 4), (5, 6, 7, 8), (1, 2, 3, 4))
"""Blocks that :func:`alike` compares."""

_hash: Callable[..., int] = PrefixCachingBlock.hash_block_tokens
_TAKES_EXTRA: Final = "extra_hash" in inspect.signature(_hash).parameters


def content_hashes(tokens: Sequence[int], block_size: int, extra_hash: int | None = None) -> Iterator[int]:
    """Yield the content hashes of a prompt's full blocks.

    Args:
        extra_hash: result of ``Sequence.extra_hash``, for example of the LoRA; ignored before 0.6.5.
    """
    extra = {"extra_hash": extra_hash} if _TAKES_EXTRA else {}
    previous: int | None = None
    for start in range(0, len(tokens) - block_size + 1, block_size):
        previous = _hash(start == 0, previous, tokens[start : start + block_size], **extra)
        yield previous


def alike(allocator: Any) -> bool:
    """Return whether a new allocator with blocks of four tokens computes the same hashes as :func:`content_hashes`."""
    block: Any = None
    found = []
    for tokens in TRIED:
        block = allocator.allocate_immutable_block(prev_block=block, token_ids=list(tokens))
        found.append(block.content_hash)
    return found == list(content_hashes([token for tokens in TRIED for token in tokens], len(TRIED[0])))
