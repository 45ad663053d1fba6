"""The controller that LMCache's coordinator builds: its events in, deletions and fetches out. All that knows LMCache's classes.

    lmcache coordinator --extra-config '{"controller_packages": ["lpc.lmcache.controller"]}'

or, with tokens in front of it, `lpc lmcache coordinator`. LMCache's own controllers stay: that of pins and quotas, whose pins
are respected and used for retention, and that of prefetches. Nothing here may raise into the coordinator but at its start.

Tried against LMCache 0.5.6. It is found by the coordinator's scan of this module, which takes every Controller defined here.
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
from lpc.lmcache.events import ALGORITHM, NO_TOKENS, Entry, Event, KeyChain, ObjectId, Place, reported_at, steady
from lpc.lmcache.figures import exposition, status
from lpc.lmcache.loop import Loop
from lpc.lmcache.node import Node
from lpc.lmcache.pins import SECTION, Retained
from lpc.lmcache.service import Service
from lpc.lmcache.settings import LMCacheSettings, LMCacheUnfit
from lpc.wire.access import access_of
from lpc.wire.tokenizer_files import NAMES

logger = logging.getLogger(__name__)

PINS_TICK_S = 1.0
UNBOUND = 30
"""Ticks after which it is said that the coordinator does not answer itself."""


class RetainRequest(BaseModel):
    """Body of ``POST /lpc/retain``: the prompt as token ids, its model's name in LMCache, and for how long."""

    model_name: str
    token_ids: list[int] = Field(min_length=1, max_length=1_000_000)
    seconds: float = Field(gt=0, allow_inf_nan=False)
    cache_salt: str = ""


class WaitingRequest(BaseModel):
    """A request that waits. ``token_ids``: its prompt; None: it was sent before."""

    request_id: str = Field(max_length=512)
    token_ids: list[int] | None = Field(default=None, max_length=1_000_000)
    cache_salt: str = ""


class WaitingRequests(BaseModel):
    """Body of ``POST /lpc/waiting``: all requests that wait in an engine, the first to come first."""

    engine: str = Field(max_length=64)
    model_name: str
    requests: list[WaitingRequest] = Field(max_length=ANNOUNCED)


