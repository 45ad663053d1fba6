"""Content hashes of blocks."""

from typing import NewType

BlockHash = NewType("BlockHash", bytes)
"""Content hash of a block from the engine. It must be uniformly distributed, like a digest."""
