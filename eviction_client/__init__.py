"""The thin client inside a serving engine: policy, queue, predictor client, stores of shared claims.

Only the names in ``__all__`` are public. Curves and queues load at once, the rest on first use: every process of an engine
imports this package, but few need gRPC, Redis or settings.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from eviction_client.policy.queue.free_list import Block
from eviction_client.policy.queue.free_queue import FreeQueue
from lpc.model.curve import values

if TYPE_CHECKING:
    from eviction_client.errors import ClientError, EngineUnsupported, StoreError
    from eviction_client.policy.hints import Hints
    from eviction_client.settings import ClientSettings
    from eviction_client.stores import BlockHash, BlockStore, EngineId, open_store
    from eviction_client.stores.namespace import Namespace
    from eviction_client.transport.client import PredictorClient
    from eviction_client.transport.messages import SidecarPrediction

__all__ = [
    "Block",
    "BlockHash",
    "BlockStore",
    "ClientError",
    "ClientSettings",
    "EngineId",
    "EngineUnsupported",
    "FreeQueue",
    "Hints",
    "Namespace",
    "PredictorClient",
    "SidecarPrediction",
    "StoreError",
    "open_store",
    "values",
]

_HOMES: Final = {
    "errors": ("ClientError", "EngineUnsupported", "StoreError"),
    "policy.hints": ("Hints",),
    "transport.messages": ("SidecarPrediction",),
    "transport.client": ("PredictorClient",),
    "settings": ("ClientSettings",),
    "stores": ("BlockHash", "BlockStore", "EngineId", "open_store"),
    "stores.namespace": ("Namespace",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
