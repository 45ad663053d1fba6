"""A block of the cache as the simulator knows it. A policy that notes something on blocks has a block type of its own."""

from typing import TypeVar

from eviction_client.queue import Block


class CachedBlock(Block):
    """A block with content.

    A policy's own block type adds what that policy notes; it lasts as long as the block is in the cache.

    Attributes:
        content: its content id: unique among the blocks of a cache.
        block_id: the same, unless the policy's queue asks for small numbers.
        depth: blocks before it in its prefix.
        references: running requests that use it.
    """

    __slots__ = ("content", "depth", "references")

    def __init__(self, content: int, depth: int) -> None:
        super().__init__(content)
        self.content = content
        self.depth = depth
        self.references = 0


B = TypeVar("B", bound=CachedBlock)
