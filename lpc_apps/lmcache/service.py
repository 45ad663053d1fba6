"""Decides from LMCache's events and the sidecar's predictions what to delete, fetch and have predicted. Does no I/O.

:meth:`Service.apply` takes events, :meth:`Service.answered` takes predictions, and :meth:`Service.plan` returns what is due.
Without predictions the reuse classes come from the events alone. Until the guard has evidence that the value pays, and after a
failure, the order is LRU.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Final

from eviction_client import Prediction
from eviction_client.ghost import Freed
from eviction_client.prior import ReuseCurves
from eviction_client.value_queue import DONE
from lpc_apps.lmcache.classes import CLASSES, Classes
from lpc_apps.lmcache.conversations import LONGEST_TURN_S, Conversations
from lpc_apps.lmcache.events import Event, KeyChain, Location, ObjectId
from lpc_apps.lmcache.fetching import Candidate, Fetch, Fetching
from lpc_apps.lmcache.settings import LMCacheSettings
from lpc_apps.lmcache.tier_cache import DELETION_TIMEOUT_S, TierCache, TierCaches
from lpc_apps.lmcache.tree import Chunk, Conversation, Resident

PREDICT_AFTER_S: Final = 1.5
"""Time after a turn's last event at which its prediction is requested; by then its chunks have been reported."""
END_AFTER_S: Final = 4.5
"""Time after the last event of an ended turn at which its chunks get their classes, even without a prediction."""
FRESH_S: Final = 10.0
"""How long after its store a chunk that is not on disk stays in memory: LMCache is still copying it."""
REFUSAL_PAUSE_S: Final = 5.0
"""How long a node gets no fetches after it has refused one."""
PREFETCH_USED_SHARE: Final = 0.6
"""Share of the prefetched bytes that is to be used."""
PREFETCH_LONGEST_S: Final = 600.0
"""Longest time for which a fetched conversation is ranked last in memory."""
CONSIDERED_PER_PLAN: Final = 1000
"""Conversations that one plan considers for a fetch, which takes some milliseconds; successive plans go through all."""


@dataclass(slots=True)
class State:
    """Progress of a conversation.

    Attributes:
        asked_turn: turn whose prediction was requested last.
        answered: whether a prediction of that turn has arrived or failed.
        group: predicted group; 0: none.
        ended_turn: latest turn whose chunks have their classes.
        reuse_class: class of the deepest chunk at the end of that turn.
        empty_turn: latest turn for which a fetch found nothing on disk.
    """

    asked_turn: int = 0
    answered: bool = False
    group: int = 0
    ended_turn: int = 0
    reuse_class: int = 0
    empty_turn: int = 0


