"""The controller inside LMCache's coordinator: passes its events to the service. The only module that uses LMCache's classes.

    lmcache coordinator --extra-config '{"controller_packages": ["lpc_apps.lmcache.controller"]}'

or `lpc lmcache coordinator`, which also supports tokens. LMCache's own controllers stay: the one for pins and quotas, whose
pins are respected and used for retention, and the one for prefetches. Nothing here raises into the coordinator after its start.

Tested with LMCache 0.5.6. The coordinator scans this module and builds every Controller defined in it.
"""

import asyncio
import contextlib
import itertools
import logging
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from fastapi import APIRouter, HTTPException, Request, Response
from lmcache.v1.distributed.api import EncodedObjectKey
from lmcache.v1.mp_coordinator.controllers.base import Controller
from lmcache.v1.mp_coordinator.controllers.eviction_controller import FleetEvictionController
from lmcache.v1.mp_coordinator.http_apis.dependencies import get_context
from lmcache.v1.mp_coordinator.persistence.durable_component import PersistenceType
from lmcache.v1.mp_coordinator.views.instance_registry import InstanceRegistry
from pydantic import BaseModel, Field

from eviction_client import ClientSettings, PredictorClient
from eviction_client.announce import ANNOUNCED
from eviction_client.offer import NoTokenizer
from lpc.wire.access import access_of
from lpc.wire.tokenizer_files import NAMES
from lpc_apps.lmcache.events import ALGORITHM, NO_TOKENS, Entry, Event, KeyChain, Location, ObjectId, reported_at, steady_clock
from lpc_apps.lmcache.loop import Loop
from lpc_apps.lmcache.metrics import exposition, status
from lpc_apps.lmcache.node import Node
from lpc_apps.lmcache.pins import SECTION, Retained
from lpc_apps.lmcache.service import Service
from lpc_apps.lmcache.settings import LMCacheSettings, LMCacheUnfit

logger = logging.getLogger(__name__)

PINS_TICK_S = 1.0
UNBOUND_TICKS = 30
"""Ticks without a connection to the coordinator itself after which a warning is logged."""


class RetainRequest(BaseModel):
    """Body of ``POST /lpc/retain``: the model's name in LMCache, the prompt as token ids, and the retention, seconds."""

    model_name: str
    token_ids: list[int] = Field(min_length=1, max_length=1_000_000)
    seconds: float = Field(gt=0, allow_inf_nan=False)
    cache_salt: str = ""


class WaitingRequest(BaseModel):
    """A waiting request. ``token_ids``: its prompt; None: an earlier message contained it."""

    request_id: str = Field(max_length=512)
    token_ids: list[int] | None = Field(default=None, max_length=1_000_000)
    cache_salt: str = ""


class WaitingRequests(BaseModel):
    """Body of ``POST /lpc/waiting``: all requests that wait in an engine, in order of arrival."""

    engine: str = Field(max_length=64)
    model_name: str
    requests: list[WaitingRequest] = Field(max_length=ANNOUNCED)


