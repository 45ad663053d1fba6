"""Linked list of free blocks; blocks without content come first.

The links are the blocks' ``prev_free_block`` and ``next_free_block``, as in vLLM's ``FreeKVCacheBlockQueue``, so that code that
walks them (LMCache, vLLM's CPU offload) sees the eviction order.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar


class Linked(Protocol):
    """The fields of a block that the queue uses. ``block_id`` is unique and >= 0; the sentinels use -1."""

    block_id: int
    prev_free_block: Self | None
    next_free_block: Self | None


class Block:
    """A block for engines and simulators without a block type of their own."""

    __slots__ = ("block_id", "next_free_block", "prev_free_block")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.prev_free_block: Self | None = None
        self.next_free_block: Self | None = None


B = TypeVar("B", bound=Linked)


class FreeList(ABC, Generic[B]):
    """The linked list of all free blocks: those without content first. Subclasses order the others.

    Args:
        head, tail: sentinels with block_id -1, never returned.

    Attributes:
        num_free_blocks: number of free blocks, with and without content.
    """

    def __init__(self, head: B, tail: B) -> None:
        self.num_free_blocks = 0
        self.head = head
        self.tail = tail
        head.next_free_block = tail
        tail.prev_free_block = head

    def prepend_n(self, blocks: Sequence[B]) -> None:
        """Insert blocks without content at the front; ``blocks[0]`` is reused first."""
        self._link(blocks, self.head.next_free_block)

    def _link(self, blocks: Sequence[B], behind: Any) -> None:
        """Insert blocks, in their order, before the linked block ``behind``."""
        last = behind.prev_free_block
        for block in blocks:
            block.prev_free_block = last
            last.next_free_block = block
            last = block
        last.next_free_block = behind
        behind.prev_free_block = last
        self.num_free_blocks += len(blocks)

    def popleft(self) -> B:
        """Remove and return the first block in eviction order. Raises ValueError if none is free."""
        return self.popleft_n(1)[0]

    @abstractmethod
    def popleft_n(self, n: int) -> list[B]:
        """Remove and return the first n blocks in eviction order.

        Raises:
            ValueError: fewer than n are free. Nothing changes.
        """

    def __iter__(self) -> Iterator[B]:
        block = self.head.next_free_block
        while block is not None and block is not self.tail:
            yield block
            block = block.next_free_block

    def __len__(self) -> int:
        return self.num_free_blocks