@dataclass
class Plan:
    """Work that is due.

    Attributes:
        delete: objects to delete, by tier.
        fetch: fetches to start.
        ask: conversations to request predictions for.
    """

    delete: dict[Location, list[ObjectId]] = field(default_factory=dict)
    fetch: list[Fetch] = field(default_factory=list)
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
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        settings: LMCacheSettings,
        *,
        clock: Callable[[], float],
        keys: KeyChain | None = None,
    ) -> None:
        self.settings = settings
        self.conversations = Conversations(settings.chunks, KeyChain() if keys is None else keys)
        self.classes = Classes(settings.chunks)
        self.fetching = Fetching(PREFETCH_USED_SHARE, settings.prefetch_share, PREFETCH_LONGEST_S)
        self.caches = TierCaches(settings.watermark, CLASSES, clock)
        self.counters = Counters()
        self._clock = clock
        self._states: dict[Conversation, State] = {}
        self._to_consider: list[Conversation] = []
        self._paused: dict[str, float] = {}
        """Time until which a node gets no fetches."""
        self._loaded: set[Chunk] = set()
        """Chunks that a look-up has loaded from disk; its read, which is still to be reported, does not hit memory."""

    # Input.

    def declare(self, location: Location, capacity: int, backend: str = "", revision: int = 0) -> None:
        """Set the capacity of one of a tier's backends, bytes; 0: unlimited. ``revision``: as for `TierCaches.declare`."""
        capacity = self.caches.declare(location, capacity, backend, revision)
        self.caches[location].capacity = capacity
        if location.tier == "l1":
            self.fetching.declare(location.node, int(capacity * self.settings.watermark))

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
        """Remove the contents of a node's memory: the node has restarted or left."""
        for conversation in self.fetching.of_node(node):
            self.fetching.drop(conversation)
        cache = self.caches.get(Location("l1", node))
        if cache is not None:
            for chunk in cache.clear():
                self._forget_if_nowhere(chunk)
        self.fetching.budgets.pop(node, None)
        self._paused.pop(node, None)
        self.caches.remove_memory_of(node)

    def follow(self, curves: ReuseCurves | None) -> None:
        """Use the sidecar's curves of its groups as priors; None: no change."""
        self.classes.follow(curves)

    def refit(self) -> Generator[None, None, None]:
        """Fit the reuse curves in steps of well under a millisecond. No other method may be called between the steps."""
        yield from self.classes.refit(self._clock())
        self.caches.set_tables(self.classes.tables)

    def fall_back_to_lru(self) -> None:
        """Switch all tiers to LRU, and restart learning."""
        self.classes = Classes(self.settings.chunks)
        self.caches.fall_back_to_lru()

    def answered(self, conversation: Conversation, turn: int, prediction: Prediction | None) -> None:
        """Apply the prediction of a turn; None: the sidecar has not answered in time."""
        state = self._states.get(conversation)
        if state is not None and state.asked_turn == turn == conversation.turns:
            state.answered = True
            state.group = 0 if prediction is None else prediction.group

    # Output.

    def plan(self) -> Plan:
        """Return the work that is due now."""
        now = self._clock()
        plan = Plan()
        self._forget_ended()
        self._end_turns(plan, now)
        self.fetching.settle(now)
        if self.settings.prefetch_share:
            self._fetch(plan, now)
        for location, cache in self.caches.items():
            if location.tier == "l2":
                continue
            wanted: float = sum(fetch.bytes for fetch in plan.fetch if location == Location("l1", fetch.node))
            wanted -= cache.deleting_bytes(now)
            victims = cache.victims(wanted, lambda resident, location=location: self._may_go(resident, location, now))  # type: ignore[misc]
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

    def fetch_ended(self, fetch: Fetch, objects: int) -> None:
        """Record the end of a fetch; ``objects``: how many of its objects are in memory."""
        fetch.done = True
        if objects == 0:
            state = self._states.get(fetch.conversation)
            if state is not None:
                state.empty_turn = fetch.conversation.turns
            self._give_up(fetch)

    def fetch_refused(self, fetch: Fetch) -> None:
        """Record that a fetch failed or a node refused it."""
        self._paused[fetch.node] = self._clock() + REFUSAL_PAUSE_S
        self._give_up(fetch)

    def _give_up(self, fetch: Fetch) -> None:
        if self.fetching.find(fetch.conversation) is fetch:
            self.fetching.drop(fetch.conversation, refused=True)

    def _end_turns(self, plan: Plan, now: float) -> None:
        """Request predictions of new turns, and set the classes of the chunks of ended ones."""
        for conversation, state in self._states.items():
            if state.ended_turn == conversation.turns:
                continue
            quiet = now - conversation.used_at
            if state.asked_turn < conversation.turns and quiet >= PREDICT_AFTER_S:
                state.asked_turn, state.answered, state.group = conversation.turns, False, 0
                plan.ask.append(conversation)
            answered = state.answered and state.asked_turn == conversation.turns
            if quiet >= (LONGEST_TURN_S if conversation.open else PREDICT_AFTER_S if answered else END_AFTER_S):
                self._end(conversation, state, conversation.turns, conversation.arrived_at, conversation.used_at)

    def _end(self, conversation: Conversation, state: State, turn: int, began_at: float, ended_at: float) -> None:
        """Set the reuse classes of an ended turn's chunks. A failure switches all tiers to LRU."""
        state.ended_turn = turn
        chain = conversation.chunks()
        try:
            runs = self.classes.ended(chain, state.group if state.asked_turn == turn else 0, began_at, ended_at)
            state.reuse_class = runs[-1].reuse_class
            starts = (0, *(run.end for run in runs))
            parts = [(chain[start : run.end], run.reuse_class) for start, run in zip(starts, runs, strict=False)]
            prompt = [chunk.block for chunk in chain]
            freed = [Freed([chunk.block for chunk in chunks], number) for chunks, number in parts]
            memory = self.caches[Location("l1", conversation.node)]
            memory.use((chunks[::-1], number) for chunks, number in reversed(parts))
            memory.learn(prompt, freed)
        except Exception:
            self.fall_back_to_lru()
            raise

    def _candidate(self, conversation: Conversation, now: float) -> Candidate | None:
        """Return what a fetch of a conversation would load; None: nothing, or it must not be fetched now."""
        state = self._states.get(conversation)
        if (
            state is None
            or state.ended_turn < conversation.turns
            or state.empty_turn == conversation.turns
            or now < self._paused.get(conversation.node, 0.0)
            or not self.fetching.has_budget(conversation.node)
            or self.fetching.find(conversation) is not None
        ):
            return None
        missing, memory_bytes = self._missing(conversation)
        return Candidate(conversation, state.reuse_class, missing, memory_bytes) if missing else None

    def _fetch(self, plan: Plan, now: float) -> None:
        if self.classes.tables is None:
            return
        candidates: dict[str, list[Candidate]] = {}
        for conversation in self._next_to_consider():
            if (candidate := self._candidate(conversation, now)) is not None:
                candidates.setdefault(conversation.node, []).append(candidate)
        for node, some in candidates.items():
            plan.fetch.extend(self.fetching.choose(node, some, self.caches[Location("l1", node)], self.classes, now))

    def _next_to_consider(self) -> list[Conversation]:
        """Return the next CONSIDERED_PER_PLAN conversations; repeated calls go through all."""
        if not self._to_consider:
            self._to_consider = list(self._states)
        some = self._to_consider[-CONSIDERED_PER_PLAN:]
        del self._to_consider[-CONSIDERED_PER_PLAN:]
        return some

    def _missing(self, conversation: Conversation) -> tuple[dict[Chunk, int], int]:
        """Return the sizes of a conversation's chunks that are on disk only, and the bytes of those in its node's memory.

        Stops at the first chunk that no tier holds, as LMCache does.
        """
        memory, disks = self.caches[Location("l1", conversation.node)], self.caches.behind(conversation.node)
        missing: dict[Chunk, int] = {}
        memory_bytes = 0
        for chunk in conversation.chunks():
            if memory in chunk.residents:
                memory_bytes += chunk.residents[memory].bytes
                continue
            on_disk = next((chunk.residents[disk] for disk in disks if disk in chunk.residents), None)
            if on_disk is None:
                break
            missing[chunk] = on_disk.bytes
        return missing, memory_bytes

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
            self._loaded_to_memory(cache, event.node, set(new).intersection(known))

    def _loaded_to_memory(self, cache: TierCache, node: str, chunks: set[Chunk]) -> None:
        """Record chunks loaded from disk: by a fetch, which ranks them last for its time, or by a look-up."""
        fetches: dict[Conversation, Fetch] = {}
        for chunk in chunks:
            fetch = self.fetching.arrived(chunk, node)
            if fetch is None:
                self._loaded.add(chunk)
            else:
                fetches[fetch.conversation] = fetch
        for conversation, fetch in fetches.items():
            chain = conversation.chunks()
            cache.rank_last((chunk for chunk in chain if chunk not in fetch.arrived), fetch.until)
            cache.rank_last((chunk for chunk in chain if chunk in fetch.arrived), fetch.until, reuse_class=DONE)

    def _read(self, event: Event) -> None:
        fetched: dict[Conversation, bool] = {}
        found = self.conversations.read(event, lambda reader: fetched.setdefault(reader, self.fetching.is_own_read(reader)))
        read, cache = set(found.chunks), self.caches[event.location]
        for conversation in found.touched:
            self._end_previous_turn(conversation)
        used = read.intersection(chunk for reader in found.touched for chunk in reader.chunks())
        cache.mark_in_use(used)
        cache.touch(read - used - {chunk for reader, fetch in fetched.items() if fetch for chunk in reader.chunks()})
        for conversation in found.began:
            self.counters.turns += 1
            self.fetching.returned(conversation, event.node, read)
            own = read.intersection(conversation.chunks())
            self.counters.disk_chunks += len(own & self._loaded)
            self.counters.memory_chunks += len(own - self._loaded)
        self._loaded -= read

    def _end_previous_turn(self, conversation: Conversation) -> None:
        """End the previous turn of a conversation that has an event, if it is still open."""
        state = self._states.setdefault(conversation, State())
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
        if location.tier == "l1" and chunk not in cache:
            self.fetching.evicted(chunk, location.node)
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
            self._states.pop(conversation, None)
            self.fetching.drop(conversation)
        self.conversations.ended.clear()
