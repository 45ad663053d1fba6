"""What the service hands out, and what it remembers of a conversation."""

from dataclasses import dataclass, field

from lpc.lmcache.chain import ObjectId
from lpc.lmcache.events import Place
from lpc.lmcache.fetching import Fetch
from lpc.lmcache.tree import Conversation


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
