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
from lpc.simulator.blocks import CachedBlock
from lpc.simulator.policy import Policy, PolicySettings, register
from lpc.simulator.sidecar import EPOCH_S, Sidecar
from lpc.simulator.turn_end import ended
from lpc.simulator.workload import Turn, Workload


class PluginBlock(CachedBlock):
    """A block with a key.

    Attributes:
        owner, key: by the client's law of pooling, `eviction_client.stores.base.pooled`; seconds since the epoch.
    """

    __slots__ = ("key", "owner")

    def __init__(self, content: int, depth: int) -> None:
        super().__init__(content, depth)
        self.owner: str | None = None
        self.key = 0.0


@register
class Plugin(Policy[PluginBlock]):
    """The plug-in."""

    name = "plugin"
    rule = "the smallest t + credit, or t alone while that hits more; maximum over the conversations that share a block"
    source = "this project: eviction_client, fed by lpc/model/returns, which learns from the first request on"
    uses_predictor = True

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self.block_type = self._block
        self._now = EPOCH_S
        self.scorer = Scorer(
            # Not by its constructor, which would read the environment.
            ClientSettings.model_construct(guard=settings.guard, pooling="shared"),
            capacity=capacity,
            predictor=Sidecar(workload, invert=settings.invert),
            clock=self._clock,
            background=AtOnce,
        )
        self.queue: CreditQueue[PluginBlock] = CreditQueue(
            PluginBlock(-1, 0), PluginBlock(-1, 0), lifetime=self.scorer.lifetime, clock=self._clock
        )
        self.queue.trusting = self.scorer.trusting
        self._keys = Keys(self._now, self._now)
        self._numbers: list[int] = []
        self._blocks = 0

    def _block(self, content: int, depth: int) -> PluginBlock:
        """Return a block numbered as an engine numbers its blocks: from 0, anew when one is evicted."""
        block = PluginBlock(content, depth)
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

    def finish(self, contents: Sequence[int], turn: Turn, now: float) -> None:
        """Get the request's keys; follow the guard."""
        self._now = EPOCH_S + now
        self._keys = ended(self.scorer, self.queue, turn, contents)

    def free(self, blocks: Sequence[PluginBlock], turn: Turn, now: float) -> None:
        """Put blocks into the queue, under both keys."""
        t_last, key, _ = self._keys
        for block in blocks:
            block.owner, block.key = pooled(block.owner, block.key, turn.conversation, key)
        for value, run in groupby(blocks, key=_key):
            self.queue.insert_keyed(tuple(run), Keys(t_last, value))

    def touch(self, block: PluginBlock, now: float) -> None:
        """Take the block out of the queue."""
        self.queue.remove(block)

    def evict(self, count: int, now: float) -> list[PluginBlock]:
        """Give up the smallest keys of the rule in force."""
        self._now = EPOCH_S + now
        gone = self.queue.popleft_n(count)
        self._numbers += [block.block_id for block in gone]
        return gone

    def _clock(self) -> float:
        return self._now


def _key(block: PluginBlock) -> float:
    return block.key
