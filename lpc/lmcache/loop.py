"""The service at work: events in, questions to the sidecar, deletions and fetches out. One asyncio task; nothing here raises.

LMCache's ingest only appends to a queue. All else happens in the task's ticks, so that neither a slow sidecar nor a node that
does not answer holds up the coordinator.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from eviction_client import PredictorClient
from lpc.lmcache.events import Event, ObjectId, Place
from lpc.lmcache.fetching import Fetch
from lpc.lmcache.node import Node, NodeError
from lpc.lmcache.service import ENDED_S, Service
from lpc.lmcache.tree import Conversation

logger = logging.getLogger(__name__)

TICK_S: Final = 0.25
AT_ONCE_S: Final = 0.02
"""For so long events are taken in; then the coordinator's other work has its turn."""
MOST_EVENTS: Final = 20_000
"""That wait; over it further ones are dropped, and our count of what lies where is off until LMCache evicts by itself. What
nodes declare, and that they have restarted, is not said again: it is never dropped."""
REFIT_S: Final = 30.0
POLL_S: Final = 0.5
POLLS: Final = 60
"""Then a fetch is asked after no more."""


class Loop:
    """Runs a service.

    Args:
        node_of: returns the node by its name; None while it is not registered. An empty name is any node.

    Attributes:
        failures: by what failed.
        dropped: events that there was no room for.
    """

    def __init__(
        self, service: Service, predictor: PredictorClient, node_of: Callable[[str], Node | None], served_model: str = ""
    ) -> None:
        self.service = service
        self.failures = {"tick": 0, "delete": 0, "fetch": 0, "refit": 0}
        self.dropped = 0
        self.ready = True
        self._predictor = predictor
        self._node_of = node_of
        self._served_model = served_model
        self._events: deque[Callable[[], None]] = deque()
        self._asked: dict[tuple[str, int], tuple[Conversation, float]] = {}
        self._busy: set[Place] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def report(self, event: Event) -> None:
        """Take in an event; from any thread."""
        if len(self._events) >= MOST_EVENTS:
            self.dropped += 1
        else:
            self._events.append(lambda: self.service.take(event))

    def declare(self, place: Place, capacity: int, backend: str = "", revision: int = 0) -> None:
        """Take in the capacity of one of a tier's media; from any thread."""
        self._events.append(lambda: self.service.declare(place, capacity, backend, revision))

    def fence(self, node: str) -> None:
        """Take in that a node's memory is void; from any thread."""
        self._events.append(lambda: self.service.fence(node))

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
        """Do what is due once."""
        left = len(self._events)
        until = time.monotonic() + AT_ONCE_S
        while left:
            try:
                self._events.popleft()()
            except Exception as error:
                self._failed("tick", error)
            left -= 1
            if left and time.monotonic() >= until:
                await asyncio.sleep(0)
                until = time.monotonic() + AT_ONCE_S
        self.service.follow(self._predictor.reuse_curves)
        self._collect()
        if not self.ready:
            return
        plan = self.service.plan()
        for conversation in plan.ask:
            self._ask(conversation)
        for place, objects in plan.delete.items():
            if place not in self._busy:
                self._busy.add(place)
                self.service.spare(place, objects)
                self._start(self._delete(place, objects))
        for fetch in plan.fetch:
            self._start(self._fetch(fetch))

    async def settled(self) -> None:
        """Wait for the calls under way; for tests."""
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
        self._asked[name] = (conversation, time.monotonic())

    def _collect(self) -> None:
        now = time.monotonic()
        for name, (conversation, asked_at) in list(self._asked.items()):
            prediction = self._predictor.take(name)
            if prediction is not None:
                self.service.answered(conversation, name[1], prediction)
            elif now - asked_at < ENDED_S:
                continue
            else:
                self._predictor.forget(name)
            del self._asked[name]

    async def _delete(self, place: Place, objects: list[ObjectId]) -> None:
        try:
            node = self._node_of(place.node)
            skipped = len(objects) if node is None else await node.delete(place.tier, objects)
            if skipped:
                self.service.skipped(place, objects, skipped)
            else:
                self.service.deleted(place, objects)
        except Exception as error:
            self.service.skipped(place, objects, 0)  # it may have deleted them: its reports will tell
            self._failed("delete", error)
        finally:
            self._busy.discard(place)

    async def _fetch(self, fetch: Fetch) -> None:
        conversation = fetch.conversation
        chunk = conversation.leaf.id
        try:
            node = self._node_of(fetch.node)
            tokens = conversation.tokens()
            request = ""
            if node is not None and tokens:
                request = await node.fetch(chunk.model, conversation.world_size, tokens, chunk.salt)
            if node is None or not request:
                self.service.refused(fetch)
                return
            for _ in range(POLLS):  # a node keeps a fetch until it was asked after
                await asyncio.sleep(POLL_S)
                objects = await node.fetched(request)
                if objects is not None:
                    self.service.came(fetch, objects)
                    return
        except Exception as error:
            self._failed("fetch", error)
            self.service.refused(fetch)

    async def _refit(self) -> None:
        try:
            for _ in self.service.refit():
                await asyncio.sleep(0)
        except Exception as error:
            self.service.distrust()
            self._failed("refit", error)

    def _failed(self, what: str, error: Exception) -> None:
        """Count it, log the first: its type and, of a node, what it said. Other messages might quote a prompt."""
        self.failures[what] += 1
        if self.failures[what] == 1:
            said = str(error) if isinstance(error, NodeError) else type(error).__name__
            logger.warning("learned prefix cache: %s failed: %s; LMCache's own order holds meanwhile", what, said)
