"""What should be deleted, fetched and asked: decided from LMCache's events and the sidecar's answers, without any I/O.

Events come by :meth:`Service.take`, answers by :meth:`Service.answered`; every tick :meth:`Service.plan` says what to do.
Whatever is missing, sidecar, answers, tokens, has the same end: credit 0, and the order is that of least recent use.
"""

from collections.abc import Callable, Sequence
from typing import Final

from eviction_client import Prediction
from lpc.lmcache.chain import ChunkId, KeyChain, ObjectId
from lpc.lmcache.conversations import Conversations
from lpc.lmcache.events import Event, Place
from lpc.lmcache.fetching import Candidate, Fetch, Fetching
from lpc.lmcache.foretelling import Foretelling
from lpc.lmcache.plan import Counters, Plan, State
from lpc.lmcache.ranking import Ranking
from lpc.lmcache.room import SPARED_S, Room
from lpc.lmcache.rooms import Rooms
from lpc.lmcache.settings import LMCacheSettings
from lpc.lmcache.tree import Chunk, Conversation, Resident
from lpc.model.returns.due import log_gittins

SETTLED_S: Final = 1.5
"""After the last event of a turn: then its chunks are there, and the sidecar is asked about it."""
ANSWER_S: Final = 3.0
"""For the sidecar's answer; then the turn is learnt from without."""
FRESH_S: Final = 10.0
"""A chunk that is not on disk yet is not deleted from memory for so long after it was stored: the copy is on its way."""
PAUSED_S: Final = 5.0
"""After a node has refused a fetch it is asked for none."""
CONSIDERED: Final = 1000
"""Conversations looked at in one plan as to whether they are to be fetched: some milliseconds. Of more, all in turn."""


