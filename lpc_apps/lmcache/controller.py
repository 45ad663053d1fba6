"""The controller inside LMCache's coordinator: passes its events to the service.

    lmcache coordinator --extra-config '{"controller_packages": ["lpc_apps.lmcache.controller"]}'

or `lpc lmcache coordinator`, which also supports tokens. LMCache's own controllers stay. Nothing here raises into the
coordinator after its start.

The coordinator scans this module and builds every Controller defined in it.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx2
from fastapi import APIRouter, Response
from lmcache.v1.mp_coordinator.controllers.base import Controller
from lmcache.v1.mp_coordinator.views.instance_registry import InstanceRegistry

from eviction_client import ClientSettings, PredictorClient
from eviction_client.transport.tokenizer_upload import files_in
from lpc.clock import MonotoneClock
from lpc.wire.access import access_of
from lpc_apps.lmcache.events import ALGORITHM, NO_TOKENS, Entry, Event, Location, ObjectId, reported_at
from lpc_apps.lmcache.loop import Loop
from lpc_apps.lmcache.metrics import exposition, status
from lpc_apps.lmcache.node import Node
from lpc_apps.lmcache.service import Service
from lpc_apps.lmcache.settings import LMCacheSettings, LMCacheUnfit


class LearnedController(Controller):
    """Deletes the chunks with the lowest rank from memory.

    Args:
        registry: LMCache's view of the registered nodes.

    Raises:
        LpcError, pydantic.ValidationError: a setting is invalid.
    """

    def __init__(self, registry: Any) -> None:
        settings, client = LMCacheSettings(), ClientSettings()
        self._registry = registry
        token = settings.token()
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http: httpx2.AsyncClient | None = None
        self._predictor = PredictorClient(
            client.predictor_address,
            served_model=client.served_model,
            access=access_of(client),
            tokenizer=None if settings.tokenizer is None else partial(files_in, settings.tokenizer),
        )
        self._lost: dict[str, int] = {}
        self._clock = MonotoneClock().now
        self.service = Service(settings, clock=self._clock, rule=client.rule)
        self.loop = Loop(self.service, self._predictor, self._node_of, client.served_model)

    # Methods that LMCache calls.

    @classmethod
    def from_config(cls, config: Any, views: Any) -> "LearnedController":
        """Return a controller for a coordinator. Raises LMCacheUnfit: the coordinator's hash algorithm is not blake3."""
        if config.hash_algorithm != ALGORITHM:
            raise LMCacheUnfit(
                f"LMCache's hash algorithm is {config.hash_algorithm}, whose hashes differ between processes: "
                f"start nodes, engines and coordinator with --hash-algorithm {ALGORITHM}"
            )
        return cls(views.get(InstanceRegistry))

    def consume(self, batch: Any) -> None:
        """Queue a batch of events. Its token ids stay in memory.

        If this raises, LMCache logs the error and goes on with its other consumers; this controller loses the batch.
        """
        # The node's count of events that it has lost, since LMCache 0.5.7. Which ones is unknown, so that nothing is certain.
        lost, known = getattr(batch, "dropped_events", 0), self._lost.get(batch.instance_id, 0)
        self._lost[batch.instance_id] = lost
        if lost > known:
            self.loop.lose(batch.instance_id, lost - known)
        tier = batch.tier.value
        location = Location(tier, "" if batch.shared else batch.instance_id)
        kind = batch.event_type.value
        if kind == "config":
            self.loop.declare(location, batch.capacity_bytes, batch.backend, batch.capacity_revision)
        elif kind in ("store", "access", "delete"):
            at = reported_at(batch.ts, self._clock())
            self.loop.report(Event(kind, tier, batch.instance_id, batch.shared, at, _entries(batch.entries)))

    def fence_instance(self, instance_id: str) -> None:
        """Drop the contents of a node's memory."""
        self._lost.pop(instance_id, None)
        self.loop.fence(instance_id)

    @asynccontextmanager
    async def run(self, runtime: Any) -> AsyncIterator[None]:
        """Run the loop while the coordinator serves."""
        # The coordinator's own calls to nodes need the token as well, because the same gate protects both.
        runtime.http_client.headers.update(self._headers)
        # Nodes and the coordinator are in the cluster, so a proxy in the environment does not apply.
        async with httpx2.AsyncClient(headers=self._headers, trust_env=False) as self._http:
            running = asyncio.create_task(self.loop.run())
            try:
                yield
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await asyncio.to_thread(self._predictor.close)

    def get_routers(self) -> Sequence[APIRouter]:
        """Return ``/lpc/status`` and ``/lpc/metrics``."""
        router = APIRouter(prefix="/lpc")
        router.add_api_route("/status", self.read_status, methods=["GET"])
        router.add_api_route("/metrics", self.read_metrics, methods=["GET"])
        return (router,)

    async def read_status(self) -> dict[str, Any]:
        """Return the status as JSON."""
        return self._status()

    async def read_metrics(self) -> Response:
        """Return the status for Prometheus."""
        return Response(exposition(self._status()), media_type="text/plain; version=0.0.4")

    def _status(self) -> dict[str, Any]:
        return status(self.loop, sidecar=self._predictor.healthy)

    def _node_of(self, name: str) -> Node | None:
        target = self._registry.get(name)
        if target is None or self._http is None:
            return None
        host = f"[{target.ip}]" if ":" in target.ip else target.ip
        return Node(self._http, f"{host}:{target.http_port}")


def _entries(entries: Sequence[Any]) -> list[Entry]:
    return [
        Entry(
            ObjectId(
                entry.key.chunk_hash_hex,
                entry.key.model_name,
                entry.key.kv_rank,
                entry.key.object_group_id,
                entry.key.cache_salt,
            ),
            entry.size_bytes,
            _tokens(entry.token_ids),
            entry.token_offset,
        )
        for entry in entries
    ]


def _tokens(ids: Sequence[int]) -> "array[int]":
    try:
        return array("I", ids)
    except (OverflowError, TypeError):  # malformed ids: the chunk is tracked without tokens
        return NO_TOKENS
