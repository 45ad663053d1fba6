"""Decides from LMCache's events and the sidecar's predictions what to delete and what to have predicted. Does no I/O.

:meth:`Service.apply` takes events, :meth:`Service.answered` takes predictions, and :meth:`Service.plan` returns what is due.
The reuse classes are those of the engines' plug-in, from the same object (:mod:`eviction_client.policy.policy`). Three things
are known later or not at all:

- A turn is reported chunk by chunk, so it arrives in the policy when it has ended, with the time at which it began.
- LMCache does not report where a prompt ends, so a turn's new tokens include its reply.
- The next prompt may render the reply differently, so of a turn's new chunks the first is watched for reuse, not the deepest.

After a failure the order is LRU until a tier's guard shows better.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from eviction_client import BlockHash, SidecarPrediction
from eviction_client.policy.policy import Policy
from eviction_client.policy.request import TrackedRequest
from eviction_client.policy.reuse_monitor import REMEMBERED
from eviction_client.policy.rules import AUTO
from eviction_client.transport.sidecar_curves import ReuseCurves
from lpc_apps.lmcache.conversations import LONGEST_TURN_S, Conversations
from lpc_apps.lmcache.events import Event, KeyChain, Location, ObjectId
from lpc_apps.lmcache.settings import LMCacheSettings
from lpc_apps.lmcache.tier_cache import DELETION_TIMEOUT_S, TierCaches
from lpc_apps.lmcache.tree import Chunk, Conversation, Resident

PREDICT_AFTER_S: Final = 1.5
"""Time after a turn's last event at which its prediction is requested; by then its chunks have been reported."""
END_AFTER_S: Final = 4.5
"""Time after the last event of an ended turn at which its chunks get their classes, even without a prediction."""
CHUNK_TOKENS: Final = 256
"""LMCache's default number of tokens in a chunk, until a chunk is reported with its tokens."""
FRESH_S: Final = 10.0
"""Time for which a chunk that is not on disk stays in memory after its store: LMCache is still copying it."""


@dataclass(slots=True)
class State:
    """Progress of a conversation.

    Attributes:
        asked_turn: turn whose prediction was requested last.
        answered: whether a prediction of that turn has arrived or failed.
        prediction: prediction for that turn; None: none.
        ended_turn: latest turn whose chunks have their classes.
    """

    asked_turn: int = 0
    answered: bool = False
    prediction: SidecarPrediction | None = None
    ended_turn: int = 0


@dataclass
class Plan:
    """Work that is due.

    Attributes:
        delete: objects to delete, by tier.
        ask: conversations to request predictions for.
    """

    delete: dict[Location, list[ObjectId]] = field(default_factory=dict)
    ask: list[Conversation] = field(default_factory=list)


@dataclass
class Counters:
    """Counters since the start.

    Attributes:
        turns: second and later turns of conversations.
        memory_chunks, disk_chunks: chunks of their prompts that the look-up found in memory, or loaded from disk.
    """

    turns: int = 0
    memory_chunks: int = 0
    disk_chunks: int = 0