class Service:
    """Not thread-safe.

    Args:
        pinned: tells which objects are pinned: on disk they are left alone.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        settings: LMCacheSettings,
        *,
        clock: Callable[[], float],
        keys: KeyChain | None = None,
        foretelling: Foretelling | None = None,
        pinned: Callable[[list[ObjectId]], set[ObjectId]] = lambda _: set(),
    ) -> None:
        self.settings = settings
        self._chain = KeyChain() if keys is None else keys
        self.conversations = Conversations(settings.chunks, self._chain)
        self.foretelling = Foretelling() if foretelling is None else foretelling
        self.fetching = Fetching(settings.prefetch_used, settings.prefetch_share, settings.prefetch_longest_s)
        self.rooms = Rooms(settings.watermark, settings.hints_share)
        self.counters = Counters()
        self.pinned = pinned
        self._clock = clock
        self._states: dict[Conversation, State] = {}
        self._ranking = Ranking(self._states, self.fetching)
        self._rank = self._ranking.rank
        self._to_consider: list[Conversation] = []
        self._paused: dict[str, float] = {}
        """By node: until when it is asked for no fetch."""
        self._loaded: set[Chunk] = set()
        """Chunks that came back into memory for a look-up, which is still to be reported: it was no hit in memory."""
        self.to_pin: dict[ObjectId, float] = {}
        """Objects of retained chunks that have come to disk since, and until when."""

    # What is reported.

    def declare(self, place: Place, capacity: int, backend: str = "", revision: int = 0) -> None:
        """Note the capacity of one of a tier's media, bytes; 0: none was declared. ``revision``: as `Rooms.declare`."""
        capacity = self.rooms.declare(place, capacity, backend, revision)
        capacity = capacity or (self.settings.disk_bytes if place.tier == "l2" else 0)
        self.rooms[place].resize(capacity)
        if place.tier == "l1":
            self.fetching.declare(place.node, int(capacity * self.settings.watermark))

    def take(self, event: Event) -> None:
        """Take in what a node reports."""
        if event.kind == "store":
            self._stored(event)
        elif event.kind == "delete":
            now = self._clock()
            for entry in event.entries:
                self._drop(event.place, entry.object, now, asked=False)
        elif event.tier == "l1":
            self._read(event)

    def fence(self, node: str) -> None:
        """Forget what lay in a node's memory: it has restarted, or is gone."""
        for conversation in self.fetching.of_node(node):
            self.fetching.drop(conversation)
        room = self.rooms.get(Place("l1", node))
        if room is not None:
            for chunk in room.clear():
                self._forget_if_nowhere(chunk)
        self.fetching.budgets.pop(node, None)
        self._paused.pop(node, None)
        self.rooms.leave(node)

    def refit(self) -> None:
        """Learn when conversations return: in a thread of its own, tenths of a second, while nothing else is called."""
        self.foretelling.refit(self._clock())

    def answered(self, conversation: Conversation, turn: int, prediction: Prediction | None) -> None:
        """Take in the sidecar's answer about a turn; None: there is none."""
        state = self._states.get(conversation)
        if state is not None and state.turn == turn == conversation.turns:
            state.prediction = prediction
            self._learn(conversation, state)
            self._rank(conversation)

    def find_prompt(self, model: str, salt: str, tokens: Sequence[int], chunk_size: int) -> list[Chunk]:
        """Return the known chunks that a prompt begins with."""
        found: list[Chunk] = []
        for hash_ in self._chain.hashes(tokens, chunk_size):
            chunk = self.conversations.find(ChunkId(model, salt, hash_.hex()))
            if chunk is None:
                break
            found.append(chunk)
        return found

    def retain(self, chunks: Sequence[Chunk], seconds: float) -> float | None:
        """Rank chunks as if they were used so much later; return that time, seconds since the epoch.

        None, and nothing changes, where hints would retain more than their share of a place where the chunks lie.
        """
        now = self._clock()
        until = now + min(max(seconds, 0.0), self.settings.max_retain_s)
        sizes: dict[Room, dict[Chunk, int]] = {}
        for room in self.rooms.values():
            if here := {chunk: resident.bytes for chunk in chunks if (resident := room.find(chunk)) is not None}:
                sizes[room] = here
        for room, here in sizes.items():
            if not room.retained.fits(here, now):
                room.retained.refused += sum(here.values())
                return None
        for room, here in sizes.items():
            room.retain(here, until, now)
        for chunk in chunks:
            chunk.retained_until = max(chunk.retained_until, until)
        return until

    def objects_on_disk(self, chunk: Chunk) -> list[ObjectId]:
        """Return what a chunk is stored as behind memory."""
        objects: dict[ObjectId, None] = {}
        for place, room in self.rooms.items():
            resident = room.find(chunk) if place.tier == "l2" else None
            if resident is not None:
                objects.update(dict.fromkeys(resident.objects))
        return list(objects)

    # What to do.

    def plan(self) -> Plan:
        """Return what is due now."""
        now = self._clock()
        plan = Plan()
        self._forget_ended()
        self._ask(plan, now)
        for conversation in self.fetching.settle(now):
            self._rank(conversation)
        if self.settings.prefetch:
            self._fetch(plan, now)
        for place, room in self.rooms.items():
            if place.tier == "l2" and not self.settings.evict_disk:
                continue
            coming: float = sum(fetch.bytes for fetch in plan.fetch if place == Place("l1", fetch.node))
            coming -= room.going(now)
            victims = room.victims(coming, lambda resident, place=place: self._may_go(resident, place, now))  # type: ignore[misc]
            objects = [object_ for victim in victims for object_ in victim.objects]
            if place.tier == "l2" and objects:
                kept = self.pinned(objects)
                objects = [object_ for object_ in objects if object_ not in kept]
            if objects:
                plan.delete[place] = objects
        return plan

    def deleted(self, place: Place, objects: list[ObjectId]) -> None:
        """Note that objects were deleted as planned. The node's report comes later and changes nothing more."""
        now = self._clock()
        for object_ in objects:
            self._drop(place, object_, now, asked=True)

    def spare(self, place: Place, objects: list[ObjectId]) -> None:
        """Leave objects alone for a moment: they are being deleted, or the node would not delete them (it reads them)."""
        now = self._clock()
        for chunk in self._chunks_of(objects):
            resident = self.rooms[place].find(chunk)
            if resident is not None:
                resident.asked_at = now

    def skipped(self, place: Place, objects: list[ObjectId], count: int) -> None:
        """Note that a node has skipped so many of the objects that it was asked to delete: which, its reports will tell.

        Until then the others count as gone, or the next plan would have as much deleted once more.
        """
        room = self.rooms.get(place)
        if room is not None:  # else the node has gone meanwhile
            room.expect(self._chunks_of(objects), min(count / max(len(objects), 1), 1.0), self._clock())

    def _chunks_of(self, objects: list[ObjectId]) -> list[Chunk]:
        found = (self.conversations.find(object_.chunk) for object_ in objects)
        return list(dict.fromkeys(chunk for chunk in found if chunk is not None))

    def came(self, fetch: Fetch, objects: int) -> None:
        """Note what a node says of a fetch that has ended: how many objects are in memory now."""
        fetch.done = True
        if objects == 0:
            state = self._states.get(fetch.conversation)
            if state is not None:
                state.vain = fetch.conversation.turns
            self._give_up(fetch)

    def refused(self, fetch: Fetch) -> None:
        """Note that a node could not be asked for a fetch, or did not carry it out."""
        self._paused[fetch.node] = self._clock() + PAUSED_S
        self._give_up(fetch)

    def _give_up(self, fetch: Fetch) -> None:
        if self.fetching.find(fetch.conversation) is fetch:
            self.fetching.drop(fetch.conversation, refused=True)
            self._rank(fetch.conversation)

    def _ask(self, plan: Plan, now: float) -> None:
        for conversation, state in self._states.items():
            if state.turn < conversation.turns:
                if now - conversation.used_at >= SETTLED_S:
                    state.turn, state.asked_at, state.learnt = conversation.turns, now, False
                    state.prediction = state.curve = state.index = None
                    plan.ask.append(conversation)
            elif not state.learnt and now - state.asked_at >= ANSWER_S:
                self._learn(conversation, state)

    def _learn(self, conversation: Conversation, state: State) -> None:
        if not state.learnt:
            state.learnt = True
            state.curve = self.foretelling.turn(conversation, state.prediction)
            state.index = None if state.curve is None else log_gittins(state.curve[None, :])[0]

    def _fetch(self, plan: Plan, now: float) -> None:
        average = self.foretelling.average
        if average is None:
            return
        candidates: dict[str, list[Candidate]] = {}
        for conversation in self._next_to_consider():
            state = self._states.get(conversation)
            if (
                state is None
                or state.curve is None
                or state.index is None
                or state.turn < conversation.turns
                or state.vain == conversation.turns
                or now < self._paused.get(conversation.node, 0.0)
                or not self.fetching.takes(conversation.node)
                or self.fetching.find(conversation) is not None
            ):
                continue
            missing, here = self._missing(conversation)
            if missing:
                candidate = Candidate(conversation, state.curve, state.index, missing, here)
                candidates.setdefault(conversation.node, []).append(candidate)
        for node, some in candidates.items():
            for fetch in self.fetching.choose(node, some, self.rooms[Place("l1", node)], average, now):
                plan.fetch.append(fetch)
                self._rank(fetch.conversation)

    def _next_to_consider(self) -> list[Conversation]:
        """Return some conversations; all in turn."""
        if not self._to_consider:
            self._to_consider = list(self._states)
        some = self._to_consider[-CONSIDERED:]
        del self._to_consider[-CONSIDERED:]
        return some

    def _missing(self, conversation: Conversation) -> tuple[dict[Chunk, int], int]:
        """Return a conversation's chunks that are on disk and not in its node's memory, their bytes, and those in memory.

        Only those behind which nothing is missing from everywhere: LMCache looks no further than the first gap.
        """
        memory, disks = self.rooms[Place("l1", conversation.node)], self.rooms.behind(conversation.node)
        missing: dict[Chunk, int] = {}
        here = 0
        for chunk in conversation.chunks():
            lies = chunk.lies
            if memory in lies:
                here += lies[memory].bytes
                continue
            for disk in disks:
                if disk in lies:
                    missing[chunk] = lies[disk].bytes
                    break
            else:
                break
        return missing, here

    def _may_go(self, resident: Resident, place: Place, now: float) -> bool:
        if now - resident.asked_at < SPARED_S:
            return False
        if place.tier == "l2" or now - resident.since >= FRESH_S:
            return True
        further = self.rooms.behind(place.node)
        return not further or any(room in resident.chunk.lies for room in further)

    # Events.

    def _stored(self, event: Event) -> None:
        room = self.rooms[event.place]
        if event.tier == "l1":
            known = [chunk for entry in event.entries if (chunk := self.conversations.find(entry.object.chunk)) is not None]
            touched = self.conversations.stored(event)
            self._forget_forgotten()
            for chunk in dict.fromkeys(known):
                if self.conversations.find(chunk.id) is not chunk:
                    continue  # forgotten for want of room
                if chunk not in room and not self.fetching.came(chunk, event.node):
                    self._loaded.add(chunk)
        else:
            touched = []
        for entry in event.entries:
            chunk = self.conversations.find(entry.object.chunk)
            if chunk is not None:
                room.store(chunk, entry.object, entry.size, event.at)
                resident = room.find(chunk)
                retained = (
                    resident is not None
                    and chunk.retained_until > event.at
                    and room.retain({chunk: resident.bytes}, chunk.retained_until, event.at)
                )
                if event.tier == "l2":
                    if retained:
                        self.to_pin[entry.object] = chunk.retained_until
                    touched.extend(holder for holder in chunk.holders if holder.leaf is chunk)
        for conversation in touched:
            self._states.setdefault(conversation, State())
            self._rank(conversation)

    def _read(self, event: Event) -> None:
        found = self.conversations.read(event, self.fetching.reads)
        read = set(found.chunks)
        for conversation in found.began:
            self.counters.turns += 1
            state = self._states.setdefault(conversation, State())
            self._learn(conversation, state)
            self.fetching.returned(conversation, event.node, read)
            mine = read.intersection(conversation.chunks())
            self.counters.disk_chunks += len(mine & self._loaded)
            self.counters.memory_chunks += len(mine - self._loaded)
        self._loaded -= read
        for chunk in read:
            if len(chunk.holders) != 1:
                self._ranking.lift(chunk, event.at)
        for conversation in found.touched:
            self._rank(conversation)

    def _drop(self, place: Place, object_: ObjectId, now: float, *, asked: bool) -> None:
        chunk = self.conversations.find(object_.chunk)
        room = self.rooms.get(place)
        if chunk is None or room is None:
            return
        resident = room.find(chunk)
        # A node may report a deletion before it answers the call.
        asked = asked or (resident is not None and now - resident.asked_at < SPARED_S)
        room.gone(chunk, object_, now, asked=asked)
        if place.tier == "l1" and chunk not in room:
            self.fetching.gone(chunk, place.node)
        self._forget_if_nowhere(chunk)

    def _forget_if_nowhere(self, chunk: Chunk) -> None:
        if not chunk.lies:
            self.conversations.forget(chunk)
            self._forget_forgotten()

    def _forget_forgotten(self) -> None:
        """What is not known any more, for want of room, is counted nowhere: in memory the node's own LRU sees to it."""
        for chunk in self.conversations.forgotten:
            for room in list(chunk.lies):
                room.forget(chunk)
            self._loaded.discard(chunk)
        self.conversations.forgotten.clear()

    def _forget_ended(self) -> None:
        for conversation in self.conversations.ended:
            self._states.pop(conversation, None)
            self.fetching.drop(conversation)
        self.conversations.ended.clear()
