"""LMCache alone and with our controller, and users who think between turns, on a virtual clock.

The service is the one in LMCache's coordinator, without a sidecar. :mod:`benchmarks.virtual_lmcache` describes the model. The
counts are the same on every machine.
"""

import statistics
from array import array
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from benchmarks.chat_users import Habits, Said, reply_of, script
from benchmarks.virtual_lmcache import CHUNK_TOKENS, NODE, TRIGGER, Found, VirtualNode, VirtualTime
from eviction_client.policy.fits import REFIT_S
from lpc_apps.lmcache.events import Event, Location, ObjectId
from lpc_apps.lmcache.loop import TICK_S
from lpc_apps.lmcache.service import Service
from lpc_apps.lmcache.settings import LMCacheSettings

WARM_UP: Final = 260
"""Warm-up turns, which do not count."""
HABITS: Final = Habits(think_s=12.0)
LEARNED_TRIGGER: Final = 0.95
"""LMCache's own watermark on our side: higher than ours by what is stored until our controller reacts."""
LEARNED_WATERMARK: Final = 0.73
"""Our watermark: on average as much memory is filled as under LMCache's own eviction."""
PREFILL_S: Final = 1.5e-4
"""Prefill time per token."""
LEAST_S: Final = 0.06
"""Least time to first token."""
REPLY_S: Final = 0.3


class Memory(NamedTuple):
    """Of a node: chunks in memory, bytes per chunk, seconds per chunk from disk."""

    chunks: int
    chunk_bytes: int
    disk_s: float


@dataclass(slots=True)
class Seen:
    """A returning turn: seconds to its first token, and where the chunks of its prompt were found."""

    ttft_s: float
    found: Found


class World:
    """Users, engine, node and, if ``learned``, our service.

    Attributes:
        turns: all turns in order; None for the first turn of a conversation.
    """

    def __init__(self, habits: Habits, seed: int, *, memory: Memory, learned: bool) -> None:
        self.time = VirtualTime()
        self.turns: list[Seen | None] = []
        self.service: Service | None = None
        self.node = VirtualNode(
            self.time,
            chunks=memory.chunks,
            chunk_bytes=memory.chunk_bytes,
            disk_s=memory.disk_s,
            trigger=LEARNED_TRIGGER if learned else TRIGGER,
            report=self._take if learned else None,
        )
        if learned:
            self.service = Service(LMCacheSettings(watermark=LEARNED_WATERMARK), clock=self.time, keys=self.node.keys)
            self.service.declare(Location("l1", NODE), memory.chunks * memory.chunk_bytes)
            self.service.declare(Location("l2", NODE), 0)
            self.time.after(TICK_S, self._tick)
            self.time.after(REFIT_S, self._refit)
        self._reply = habits.reply
        for n in range(habits.users):
            says = script(habits, seed * 10_000 + n)
            self._say(says, next(says))

    def _say(self, says: Generator[Said, str, None], said: Said) -> None:
        def speak() -> None:
            tokens = array("I", list(said.prompt.encode()))
            objects = self.node.objects(tokens)
            asked_at = self.time()

            def looked_up(found: Found) -> None:
                self.serve(said, objects, asked_at, found, lambda _: self._say(says, says.send(reply_of(self._reply))))

            self.node.look_up(objects, looked_up)

        self.time.after(said.wait_s, speak)

    def serve(
        self,
        said: Said,
        objects: list[ObjectId],
        asked_at: float,
        found: Found,
        ended: Callable[[list[ObjectId]], None],
    ) -> None:
        """Compute a request from now on.

        Args:
            objects: of its prompt; ``found``: those of them that were found.
            ended: called at the end of the reply with the objects of prompt and reply.
        """
        cached = found.memory + found.disk

        def first_token() -> None:
            self.turns.append(Seen(self.time() - asked_at, found) if said.number > 1 else None)
            self.time.after(REPLY_S, end)

        def end() -> None:
            # The generated text differs from the reply in the next prompt.
            chain = self.node.objects(list((said.prompt + "z" * self._reply).encode()))
            self.node.store(chain)
            self.node.read(objects[:cached])
            self.node.end(chain)
            ended(chain)

        self.time.after(LEAST_S + (len(said.prompt.encode()) - cached * CHUNK_TOKENS) * PREFILL_S, first_token)

    # The coordinator's part, like `lpc_apps.lmcache.loop`.

    def _take(self, event: Event) -> None:
        assert self.service is not None
        self.service.apply(event)

    def _tick(self) -> None:
        assert self.service is not None
        plan = self.service.plan()
        for conversation in plan.ask:
            self.service.answered(conversation, conversation.turns, None)
        for place, objects in plan.delete.items():
            self.service.deleting(place, objects)
            skipped = self.node.delete(objects)
            if skipped:
                self.service.skipped(place, objects, skipped)
            else:
                self.service.deleted(place, objects)
        self.time.after(TICK_S, self._tick)

    def _refit(self) -> None:
        assert self.service is not None
        for _ in self.service.refit():
            pass
        self.time.after(REFIT_S, self._refit)


def side(habits: Habits, seed: int, warm_up: int, measured: int, *, memory: Memory, learned: bool) -> dict[str, Any]:
    """Return the figures of one side for ``measured`` turns after ``warm_up`` turns."""
    return figures(World(habits, seed, memory=memory, learned=learned), warm_up, measured, memory)


def figures(world: World, warm_up: int, measured: int, memory: Memory) -> dict[str, Any]:
    """Run a world; return its figures for ``measured`` turns after ``warm_up`` turns."""
    world.time.run(lambda: len(world.turns) >= warm_up)
    loads, held, started = world.node.loads, world.node.chunk_seconds, world.time()
    world.time.run(lambda: len(world.turns) >= warm_up + measured)
    seen = [turn for turn in world.turns[warm_up:] if turn is not None]
    in_memory, on_disk, coming = (sum(getattr(turn.found, name) for turn in seen) for name in Found._fields)
    return {
        "returning_turns": len(seen),
        "ttft_mean_s": statistics.mean(turn.ttft_s for turn in seen),
        "found_in_memory": in_memory / max(in_memory + on_disk + coming, 1),
        "loaded_chunks": world.node.loads - loads,
        "mean_memory": (world.node.chunk_seconds - held) / (world.time() - started) / memory.chunks,
    }
