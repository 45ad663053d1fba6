"""The end of a turn as the plug-in sees it, for every simulated cache that has its scorer and its queue."""

from collections.abc import Sequence
from typing import Final

from eviction_client.credit_queue import CreditQueue
from eviction_client.queue import B
from eviction_client.score import Keys
from eviction_client.scorer import Scorer
from eviction_client.stores.base import BlockHash
from lpc.simulator.sidecar import block_hash
from lpc.simulator.workload import Turn

RESORTED_AT_ONCE: Final = 4096
"""Blocks per call; the calls follow one another until all are in order."""


def ended(scorer: Scorer, queue: CreditQueue[B], turn: Turn, contents: Sequence[int]) -> Keys:
    """Return what the scorer says of a turn's blocks, and put the queue into the order of its guard.

    Args:
        contents: of the blocks that the turn leaves, prompt and reply, from the first on.
    """
    finished = scorer.finished(
        turn,
        completed=True,
        blocks=[BlockHash(block_hash(content)) for content in contents],
        prompt_blocks=len(turn.contents),
        session=turn.conversation,
    )
    assert not scorer.failures, "the scorer caught an exception"
    queue.trusting = scorer.trusting
    while queue.resort(RESORTED_AT_ONCE):
        pass
    return finished.keys