class Service:
    """Model of all nodes' chunks and conversations. Not thread-safe.

    Args:
        rule: one of `eviction_client.policy.rules.RULES`, or AUTO: each node's guard chooses.
        clock: seconds since the epoch.

    Attributes:
        policy: reuse classes and tables of the chunks on all nodes. Its own ghost caches have the size of all memory together.
    """

    def __init__(
        self,
        settings: LMCacheSettings,
        *,
        clock: Callable[[], float],
        keys: KeyChain | None = None,
        rule: str = AUTO,
    ) -> None:
        self.settings = settings
        self.conversations = Conversations(settings.chunks, KeyChain() if keys is None else keys)
        # The policy remembers the last uses of as many chunks as are tracked.
        remembered_of = max(settings.chunks // REMEMBERED, 1)
        self.policy: Policy[BlockHash] = Policy(remembered_of, block_tokens=CHUNK_TOKENS, clock=clock, rule=rule)
        self.caches = TierCaches(settings.watermark, self.policy, clock)
        self.counters = Counters()
        self._clock = clock
        self._ended_at = 0.0
        self.states: dict[Conversation, State] = {}
        """States of the conversations whose requests have not been forgotten."""
        self._loaded: set[Chunk] = set()
        """Chunks that a look-up has loaded from disk; its read, which is still to be reported, does not hit memory."""

    # Input.

    def declare(self, location: Location, capacity: int, backend: str = "", revision: int = 0) -> None:
        """Set the capacity of one of a tier's backends, bytes; 0: unlimited. ``revision``: as for `TierCaches.declare`."""
        self.caches[location].capacity = self.caches.declare(location, capacity, backend, revision)

    def apply(self, event: Event) -> None:
        """Apply an event of a node."""
        if event.kind == "store":
            self._stored(event)
        elif event.kind == "delete":
            now = self._clock()
            for entry in event.entries:
                self._drop(event.location, entry.object, now, requested=False)
        elif event.tier == "l1":
            self._read(event)

    def fence(self, node: str) -> None:
        """Remove the contents of a node's memory, and its capacity: the node has restarted or left."""
        self._empty(Location("l1", node))
        self.caches.remove_memory_of(node)

    def empty(self, node: str) -> None:
        """Remove the contents of a node's own tiers, which are unknown. What is not reported again it evicts by itself."""
        for location in [one for one, _ in self.caches.items() if one.node == node]:
            self._empty(location)

    def _empty(self, location: Location) -> None:
        cache = self.caches.get(location)
        if cache is not None:
            for chunk in cache.clear():
                self._forget_if_nowhere(chunk)

    def set_sidecar_curves(self, curves: ReuseCurves | None) -> None:
        """Set the sidecar's curves of its groups; None: no change."""
        if curves is not None:
            self.policy.set_sidecar_curves(curves.epoch, curves.hazards)

    def refit(self) -> Generator[None, None, None]:
        """Fit the reuse curves in steps of well under a millisecond. No other method may be called between the steps."""
        self.policy.ghosts.resize(max(self.caches.chunks, 1))
        yield from self.policy.refitting(self._clock())
        self.caches.refitted()

    def fall_back_to_lru(self) -> None:
        """Switch all tiers to LRU, and restart learning."""
        self.policy = self.policy.renewed()
        self.caches.distrust(self.policy)

    def answered(self, conversation: Conversation, turn: int, prediction: SidecarPrediction | None) -> None:
        """Apply the prediction of a turn; None: the sidecar has not answered in time."""
        state = self.states.get(conversation)
        if state is not None and state.asked_turn == turn == conversation.turns:
            state.answered = True
            state.prediction = prediction

    # Output.

    def plan(self) -> Plan:
        """Return the work that is due now."""
        now = self._clock()
        plan = Plan()
        self._forget_ended()
        self._end_turns(plan, now)
        for location, cache in self.caches.items():
            if location.tier == "l2":
                continue
            victims = cache.victims(-cache.deleting_bytes(now), partial(self._may_go, location=location, now=now))
            objects = [object_ for victim in victims for object_ in victim.objects]
            if objects:
                plan.delete[location] = objects
        return plan

    def deleted(self, location: Location, objects: list[ObjectId]) -> None:
        """Record that a node has deleted these objects. Its later report changes nothing."""
        now = self._clock()
        for object_ in objects:
            self._drop(location, object_, now, requested=True)

    def deleting(self, location: Location, objects: list[ObjectId]) -> None:
        """Record that the deletion of objects was requested; their chunks are skipped for DELETION_TIMEOUT_S."""
        now = self._clock()
        for chunk in self._chunks_of(objects):
            resident = self.caches[location].find(chunk)
            if resident is not None:
                resident.deletion_requested_at = now

    def skipped(self, location: Location, objects: list[ObjectId], count: int) -> None:
        """Record that a node has skipped ``count`` of the objects to delete. Its reports will show which.

        Until then the others count as deleted, or the next plan would delete as much again.
        """
        cache = self.caches.get(location)
        if cache is not None:  # None: the node has left since the request
            cache.expect_deletions(self._chunks_of(objects), min(count / max(len(objects), 1), 1.0), self._clock())

    def _chunks_of(self, objects: list[ObjectId]) -> list[Chunk]:
        found = (self.conversations.find(object_.chunk) for object_ in objects)
        return list(dict.fromkeys(chunk for chunk in found if chunk is not None))

    def _end_turns(self, plan: Plan, now: float) -> None:
        """Request predictions of new turns, and set the classes of the chunks of ended ones."""
        for conversation, state in self.states.items():
            if state.ended_turn == conversation.turns:
                continue
            quiet = now - conversation.used_at
            if state.asked_turn < conversation.turns and quiet >= PREDICT_AFTER_S:
                state.asked_turn, state.answered, state.prediction = conversation.turns, False, None
                plan.ask.append(conversation)
            answered = state.answered and state.asked_turn == conversation.turns
            if quiet >= (LONGEST_TURN_S if conversation.open else PREDICT_AFTER_S if answered else END_AFTER_S):
                self._end(conversation, state, conversation.turns, conversation.arrived_at, conversation.used_at)

    def _end(self, conversation: Conversation, state: State, turn: int, began_at: float, ended_at: float) -> None:
        """Set the reuse classes of an ended turn's chunks. A failure switches all tiers to LRU."""
        state.ended_turn = turn
        try:
            self._learn(conversation, state.prediction if state.asked_turn == turn else None, began_at, ended_at)
        except Exception:
            self.fall_back_to_lru()
            raise

    def _learn(
        self, conversation: Conversation, prediction: SidecarPrediction | None, began_at: float, ended_at: float
    ) -> None:
        policy, chain = self.policy, conversation.chunks()
        blocks = [chunk.block for chunk in chain]
        policy.block_tokens = len(chain[0].tokens) or policy.block_tokens
        request: TrackedRequest[BlockHash] = TrackedRequest(conversation.name, blocks, started_at=began_at)
        policy.started(request)
        # Turns end in any order of their last events, and the policy's time must not go back.
        self._ended_at = max(self._ended_at, ended_at)
        policy.finished(
            request,
            blocks,
            min(request.old + 1, len(blocks)),
            self._ended_at,
            group=0 if prediction is None else prediction.group,
            log_odds=None if prediction is None else prediction.log_odds,
        )
        parts = [(chain[span.start : span.end][::-1], span.reuse_class) for span in request.spans]
        memory = self.caches.get(Location("l1", conversation.node))
        if memory is not None:  # None: the node has left during the turn
            memory.use(reversed(parts))
            memory.learn(request)
        policy.learn(request)

    def _may_go(self, resident: Resident, location: Location, now: float) -> bool:
        if now - resident.deletion_requested_at < DELETION_TIMEOUT_S:
            return False
        if now - resident.stored_at >= FRESH_S:
            return True
        disks = self.caches.behind(location.node)
        return not disks or any(disk in resident.chunk.residents for disk in disks)

    # Events.

    def _stored(self, event: Event) -> None:
        cache = self.caches[event.location]
        if event.tier == "l1":
            known = [chunk for entry in event.entries if (chunk := self.conversations.find(entry.object.chunk)) is not None]
            for conversation in self.conversations.stored(event):
                self._end_previous_turn(conversation)
            self._drop_forgotten()
        entries = [
            (chunk, entry.object, entry.size)
            for entry in event.entries
            if (chunk := self.conversations.find(entry.object.chunk)) is not None
        ]
        new = cache.store(entries)
        if event.tier == "l1":
            self._loaded.update(set(new).intersection(known))

    def _read(self, event: Event) -> None:
        found = self.conversations.read(event)
        read, cache = set(found.chunks), self.caches[event.location]
        for conversation in found.touched:
            self._end_previous_turn(conversation)
        used = read.intersection(chunk for reader in found.touched for chunk in reader.chunks())
        cache.mark_in_use(used)
        cache.touch(read - used)
        for conversation in found.began:
            self.counters.turns += 1
            own = read.intersection(conversation.chunks())
            self.counters.disk_chunks += len(own & self._loaded)
            self.counters.memory_chunks += len(own - self._loaded)
        self._loaded -= read

    def _end_previous_turn(self, conversation: Conversation) -> None:
        """End the previous turn of a conversation that has an event, if it is still open."""
        state = self.states.setdefault(conversation, State())
        if state.ended_turn < conversation.turns - 1:
            self._end(conversation, state, conversation.turns - 1, *conversation.previous_turn)

    def _drop(self, location: Location, object_: ObjectId, now: float, *, requested: bool) -> None:
        chunk = self.conversations.find(object_.chunk)
        cache = self.caches.get(location)
        if chunk is None or cache is None:
            return
        resident = cache.find(chunk)
        # A node may report a deletion before it answers the call.
        requested = requested or (resident is not None and now - resident.deletion_requested_at < DELETION_TIMEOUT_S)
        cache.removed(chunk, object_, requested=requested)
        self._forget_if_nowhere(chunk)

    def _forget_if_nowhere(self, chunk: Chunk) -> None:
        if not chunk.residents:
            self.conversations.forget(chunk)
            self._drop_forgotten()

    def _drop_forgotten(self) -> None:
        """Stop counting chunks that were forgotten because the table is full; the node's own LRU evicts them."""
        for chunk in self.conversations.forgotten:
            for cache in list(chunk.residents):
                cache.forget(chunk)
            self._loaded.discard(chunk)
        self.conversations.forgotten.clear()

    def _forget_ended(self) -> None:
        for conversation in self.conversations.ended:
            self.states.pop(conversation, None)
        self.conversations.ended.clear()