class LearnedController(Controller):
    """Deletes the chunks with the lowest rank, prefetches conversations that are due, and retains prompts on request.

    Args:
        address: the coordinator's own address, host:port.
        registry: LMCache's view of the registered nodes.

    Raises:
        LpcError, pydantic.ValidationError: a setting is invalid.
    """

    def __init__(self, address: str, registry: Any) -> None:
        settings, client = LMCacheSettings(), ClientSettings()
        self._address = address
        self._registry = registry
        token = settings.token()
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http: httpx.AsyncClient | None = None
        self._context: Any = None
        self._predictor = PredictorClient(
            client.predictor_address,
            served_model=client.served_model,
            access=access_of(client),
            tokenizer=None if settings.tokenizer is None else partial(_tokenizer_files, settings.tokenizer),
        )
        self._clock = steady_clock()
        self.retained = Retained(self._clock)
        self.service = Service(
            settings, hints_share=client.hints_share, clock=self._clock, keys=KeyChain(), pinned=self._pinned
        )
        self.loop = Loop(self.service, self._predictor, self._node_of, client.served_model)
        self.loop.ready = False

    # Methods that LMCache calls.

    @classmethod
    def from_config(cls, config: Any, views: Any) -> "LearnedController":
        """Return a controller for a coordinator. Raises LMCacheUnfit: the coordinator's hash algorithm is not blake3."""
        if config.hash_algorithm != ALGORITHM:
            raise LMCacheUnfit(
                f"LMCache's hash algorithm is {config.hash_algorithm}, whose hashes differ between processes: "
                f"start nodes, engines and coordinator with --hash-algorithm {ALGORITHM}"
            )
        host = "127.0.0.1" if config.host in ("", "0.0.0.0") else "[::1]" if config.host == "::" else config.host
        return cls(f"{host}:{config.port}", views.get(InstanceRegistry))

    def consume(self, batch: Any) -> None:
        """Queue a batch of events. Its token ids stay in memory.

        If this raises, LMCache logs the error and goes on with its other consumers; this controller loses the batch.
        """
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
        self.loop.fence(instance_id)

    @asynccontextmanager
    async def run(self, runtime: Any) -> AsyncIterator[None]:
        """Run the loop while the coordinator serves."""
        # The coordinator's own calls to nodes need the token as well, because the same gate protects both.
        runtime.http_client.headers.update(self._headers)
        # Nodes and the coordinator are in the cluster, so a proxy in the environment does not apply.
        async with httpx.AsyncClient(headers=self._headers, trust_env=False) as self._http:
            tasks = [asyncio.create_task(self.loop.run()), asyncio.create_task(self._update_pins())]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await asyncio.to_thread(self._predictor.close)

    def get_routers(self) -> Sequence[APIRouter]:
        """Return ``/lpc/status``, ``/lpc/metrics``, ``/lpc/retain`` and ``/lpc/waiting``."""
        router = APIRouter(prefix="/lpc")
        router.add_api_route("/status", self.read_status, methods=["GET"])
        router.add_api_route("/metrics", self.read_metrics, methods=["GET"])
        router.add_api_route("/retain", self.retain, methods=["POST"])
        router.add_api_route("/waiting", self.wait, methods=["POST"])
        return (router,)

    async def read_status(self, request: Request) -> dict[str, Any]:
        """Return the status as JSON."""
        self._bind(request)
        return self._status()

    async def read_metrics(self, request: Request) -> Response:
        """Return the status for Prometheus."""
        self._bind(request)
        return Response(exposition(self._status()), media_type="text/plain; version=0.0.4")

    async def retain(self, body: RetainRequest, request: Request) -> dict[str, Any]:
        """Retain a prompt's complete chunks: rank them in memory as if used later, and pin them on disk."""
        self._bind(request)
        size = self._context.token_hasher.chunk_size
        chunks = self.service.find_prompt(body.model_name, body.cache_salt, body.token_ids, size)
        if not chunks:
            raise HTTPException(404, "no chunk of this prompt is cached")
        until = self.service.retain(chunks, body.seconds)
        if until is None:
            raise HTTPException(429, "retained chunks already take their share of the cache (LPC_HINTS_SHARE): try again later")
        objects = [object_ for chunk in chunks for object_ in self.service.objects_on_disk(chunk)]
        return {"chunks": len(chunks), "pinned": self._pin(dict.fromkeys(objects, until)), "until": until}

    async def wait(self, body: WaitingRequests, request: Request) -> dict[str, Any]:
        """Rank the chunks that waiting requests will load last, and fetch them from disk in order of arrival."""
        self._bind(request)
        size = self._context.token_hasher.chunk_size
        found = self.service.find_prompt
        self.service.wait(
            body.engine,
            [
                (r.request_id, None if r.token_ids is None else found(body.model_name, r.cache_salt, r.token_ids, size))
                for r in body.requests
            ],
        )
        return {"waiting": len(self.service.waiting)}

    def get_durable_components(self) -> "Sequence[LearnedController]":
        """Return the controller itself: LMCache saves the expiry times of pins through it."""
        return (self,)

    @property
    def persistence_type(self) -> PersistenceType:
        """Save to the file that contains the pins."""
        return PersistenceType.METADATA

    @property
    def name(self) -> str:
        """Name of the section in the file."""
        return SECTION

    def capture(self) -> Mapping[str, object]:
        """Return the expiry times as plain data."""
        return self.retained.capture()

    def restore(self, state: Mapping[str, object]) -> None:
        """Load the expiry times. If they are damaged, the pins do not expire."""
        try:
            self.retained.restore(state)
        except (KeyError, TypeError, ValueError):
            logger.warning("learned prefix cache: the expiry times of pins are damaged; remove the pins by DELETE /cache/pins")

    # Pins.

    def _bind(self, request: Request) -> None:
        """Store the coordinator's context, through which pins are set. A controller gets it only with a request."""
        if self._context is None:
            self._context = get_context(request)
            self.loop.ready = True

    @property
    def _pins(self) -> Any:
        return None if self._context is None else self._context.controllers.find(FleetEvictionController)

    def _pinned(self, objects: list[ObjectId]) -> set[ObjectId]:
        pins = self._pins
        if pins is None:
            return set()
        keys = {_key_of(object_): object_ for object_ in objects}
        return set(objects) - {keys[key] for key in pins.filter_unpinned(list(keys))}

    def _status(self) -> dict[str, Any]:
        return status(self.loop, self.retained, sidecar=self._predictor.healthy)

    def _pin(self, objects: dict[ObjectId, float]) -> int:
        """Pin objects until their expiry times; return how many are pinned: 0 if LMCache's controller of pins is disabled."""
        pins = self._pins
        if pins is None or not objects:
            return 0
        keys = {object_: _key_of(object_) for object_ in objects}
        new = [found for object_, until in objects.items() for found in self.retained.extend([object_], until)]
        pins.pin([keys[object_] for object_ in new])
        self._context.metadata_persister.save()
        return len(objects)

    async def _update_pins(self) -> None:
        """Every second: pin retained objects that were stored on disk since, and unpin expired ones.

        First calls the coordinator itself, because a controller gets the coordinator's context only with a request.
        """
        for tick in itertools.count():
            if tick == UNBOUND_TICKS and self._context is None:
                logger.warning(
                    "learned prefix cache: the coordinator cannot reach itself at %s, so nothing is deleted or fetched",
                    self._address,
                )
            try:
                if self._context is None and self._http is not None:
                    await self._http.get(f"http://{self._address}/lpc/status", timeout=5.0)
                if self._context is not None and self.service.to_pin:
                    late, self.service.to_pin = self.service.to_pin, {}
                    self._pin(late)
                expired = self.retained.expired() if self._context is not None else []
                if expired and (pins := self._pins) is not None:
                    pins.unpin(_keys_of(expired))
                    self.retained.forget(expired)
                    self._context.metadata_persister.save()
            except httpx.HTTPError:
                pass  # the coordinator does not serve yet
            except Exception as error:
                logger.warning("learned prefix cache: pins: %s", type(error).__name__)
            await asyncio.sleep(PINS_TICK_S)

    def _node_of(self, name: str) -> Node | None:
        target = self._registry.get(name) if name else self._registry.random_instance()
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


def _keys_of(objects: list[ObjectId]) -> list[Any]:
    """Return the keys, without those of malformed objects from a damaged file."""
    keys = []
    for object_ in objects:
        with contextlib.suppress(ValueError):
            keys.append(_key_of(object_))
    return keys


def _key_of(object_: ObjectId) -> Any:
    return EncodedObjectKey(object_.hash, object_.model, object_.rank, object_.group, object_.salt).to_object_key()


def _tokenizer_files(folder: Path) -> Mapping[str, Path]:
    """Return the files of the served model's tokenizer."""
    found = {name: folder / name for name in NAMES if (folder / name).is_file()}
    if not found:
        raise NoTokenizer(f"{folder} does not contain a tokenizer")
    return found
