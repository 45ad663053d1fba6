"""What should be deleted, fetched and asked: decided from LMCache's events and the sidecar's answers, without any I/O.

Events come by :meth:`Service.take`, answers by :meth:`Service.answered`; every tick :meth:`Service.plan` says what to do.
Without the sidecar the classes are those that the events alone tell; without evidence that the value pays, and after a failure,
the order is that of least recent use.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Final

from eviction_client import Prediction
from eviction_client.ghost import Freed
from eviction_client.hints import MAX_RETAIN_S
from eviction_client.prior import ReuseCurves
from eviction_client.value_queue import DONE
from lpc.lmcache.classes import CLASSES, Classes
from lpc.lmcache.conversations import LONGEST_TURN_S, Conversations
from lpc.lmcache.events import ChunkId, Event, KeyChain, ObjectId, Place
from lpc.lmcache.fetching import Candidate, Fetch, Fetching
from lpc.lmcache.room import SPARED_S, Room, Rooms
from lpc.lmcache.settings import LMCacheSettings
from lpc.lmcache.tree import Chunk, Conversation, Resident
from lpc.lmcache.waiting import Waiting

SETTLED_S: Final = 1.5
"""After the last event of a turn: then its chunks are there, and the sidecar is asked about it."""
ENDED_S: Final = 4.5
"""After the last event of a turn that has ended: then its chunks get their classes, even if the sidecar has not answered."""
FRESH_S: Final = 10.0
"""A chunk that is not on disk yet is not deleted from memory for so long after it was stored: the copy is on its way."""
PAUSED_S: Final = 5.0
"""After a node has refused a fetch it is asked for none."""
PREFETCH_USED: Final = 0.6
"""Share of the bytes fetched ahead that shall be used."""
PREFETCH_LONGEST_S: Final = 600.0
"""Longest time for which a conversation is fetched ahead."""
CONSIDERED: Final = 1000
"""Conversations looked at in one plan as to whether they are to be fetched: some milliseconds. Of more, all in turn."""


@dataclass(slots=True)
class State:
    """What is known of a conversation.

    Attributes:
        asked: the turn about which the sidecar was asked.
        answered: it has answered, or cannot.
        group: its answer; 0: none.
        ended: the latest turn whose chunks have their classes.
        reuse_class: of its deepest chunk then.
        vain: the turn for which a fetch has found nothing.
    """

    asked: int = 0
    answered: bool = False
    group: int = 0
    ended: int = 0
    reuse_class: int = 0
    vain: int = 0


@dataclass
class Plan:
    """What to do now. ``delete``: objects by place; ``fetch``: what to fetch; ``ask``: whom to ask the sidecar about."""

    delete: dict[Place, list[ObjectId]] = field(default_factory=dict)
    fetch: list[Fetch] = field(default_factory=list)
    ask: list[Conversation] = field(default_factory=list)


@dataclass
class Counters:
    """Counted since the start, of returning turns.

    Attributes:
        turns: such turns.
        memory_chunks, disk_chunks: of their prompts' chunks, found in memory, and loaded from further away when looked up.
    """

    turns: int = 0
    memory_chunks: int = 0
    disk_chunks: int = 0


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
        hints_share: float = 0.0,
        clock: Callable[[], float],
        keys: KeyChain | None = None,
        pinned: Callable[[list[ObjectId]], set[ObjectId]] = lambda _: set(),
    ) -> None:
        self.settings = settings
        self._chain = KeyChain() if keys is None else keys
        self.conversations = Conversations(settings.chunks, self._chain)
        self.classes = Classes(settings.chunks)
        self.fetching = Fetching(PREFETCH_USED, settings.prefetch_share, PREFETCH_LONGEST_S)
        self.rooms = Rooms(settings.watermark, hints_share, CLASSES, clock)
        self.waiting = Waiting()
        self.counters = Counters()
        self.pinned = pinned
        self._clock = clock
        self._states: dict[Conversation, State] = {}
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
        capacity = capacity or ((self.settings.disk_bytes or 0) if place.tier == "l2" else 0)
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

    def follow(self, curves: ReuseCurves | None) -> None:
        """Take what the sidecar predicts for its groups; None: nothing."""
        self.classes.follow(curves)

    def refit(self) -> Generator[None, None, None]:
        """Fit the reuse curves, in steps of well under a millisecond. Nothing else may be called between them but `retain`."""
        yield from self.classes.refit(self._clock())
        self.rooms.refitted(self.classes.tables)

    def distrust(self) -> None:
        """Put least recent use into force everywhere, and begin to learn again."""
        self.classes = Classes(self.settings.chunks)
        self.rooms.distrust()

    def answered(self, conversation: Conversation, turn: int, prediction: Prediction | None) -> None:
        """Take in the sidecar's answer about a turn; None: there is none."""
        state = self._states.get(conversation)
        if state is not None and state.asked == turn == conversation.turns:
            state.answered = True
            state.group = 0 if prediction is None else prediction.group

    def wait(self, engine: str, requests: Sequence[tuple[str, list[Chunk] | None]]) -> None:
        """Take the requests that wait in an engine, all of them, with the known chunks of those that are new."""
        self.waiting.replace(engine, requests, self._clock())

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
        until = now + min(max(seconds, 0.0), MAX_RETAIN_S)
        sizes: dict[Room, dict[Chunk, int]] = {}
        for room in self.rooms.values():
            if here := {chunk: resident.bytes for chunk in chunks if (resident := room.find(chunk)) is not None}:
                sizes[room] = here
        for room, here in sizes.items():
            if not room.retained.fits(here, now):
                room.retained.refused += sum(here.values())
                return None
        for room, here in sizes.items():
            room.retain(here, until)
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
        self._end_turns(plan, now)
        self.fetching.settle(now)
        self.waiting.settle(now)
        if self.settings.prefetch_share:
            self._fetch_for_waiting(plan, now)
            self._fetch(plan, now)
        for place, room in self.rooms.items():
            if place.tier == "l2" and self.settings.disk_bytes is None:
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

    def _end_turns(self, plan: Plan, now: float) -> None:
        """Ask about turns, and give the chunks of those that have ended their classes."""
        for conversation, state in self._states.items():
            if state.ended == conversation.turns:
                continue
            quiet = now - conversation.used_at
            if state.asked < conversation.turns and quiet >= SETTLED_S:
                state.asked, state.answered, state.group = conversation.turns, False, 0
                plan.ask.append(conversation)
            answered = state.answered and state.asked == conversation.turns
            if quiet >= (LONGEST_TURN_S if conversation.open else SETTLED_S if answered else ENDED_S):
                self._end(conversation, state, conversation.turns, conversation.arrived_at, conversation.used_at)

    def _end(self, conversation: Conversation, state: State, turn: int, began_at: float, ended_at: float) -> None:
        """A turn has ended: its chunks get their reuse classes. After a failure least recent use is in force everywhere."""
        state.ended = turn
        chain = conversation.chunks()
        try:
            runs = self.classes.ended(chain, state.group if state.asked == turn else 0, began_at, ended_at)
            state.reuse_class = runs[-1].reuse_class
            starts = (0, *(run.end for run in runs))
            parts = [(chain[start : run.end], run.reuse_class) for start, run in zip(starts, runs, strict=False)]
            prompt = [chunk.block for chunk in chain]
            freed = [Freed([chunk.block for chunk in chunks], number) for chunks, number in parts]
            memory = self.rooms[Place("l1", conversation.node)]
            for disk in self.rooms.behind(conversation.node):
                disk.use((chunks[::-1], number) for chunks, number in reversed(parts))
                if self.settings.disk_bytes is not None:  # first: what memory has of this turn is what it had before
                    disk.learn(prompt, freed, memory.ghost)
            memory.use((chunks[::-1], number) for chunks, number in reversed(parts))
            memory.learn(prompt, freed)
        except Exception:
            self.distrust()
            raise

    def _fetch_for_waiting(self, plan: Plan, now: float) -> None:
        """Fetch what the waiting requests need that came first, whatever it is worth."""
        for conversation in self.waiting.conversations():
            candidate = self._candidate(conversation, now) if self.fetching.free(conversation.node) > 0 else None
            if candidate is not None:
                fetch = self.fetching.begin(conversation.node, candidate, now + PREFETCH_LONGEST_S, now)
                plan.fetch += [] if fetch is None else [fetch]

    def _candidate(self, conversation: Conversation, now: float) -> Candidate | None:
        """Return what a fetch of a conversation would bring; None: nothing, or it may not be fetched now."""
        state = self._states.get(conversation)
        if (
            state is None
            or state.ended < conversation.turns
            or state.vain == conversation.turns
            or now < self._paused.get(conversation.node, 0.0)
            or not self.fetching.takes(conversation.node)
            or self.fetching.find(conversation) is not None
        ):
            return None
        missing, here = self._missing(conversation)
        return Candidate(conversation, state.reuse_class, missing, here) if missing else None

    def _fetch(self, plan: Plan, now: float) -> None:
        if self.classes.tables is None:
            return
        candidates: dict[str, list[Candidate]] = {}
        for conversation in self._next_to_consider():
            if (candidate := self._candidate(conversation, now)) is not None:
                candidates.setdefault(conversation.node, []).append(candidate)
        for node, some in candidates.items():
            plan.fetch.extend(self.fetching.choose(node, some, self.rooms[Place("l1", node)], self.classes, now))

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
            for conversation in self.conversations.stored(event):
                self._goes_on(conversation)
            self._forget_forgotten()
        entries = [
            (chunk, entry.object, entry.size)
            for entry in event.entries
            if (chunk := self.conversations.find(entry.object.chunk)) is not None
        ]
        new = room.store(entries)
        for chunk, object_, _ in entries:
            if chunk.retained_until > event.at and (resident := room.find(chunk)) is not None:
                held = room.retain({chunk: resident.bytes}, chunk.retained_until)
                if held and event.tier == "l2":
                    self.to_pin[object_] = chunk.retained_until
        if event.tier == "l1":
            self._brought(room, event.node, set(new).intersection(known))

    def _brought(self, room: Room, node: str, chunks: set[Chunk]) -> None:
        """Chunks have come back into memory: for a fetch, which keeps them for its time, or for a look-up."""
        fetches: dict[Conversation, Fetch] = {}
        for chunk in chunks:
            fetch = self.fetching.came(chunk, node)
            if fetch is None:
                self._loaded.add(chunk)
            else:
                fetches[fetch.conversation] = fetch
        for conversation, fetch in fetches.items():
            chain = conversation.chunks()
            room.keep((chunk for chunk in chain if chunk not in fetch.come), fetch.until)
            room.keep((chunk for chunk in chain if chunk in fetch.come), fetch.until, reuse_class=DONE)

    def _read(self, event: Event) -> None:
        fetched: dict[Conversation, bool] = {}
        found = self.conversations.read(event, lambda reader: fetched.setdefault(reader, self.fetching.reads(reader)))
        read, room = set(found.chunks), self.rooms[event.place]
        for conversation in found.touched:
            self._goes_on(conversation)
        used = read.intersection(chunk for reader in found.touched for chunk in reader.chunks())
        room.go_on(used)
        room.touch(read - used - {chunk for reader, fetch in fetched.items() if fetch for chunk in reader.chunks()})
        for conversation in found.began:
            self.counters.turns += 1
            self.fetching.returned(conversation, event.node, read)
            mine = read.intersection(conversation.chunks())
            self.counters.disk_chunks += len(mine & self._loaded)
            self.counters.memory_chunks += len(mine - self._loaded)
        self._loaded -= read

    def _goes_on(self, conversation: Conversation) -> None:
        """A conversation was heard of: if its next turn has begun, the one before has ended."""
        state = self._states.setdefault(conversation, State())
        if state.ended < conversation.turns - 1:
            self._end(conversation, state, conversation.turns - 1, *conversation.before)

    def _drop(self, place: Place, object_: ObjectId, now: float, *, asked: bool) -> None:
        chunk = self.conversations.find(object_.chunk)
        room = self.rooms.get(place)
        if chunk is None or room is None:
            return
        resident = room.find(chunk)
        # A node may report a deletion before it answers the call.
        asked = asked or (resident is not None and now - resident.asked_at < SPARED_S)
        room.gone(chunk, object_, asked=asked)
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
