"""Stores of per-block scores, shared by the fleet or private to the process."""

from eviction_client.settings import ClientSettings
from eviction_client.stores.base import BlockHash, BlockStore, ConversationId
from eviction_client.stores.memory import MemoryStore
from eviction_client.stores.namespace import Namespace

__all__ = ["BlockHash", "BlockStore", "ConversationId", "MemoryStore", "open_store"]


def open_store(settings: ClientSettings, namespace: Namespace) -> BlockStore:
    """Return the store that the settings ask for: Redis where there is a URL, else this process's memory.

    Never waits for Redis. Raises ValueError when the URL is malformed.
    """
    if settings.redis_url is None:
        return MemoryStore()
    # Engines without a fleet need not load redis-py.
    from eviction_client.stores.redis import RedisStore

    return RedisStore(settings.redis_connection(), namespace, shards=settings.redis_shards)
