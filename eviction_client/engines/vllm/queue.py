"""vLLM's free queue in the order of keys, and the batches whose free vLLM puts off."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from eviction_client.credit import Lifetime
from eviction_client.credit_queue import CreditQueue
from eviction_client.hints import NOTHING, Asked, Retained
from eviction_client.score import Keys


class KeyedBlocks(list[KVCacheBlock]):
    """Blocks that are to be freed later, and their keys. Reversed, as vLLM frees them, they are still keyed blocks.

    Attributes:
        keys: of all these blocks, as decided when the batch was made; None: the untagged ones at the time of the free.
        asked: what the hints of the request ask for.
        request_id: of the request that held them.
        made: when the batch was made, seconds since the epoch.
        go_last: the request goes on: whatever is free when they are freed goes before them.
    """

    def __init__(
        self,
        blocks: Iterable[KVCacheBlock],
        keys: Keys | None,
        request_id: str,
        *,
        made: float,
        asked: Asked = NOTHING,
        go_last: bool = False,
    ) -> None:
        super().__init__(blocks)
        self.keys = keys
        self.asked = asked
        self.request_id = request_id
        self.made = made
        self.go_last = go_last

    def __reversed__(self) -> "KeyedBlocks":  # type: ignore[override]  # all that its caller does is iterate
        return KeyedBlocks(self[::-1], self.keys, self.request_id, made=self.made, asked=self.asked, go_last=self.go_last)

    def keys_at(self, now: float) -> Keys | None:
        """Return the keys where they are freed at ``now``: for stock vLLM they are last used then. Their credit stays."""
        if self.keys is None:
            return None
        waited = max(now - self.made, 0.0)
        return Keys(self.keys.t_last + waited, self.keys.key + waited)


class LearnedFreeQueue(CreditQueue[KVCacheBlock], FreeKVCacheBlockQueue):
    """vLLM's free queue in the order of keys. A drop-in: without credit it is the stock queue."""

    def __init__(
        self,
        blocks: Sequence[KVCacheBlock] = (),
        *,
        lifetime: Lifetime | None = None,
        retained: Retained[KVCacheBlock] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(
            KVCacheBlock(block_id=-1), KVCacheBlock(block_id=-1), lifetime=lifetime or Lifetime(len(blocks)), clock=clock
        )
        self.fake_free_list_head = self.head
        self.fake_free_list_tail = self.tail
        self.retained: Retained[KVCacheBlock] = Retained(0) if retained is None else retained
        self._keys_in_force: Keys | None = None
        self._asked = NOTHING
        super().prepend_n(blocks)

    def keying(self, keys: Keys | None, free: Callable[..., None], *arguments: Any, asked: Asked = NOTHING) -> None:
        """Call ``free(*arguments)``, vLLM's own; the blocks with content that it appends get these keys (None: those of now),
        as far as hints do not change them.

        vLLM's frees end in ``append_n(blocks)``, which has no place for keys. They are kept for the length of this call.
        """
        self._keys_in_force, self._asked = keys, asked
        try:
            free(*arguments)
        finally:
            self._keys_in_force, self._asked = None, NOTHING

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks without content at the very front, ``blocks[0]`` to be reused first."""
        self.retained.release(block.block_id for block in blocks)
        super().prepend_n(blocks)

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks with content into the order, ``blocks[0]`` to be evicted first."""
        keys = self._keys_in_force
        if keys is None:
            now = self.clock()
            keys = Keys(now, now)
        if self._asked:
            for part, placed in self.retained.placed(blocks, keys, self._asked, self.clock(), _number, _name):
                self.insert_keyed(part, placed)
        else:
            self.retained.release(block.block_id for block in blocks)
            self.insert_keyed(blocks, keys)

    def append(self, block: KVCacheBlock) -> None:
        """As :meth:`append_n`."""
        self.append_n((block,))

    def popleft(self) -> KVCacheBlock:
        """Take out the block to be evicted first. Raises ValueError, in vLLM's words, when there is none."""
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:  # noqa: ARG002
        """Iterate free blocks in eviction order, from the front: blocks freed since may lie before any cursor."""
        return iter(self)


def _number(block: KVCacheBlock) -> int:
    number: int = block.block_id
    return number


def _name(block: KVCacheBlock) -> bytes:
    name: bytes = (block.block_hash or b"")[:-4]  # the last four bytes are the number of the KV-cache group
    return name
