"""What the service hands out, and what it remembers of a conversation."""

from dataclasses import dataclass, field

from eviction_client import Prediction
from lpc.lmcache.chain import ObjectId
from lpc.lmcache.events import Place
from lpc.lmcache.fetching import Fetch
from lpc.lmcache.tree import Conversation
from lpc.model.returns.hazards import Floats


@dataclass(slots=True)
class State:
    """What is thought of a conversation.

    Attributes:
        turn: which one the following is about.
        asked_at: when the sidecar was asked.
        prediction: its answer.
        curve: [ages] from the turn's arrival on; None where not known.
        index: [ages] `lpc.model.returns.due.log_gittins` of it.
        learnt: the turn was taken into the return model.
        vain: the turn for which a fetch has found nothing.
    """

    turn: int = 0
    asked_at: float = 0.0
    prediction: Prediction | None = None
    curve: Floats | None = None
    index: Floats | None = None
    learnt: bool = True
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
