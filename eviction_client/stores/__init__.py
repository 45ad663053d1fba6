"""Stores of the claims of conversations on blocks, shared by the fleet or private to the process."""

from typing import TYPE_CHECKING

from eviction_client.block_hash import BlockHash
from eviction_client.stores.base import BlockStore, EngineId
from eviction_client.stores.memory import MemoryStore
from eviction_client.stores.namespace import Namespace

if TYPE_CHECKING:  # pydantic takes long to load, and the simulator needs no settings
    from eviction_client.settings import ClientSettings

__all__ = ["BlockHash", "BlockStore", "EngineId", "MemoryStore", "open_store"]


def open_store(settings: "ClientSettings", namespace: Namespace) -> BlockStore[BlockHash]:
    """Return the store for the settings: Redis if a URL is set, else this process's memory.

    Does not wait for Redis. Raises ValueError for a malformed URL.
    """
    if settings.redis_url is None:
        return MemoryStore()
    # A local import: engines without a fleet need not load redis-py.
    from eviction_client.stores.redis import RedisStore

    return RedisStore(settings.redis_connection(), namespace, shards=settings.redis_shards)
