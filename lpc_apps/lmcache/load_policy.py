"""LMCache's load policy: whether a look-up is served, or the engine computes. LMCache 0.5.7 and later, in its node.

    lmcache server --kv-load-policy lpc_apps.lmcache.load_policy:LoadOrRecompute

Nothing here raises into the node: after a failure all is loaded, as without the policy.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from lmcache.v1.mp_observability.event import Event, EventType
from lmcache.v1.mp_observability.event_bus import get_event_bus
from lmcache.v1.multiprocess.kv_load_policy import KVLoadContext, KVLoadPolicy

from lpc_apps.lmcache.loads import Loads

logger = logging.getLogger(__name__)


class LoadOrRecompute(KVLoadPolicy):  # type: ignore[misc]  # mypy runs where LMCache is not installed
    """Loads unless that takes more of all requests' time than to compute the same tokens; until that is measured, always."""

    def __init__(self, configs: Mapping[str, Any]) -> None:
        super().__init__(configs)
        self.loads: Loads | None = Loads(clock=time.monotonic)
        bus = get_event_bus()
        if not bus.enabled:
            self._give_up("its events are off: remove --disable-observability")
            return
        for kind, learn in _LEARNT.items():
            bus.subscribe(kind, self._guarded(learn))

    def should_load(self, ctx: KVLoadContext) -> bool:
        """Return whether the node serves a look-up."""
        try:
            asked = ctx.request_configs or {}
            if asked.get("lmcache.skip_load", False):
                return False
            if self.loads is None:
                return True
            hint = asked.get("lmcache.hint.engine_computed_tokens")
            computed = max(hint, 0) // ctx.chunk_size * ctx.chunk_size if isinstance(hint, int) else 0
            return self.loads.should_load(ctx.request_id, ctx.num_lookup_tokens - computed)
        except Exception as error:
            self._give_up(type(error).__name__)
            return True

    def _guarded(self, learn: "Callable[[Loads, Event], None]") -> "Callable[[Event], None]":
        def call(event: Event) -> None:
            if self.loads is not None:
                try:
                    learn(self.loads, event)
                except Exception as error:
                    self._give_up(type(error).__name__)

        return call

    def _give_up(self, reason: str) -> None:
        self.loads = None
        logger.warning("learned prefix cache: LMCache loads all, as without a load policy: %s", reason)


def _worker(event: Event) -> str:
    return f"{event.metadata['engine_id']}/{event.metadata['device']}"


def _looked_up(loads: Loads, event: Event) -> None:
    found = event.metadata
    loads.looked_up(event.session_id, found["hit_tokens"], found["prompt_tokens"] - found["request_hit_tokens"])


_LEARNT: "dict[EventType, Callable[[Loads, Event], None]]" = {
    EventType.MP_LOOKUP_PREFETCH_END: _looked_up,
    EventType.MP_RETRIEVE_START: lambda loads, event: loads.copying(event.session_id, _worker(event)),
    EventType.MP_RETRIEVE_END: lambda loads, event: loads.copied(
        event.session_id, _worker(event), event.metadata["num_tokens"]
    ),
    EventType.MP_STORE_START: lambda loads, event: loads.storing(event.session_id, _worker(event)),
    EventType.MP_STORE_END: lambda loads, event: loads.stored(event.session_id, _worker(event), event.metadata["num_tokens"]),
    EventType.MP_REQUEST_END: lambda loads, event: loads.ended(event.session_id),
}
