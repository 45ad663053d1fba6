"""In which order a tier gives up its blocks: least recently used as engines do, or by retention value at their age.

All orders are the queue that runs inside engines (`eviction_client.value_queue`). Under either rule a block is at the end when
it comes in or is loaded. A block comes into a tier when a nearer one gives it up, minutes after the request that used it: its
age counts from that use.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from eviction_client.curve import value_at
from eviction_client.ghost import Ghosts
from eviction_client.queue import Block
from eviction_client.value_queue import DONE, GOES_ON, ValueQueue
from lpc.simulator.policies.value import every_block
from lpc.simulator.reuse_classes import ReuseClasses
from lpc.simulator.workload import Turn

STAY_FOLLOWS: Final = 0.01
"""Share by which the mean stay follows each eviction."""


class Values:
    """Reuse classes of blocks, for one tier, with a guard of its own: the value has to earn its place here, too.

    Args:
        classes: those of the engine.
        room: blocks of this tier and of those before it together. That decides whether a block is still anywhere up to here,
            so it is the size of the ghost caches.
        guard: the value orders only while the ghost caches show that it pays; else always.

    Attributes:
        enabled: the value orders.
        now: seconds of the workload.
    """

    def __init__(self, classes: ReuseClasses, room: int, *, guard: bool) -> None:
        self.classes = classes
        self.enabled = not guard
        self.now = 0.0
        self._guard = guard
        self._ghosts: Ghosts[int] = Ghosts(room, classes.classes, every_block, clock=lambda: self.now)
        self._fitted = classes.tables
        self._known: dict[int, tuple[int, float]] = {}
        """Reuse class and last use of all blocks ever used."""

    @property
    def price(self) -> float:
        """Retention value of what has to go, uses per second of room; 0: nothing has gone yet."""
        return self._ghosts.price

    def note(self, now: float) -> None:
        """Take in the request whose end the classes have seen last."""
        self.now, classes = now, self.classes
        if self._fitted is not classes.tables:
            self._fitted = classes.tables
            self._ghosts.set_tables(classes.tables)
        for start, end, number in classes.runs:
            for segment in classes.path[start:end]:
                self._known.update(dict.fromkeys(segment.contents, (number, now)))
        every = self._ghosts.every
        enabled = self._ghosts.observe(classes.sample(classes.prompt, every), classes.freed(every))
        if self._guard:
            self.enabled = enabled

    def place(self, content: int) -> tuple[int, float]:
        """Return a block's reuse class and last use."""
        return self._known.get(content, (0, self.now))

    def value(self, content: int, now: float) -> float:
        """Return a block's retention value, uses per second."""
        tables = self.classes.tables
        if tables is None or content not in self._known:
            return 0.0
        number, used = self._known[content]
        return value_at(tables[number], max(now - used, 0.0))


class _Held(Block):
    """A block of the tier, named by its content id.

    Attributes:
        reuse_class, used: when it came in or was loaded last.
        came: when that was.
    """

    __slots__ = ("came", "reuse_class", "used")

    def __init__(self, content: int) -> None:
        super().__init__(content)
        self.reuse_class = 0
        self.came = self.used = 0.0


class Order:
    """Least recently used, as vLLM's CPU tier and LMCache do. Blocks by content id; times are seconds of the workload."""

    def __init__(self, classes: int = 1) -> None:
        self._now = 0.0
        self._held: dict[int, _Held] = {}
        self._stay = math.inf
        self.queue: ValueQueue[_Held] = ValueQueue(_Held(-1), _Held(-1), classes, clock=lambda: self._now)

    @property
    def stay(self) -> float:
        """Seconds that a block stays which comes in now and is not used: as long as others have stayed."""
        return self._stay

    def note(self, turn: Turn) -> None:
        """Learn that a request has ended. Copies of its blocks stay where they lie: the cache has them, too."""

    def place(self, content: int) -> tuple[int, float]:
        """Return reuse class and last use of a block that comes in."""
        del content
        return 0, self._now

    def enter(self, contents: Iterable[int], now: float, *, soon: bool = False) -> None:
        """Take blocks in that are not here. ``soon``: they are needed within seconds."""
        blocks = [_Held(content) for content in contents]
        self._held.update((block.block_id, block) for block in blocks)
        self._insert(blocks, now, soon=soon)

    def touch(self, contents: Iterable[int], now: float) -> None:
        """Learn that blocks that are here were loaded, or stored again."""
        blocks = [self._held[content] for content in contents]
        for block in blocks:
            self.queue.remove(block)
        self._insert(blocks, now)

    def leave(self, contents: Iterable[int]) -> None:
        """Let go of blocks that are here."""
        for content in contents:
            self.queue.remove(self._held.pop(content))

    def evict(self, count: int, now: float) -> list[int]:
        """Give up blocks."""
        self._now = now
        self.queue.renew()
        gone = self.queue.popleft_n(count)
        for block in gone:
            stayed = now - block.came
            self._stay = stayed if self._stay == math.inf else self._stay + STAY_FOLLOWS * (stayed - self._stay)
            del self._held[block.block_id]
        return [block.block_id for block in gone]

    def _insert(self, blocks: Sequence[_Held], now: float, *, soon: bool = False) -> None:
        self._now = now
        for block in blocks:
            block.reuse_class, block.used = (GOES_ON, now) if soon else self.place(block.block_id)
            block.came = now
        for used, chain in groupby(blocks, key=attrgetter("used")):
            parts = groupby(chain, key=attrgetter("reuse_class"))
            self.queue.insert_chain([(list(part), number) for number, part in parts], used)


class ByValue(Order):
    """By retention value while the guard allows it; else least recently used.

    Blocks of a class come in only about in the order of their last use, so a block between the two ends of its class may be
    evicted a little late.
    """

    def __init__(self, values: Values) -> None:
        super().__init__(values.classes.classes)
        self.values = values
        self._follow()

    @property
    def stay(self) -> float:
        """While the value orders, until its value is the lowest."""
        return math.inf if self.queue.value_enabled else super().stay

    def note(self, turn: Turn) -> None:
        """Follow the guard."""
        del turn
        self._follow()

    def place(self, content: int) -> tuple[int, float]:
        """As the request that used the block last."""
        return self.values.place(content)

    def _follow(self) -> None:
        self.queue.value_enabled = self.values.enabled
        if self.queue.tables is not self.values.classes.tables:
            self.queue.set_tables(self.values.classes.tables)


class Knowing(Order):
    """Knows whether a conversation goes on, not when: a bound. Blocks that no conversation will use again go first."""

    def __init__(self) -> None:
        super().__init__()
        self._awaited: dict[int, set[str]] = {}
        """Conversations that go on, by block."""

    def note(self, turn: Turn) -> None:
        """Note whether the conversation goes on."""
        for content in turn.all_contents:
            awaited = self._awaited.setdefault(content, set())
            if turn.next is None:
                awaited.discard(turn.conversation)
            else:
                awaited.add(turn.conversation)

    def place(self, content: int) -> tuple[int, float]:
        """Return a class that goes first if all conversations have ended."""
        return 0 if self._awaited.get(content) else DONE, self._now