class LearnedController(Controller):
    """Deletes the smallest key first, fetches what is due, keeps what was asked to be kept.

    Args:
        address: of the coordinator itself, host:port.
        registry: LMCache's view of the nodes that are registered.

    Raises:
        LMCacheUnfit: the coordinator is configured so that this cannot work.
        LpcError, pydantic.ValidationError: a setting is malformed.
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
        self._clock = steady()
        self.retained = Retained(self._clock)
        self.service = Service(
            settings, hints_share=client.hints_share, clock=self._clock, keys=KeyChain(), pinned=self._pinned
        )
        self.loop = Loop(self.service, self._predictor, self._node_of, client.served_model)
        self.loop.ready = False

    # What LMCache calls.

    @classmethod
    def from_config(cls, config: Any, views: Any) -> "LearnedController":
        """Build it for a coordinator."""
        if config.hash_algorithm != ALGORITHM:
            raise LMCacheUnfit(
                f"LMCache's hash algorithm is {config.hash_algorithm}: chunks have different names in each process; "
                f"start nodes, engines and coordinator with {ALGORITHM} (--hash-algorithm)"
            )
        host = "127.0.0.1" if config.host in ("", "0.0.0.0") else "[::1]" if config.host == "::" else config.host
        return cls(f"{host}:{config.port}", views.get(InstanceRegistry))

    def consume(self, batch: Any) -> None:
        """Take in an event batch. Its token ids stay in memory.

        What is raised here LMCache logs, and its other consumers go on; the batch is lost to this one.
        """
        tier = batch.tier.value
        place = Place(tier, "" if batch.shared else batch.instance_id)
        kind = batch.event_type.value
        if kind == "config":
            self.loop.declare(place, batch.capacity_bytes, batch.backend, batch.capacity_revision)
        elif kind in ("store", "access", "delete"):
            at = reported_at(batch.ts, self._clock())
            self.loop.report(Event(kind, tier, batch.instance_id, batch.shared, at, _entries(batch.entries)))

    def fence_instance(self, instance_id: str) -> None:
        """Forget what lay in a node's memory."""
        self.loop.fence(instance_id)

    @asynccontextmanager
    async def run(self, runtime: Any) -> AsyncIterator[None]:
        """Work while the coordinator serves."""
        # All that the coordinator itself asks its nodes carries the token as well: they share one gate.
        runtime.http_client.headers.update(self._headers)
        # Nodes are in the cluster, and it asks itself: no proxy of this environment is on the way.
        async with httpx.AsyncClient(headers=self._headers, trust_env=False) as self._http:
            tasks = [asyncio.create_task(self.loop.run()), asyncio.create_task(self._keep_pins())]
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
        """Return what there is, as JSON."""
        self._bind(request)
        return self._status()

    async def read_metrics(self, request: Request) -> Response:
        """Return the same for Prometheus."""
        self._bind(request)
        return Response(exposition(self._status()), media_type="text/plain; version=0.0.4")

    async def retain(self, body: RetainRequest, request: Request) -> dict[str, Any]:
        """Keep a prompt's complete chunks: in memory as if used so much later, on disk pinned until then."""
        self._bind(request)
        return self._retain(body)

    async def wait(self, body: WaitingRequests, request: Request) -> dict[str, Any]:
        """Delete last what waiting requests will load, and fetch it from disk, first what the first of them needs."""
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
        """Return the ends of the pins taken here, which are kept with the pins."""
        return (self,)

    @property
    def persistence_type(self) -> PersistenceType:
        """They go where the pins go."""
        return PersistenceType.METADATA

    @property
    def name(self) -> str:
        """Name of the section."""
        return SECTION

    def capture(self) -> Mapping[str, object]:
        """Return the ends as plain data."""
        return self.retained.capture()

    def restore(self, state: Mapping[str, object]) -> None:
        """Take what was kept; what is damaged is passed over, which leaves pins without an end."""
        try:
            self.retained.restore(state)
        except (KeyError, TypeError, ValueError):
            logger.warning("learned prefix cache: the ends of pins cannot be read; let them go by DELETE /cache/pins")

    # Pins.

    def _bind(self, request: Request) -> None:
        """Remember the coordinator's context, which a controller is given only with a request: it knows who holds the pins."""
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

    def _retain(self, body: RetainRequest) -> dict[str, Any]:
        chunks = self.service.find_prompt(
            body.model_name, body.cache_salt, body.token_ids, self._context.token_hasher.chunk_size
        )
        if not chunks:
            raise HTTPException(404, "none of this prompt's chunks is known here")
        until = self.service.retain(chunks, body.seconds)
        if until is None:
            raise HTTPException(429, "retained chunks take their share of this cache (LPC_HINTS_SHARE): try later")
        objects = [object_ for chunk in chunks for object_ in self.service.objects_on_disk(chunk)]
        return {"chunks": len(chunks), "pinned": self._pin(dict.fromkeys(objects, until)), "until": until}

    def _pin(self, objects: dict[ObjectId, float]) -> int:
        """Pin objects until a time each; return how many are: none where LMCache keeps no pins."""
        pins = self._pins
        if pins is None or not objects:
            return 0
        keys = {object_: _key_of(object_) for object_ in objects}
        new = [found for object_, until in objects.items() for found in self.retained.extend([object_], until)]
        pins.pin([keys[object_] for object_ in new])
        self._context.metadata_persister.save()
        return len(objects)

    async def _keep_pins(self) -> None:
        """Find out who holds the pins, by asking oneself, then pin what has come to disk, and let go of what is over."""
        for tick in itertools.count():
            if tick == UNBOUND and self._context is None:
                logger.warning(
                    "learned prefix cache: it cannot reach itself at %s, so nothing is deleted or fetched", self._address
                )
            try:
                if self._context is None and self._http is not None:
                    await self._http.get(f"http://{self._address}/lpc/status", timeout=5.0)
                if self._context is not None and self.service.to_pin:
                    late, self.service.to_pin = self.service.to_pin, {}
                    self._pin(late)
                over = self.retained.over() if self._context is not None else []
                if over and (pins := self._pins) is not None:
                    pins.unpin(_keys_of(over))
                    self.retained.let_go(over)
                    self._context.metadata_persister.save()
            except httpx.HTTPError:
                pass  # not serving yet
            except Exception as error:
                logger.warning("learned prefix cache: pins: %s", type(error).__name__)
            with contextlib.suppress(asyncio.TimeoutError):
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
    except (OverflowError, TypeError):  # no ids: the chunk is known without
        return NO_TOKENS


def _keys_of(objects: list[ObjectId]) -> list[Any]:
    """Return the keys of those that have one: what was read from a damaged file may have none."""
    keys = []
    for object_ in objects:
        with contextlib.suppress(ValueError):
            keys.append(_key_of(object_))
    return keys


def _key_of(object_: ObjectId) -> Any:
    return EncodedObjectKey(object_.hash, object_.model, object_.rank, object_.group, object_.salt).to_object_key()


def _tokenizer_files(folder: Path) -> Mapping[str, Path]:
    """Return the files of the served model's tokenizer, which the sidecar is offered."""
    found = {name: folder / name for name in NAMES if (folder / name).is_file()}
    if not found:
        raise NoTokenizer(f"{folder} holds no tokenizer")
    return found
