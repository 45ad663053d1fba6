"""The event loop of the service: applies events, requests predictions, and sends deletions. It never raises.

LMCache's thread only appends events to a queue. Everything else runs in one asyncio task, so that neither a slow sidecar nor a
node that does not answer delays the coordinator.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from eviction_client import PredictorClient
from eviction_client.policy.fits import REFIT_S
from lpc_apps.lmcache.events import Event, Location, ObjectId
from lpc_apps.lmcache.node import Node, NodeError
from lpc_apps.lmcache.service import END_AFTER_S, Service
from lpc_apps.lmcache.tree import Conversation

logger = logging.getLogger(__name__)

TICK_S: Final = 0.25
EVENTS_SLICE_S: Final = 0.02
"""Time for which a tick applies events before it yields to the coordinator's other tasks."""
MAX_EVENTS: Final = 20_000
"""Queued events above which new ones are dropped. After that the model of a tier's contents is wrong until LMCache evicts by
itself. Capacities and restarts are reported only once, so they are never dropped."""


class Loop:
    """Runs a service.

    Args:
        node_of: returns the node with a name; None: no such node is registered.
        served_model: model name sent to the sidecar; empty: the name in LMCache.

    Attributes:
        failures: number of failures of each kind.
        dropped: number of events dropped because the queue was full.
        lost: number of objects in events that nodes have lost.
    """

    def __init__(
        self, service: Service, predictor: PredictorClient, node_of: Callable[[str], Node | None], served_model: str = ""
    ) -> None:
        self.service = service
        self.failures = {"tick": 0, "delete": 0, "refit": 0}
        self.dropped = self.lost = 0
        self._predictor = predictor
        self._node_of = node_of
        self._served_model = served_model
        self._events: deque[Callable[[], None]] = deque()
        self._pending: dict[tuple[str, int], tuple[Conversation, float]] = {}
        self._busy: set[Location] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def report(self, event: Event) -> None:
        """Queue an event; thread-safe."""
        if len(self._events) >= MAX_EVENTS:
            self.dropped += 1
        else:
            self._events.append(lambda: self.service.apply(event))

    def declare(self, location: Location, capacity: int, backend: str = "", revision: int = 0) -> None:
        """Queue the capacity of one of a tier's backends; thread-safe."""
        self._events.append(lambda: self.service.declare(location, capacity, backend, revision))

    def fence(self, node: str) -> None:
        """Queue the loss of a node's memory; thread-safe."""
        self._events.append(lambda: self.service.fence(node))

    def lose(self, node: str, events: int) -> None:
        """Queue that a node has lost events, so that its contents are unknown; thread-safe."""
        self.lost += events
        self._events.append(lambda: self.service.empty(node))

    async def run(self) -> None:
        """Tick until cancelled."""
        refitted = time.monotonic()
        try:
            while True:
                started = time.monotonic()
                try:
                    await self.tick()
                except Exception as error:
                    self._failed("tick", error)
                if started - refitted >= REFIT_S:
                    refitted = started
                    await self._refit()
                await asyncio.sleep(max(TICK_S - (time.monotonic() - started), 0.01))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def tick(self) -> None:
        """Apply the queued events and start the work that is due."""
        left = len(self._events)
        until = time.monotonic() + EVENTS_SLICE_S
        while left:
            try:
                self._events.popleft()()
            except Exception as error:
                self._failed("tick", error)
            left -= 1
            if left and time.monotonic() >= until:
                await asyncio.sleep(0)
                until = time.monotonic() + EVENTS_SLICE_S
        self.service.set_sidecar_curves(self._predictor.reuse_curves)
        self._collect()
        plan = self.service.plan()
        for conversation in plan.ask:
            self._ask(conversation)
        for location, objects in plan.delete.items():
            if location not in self._busy:
                self._busy.add(location)
                self.service.deleting(location, objects)
                self._start(self._delete(location, objects))

    async def settled(self) -> None:
        """Wait until all started calls have ended; for tests."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ask(self, conversation: Conversation) -> None:
        tokens = conversation.tokens()
        if not tokens:
            return
        name = (conversation.name, conversation.turns)
        model = self._served_model or conversation.leaf.id.model
        self._predictor.ask(name, token_ids=tokens, served_model=model, conversation_id=conversation.name)
        self._pending[name] = (conversation, time.monotonic())

    def _collect(self) -> None:
        now = time.monotonic()
        for name, (conversation, asked_at) in list(self._pending.items()):
            prediction = self._predictor.take(name)
            if prediction is not None:
                self.service.answered(conversation, name[1], prediction)
            elif now - asked_at < END_AFTER_S:
                continue
            else:
                self._predictor.forget(name)
            del self._pending[name]

    async def _delete(self, location: Location, objects: list[ObjectId]) -> None:
        try:
            node = self._node_of(location.node)
            skipped = len(objects) if node is None else await node.delete(location.tier, objects)
            if skipped:
                self.service.skipped(location, objects, skipped)
            else:
                self.service.deleted(location, objects)
        except Exception as error:
            self.service.skipped(location, objects, 0)  # the node may have deleted them; its reports will show
            self._failed("delete", error)
        finally:
            self._busy.discard(location)

    async def _refit(self) -> None:
        try:
            for _ in self.service.refit():
                await asyncio.sleep(0)
        except Exception as error:
            self.service.fall_back_to_lru()
            self._failed("refit", error)

    def _failed(self, what: str, error: Exception) -> None:
        """Count a failure and log the first of its kind. Only messages of NodeError are logged: others could quote a prompt."""
        self.failures[what] += 1
        if self.failures[what] == 1:
            reason = str(error) if isinstance(error, NodeError) else type(error).__name__
            logger.warning("learned prefix cache: %s failed: %s; LMCache evicts by its own LRU", what, reason)
