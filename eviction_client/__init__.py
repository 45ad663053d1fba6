"""The thin client inside a serving engine: keys, queue, predictor client, stores of keys.

Only the names in ``__all__`` are public. Curves and queues load at once, the rest on first use: every process of an engine
imports this package, but few need gRPC, Redis or settings.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from eviction_client.queue import Block
from eviction_client.value_queue import ValueQueue
from lpc.model.curve import values

if TYPE_CHECKING:
    from eviction_client.errors import ClientError, EngineUnsupported, StoreError
    from eviction_client.hints import Hints
    from eviction_client.messages import Prediction
    from eviction_client.predictor_client import PredictorClient
    from eviction_client.settings import ClientSettings
    from eviction_client.stores import BlockHash, BlockStore, ConversationId, open_store
    from eviction_client.stores.namespace import Namespace

__all__ = [
    "Block",
    "BlockHash",
    "BlockStore",
    "ClientError",
    "ClientSettings",
    "ConversationId",
    "EngineUnsupported",
    "Hints",
    "Namespace",
    "Prediction",
    "PredictorClient",
    "StoreError",
    "ValueQueue",
    "open_store",
    "values",
]

_HOMES: Final = {
    "errors": ("ClientError", "EngineUnsupported", "StoreError"),
    "hints": ("Hints",),
    "messages": ("Prediction",),
    "predictor_client": ("PredictorClient",),
    "settings": ("ClientSettings",),
    "stores": ("BlockHash", "BlockStore", "ConversationId", "open_store"),
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
