"""What the plug-in does inside an engine: its scorer, its queue and its guard, asking a sidecar that learns while it serves.

Only what stands around them is the simulator's. Simplifications: the scorer's rounds run at once, not in the background; the
re-sorting that follows a switch of rules ends before anything else happens (in an engine some steps later); and what other
conversations think of a shared block is known as it is freed, not only when it comes near its eviction.
"""

from collections.abc import Sequence
from itertools import groupby

from eviction_client.background import AtOnce
from eviction_client.credit_queue import CreditQueue
from eviction_client.score import Keys
from eviction_client.scorer import Scorer
from eviction_client.settings import ClientSettings
from eviction_client.stores.base import pooled
from lpc.simulator.blocks import EDGE, Piece
from lpc.simulator.policy import Chunk, Policy, PolicySettings, register
from lpc.simulator.segments import Segment
from lpc.simulator.sidecar import EPOCH_S, Sidecar
from lpc.simulator.turn_end import ended
from lpc.simulator.workload import Turn, Workload


class PluginPiece(Piece):
    """A block with a key.

    Attributes:
        owner, key: by the client's law of pooling, `eviction_client.stores.base.pooled`; seconds since the epoch.
    """

    __slots__ = ("key", "owner")

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        super().__init__(segment, start, size)
        self.owner: str | None = None
        self.key = 0.0


@register
class Plugin(Policy[PluginPiece]):
    """The plug-in."""

    name = "plugin"
    rule = "the smallest t + credit, or t alone while that hits more; maximum over the conversations that share a block"
    source = "this project: eviction_client, fed by lpc/model/returns, which learns from the first request on"
    uses_predictor = True
    blockwise = True  # its queue counts what it evicts

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self.piece_type = self._block
        self._now = EPOCH_S
        self.scorer = Scorer(
            # Not by its constructor, which would read the environment.
            ClientSettings.model_construct(guard=settings.guard, pooling="shared"),
            capacity=capacity,
            predictor=Sidecar(workload, invert=settings.invert),
            clock=self._clock,
            background=AtOnce,
        )
        self.queue: CreditQueue[PluginPiece] = CreditQueue(
            PluginPiece(EDGE, 0, 0), PluginPiece(EDGE, 0, 0), lifetime=self.scorer.lifetime, clock=self._clock
        )
        self.queue.trusting = self.scorer.trusting
        self._keys = Keys(self._now, self._now)
        self._numbers: list[int] = []
        self._blocks = 0

    def _block(self, segment: Segment, start: int, size: int) -> PluginPiece:
        """Return a block numbered as an engine numbers its blocks: from 0, anew when one is evicted."""
        block = PluginPiece(segment, start, size)
        if self._numbers:
            block.block_id = self._numbers.pop()
        else:
            block.block_id = self._blocks
            self._blocks += 1
        return block

    def arrive(self, turn: Turn, now: float) -> None:
        """Ask the sidecar."""
        self._now = EPOCH_S + now
        self.scorer.admitted(turn, (), session=turn.conversation, category=turn.category)

    def finish(self, turn: Turn, now: float) -> None:
        """Get the request's keys; follow the guard."""
        self._now = EPOCH_S + now
        self._keys = ended(self.scorer, self.queue, turn, turn.all_contents)

    def free(self, pieces: Sequence[PluginPiece], turn: Turn, now: float) -> None:
        """Put blocks into the queue, under both keys."""
        t_last, key, _ = self._keys
        for block in pieces:
            block.owner, block.key = pooled(block.owner, block.key, turn.conversation, key)
        for value, run in groupby(pieces, key=_key):
            self.queue.insert_keyed(tuple(run), Keys(t_last, value))

    def touch(self, piece: PluginPiece, now: float) -> None:
        """Take the block out of the queue."""
        self.queue.remove(piece)

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Give up the smallest keys of the rule in force."""
        self._now = EPOCH_S + now
        gone = self.queue.popleft_n(count)
        chunks = [block.give_up(1) for block in gone]
        self._numbers += [block.block_id for block in gone if not block.size]
        return chunks

    def _clock(self) -> float:
        return self._now


def _key(block: PluginPiece) -> float:
    return block.key
