"""T-LRU: a service level for the time to the first token."""

import math
from collections.abc import Sequence
from typing import Final

from lpc_apps.simulator.blocks import Piece
from lpc_apps.simulator.policy import KeyedPolicy, PolicySettings, register
from lpc_apps.simulator.workload import Turn, Workload


class NeededPiece(Piece):
    """Blocks with the largest need of their conversations, in tokens from the prefix's start."""

    need = 0.0


@register
class TailLru(KeyedPolicy[NeededPiece]):
    """T-LRU: first evicts blocks that a conversation does not need to hold its next turn's TTFT threshold, then LRU.

    The conversation needs its first max(0, L + Q - X) tokens: L tokens of history including the reply, Q expected tokens of the
    next prompt, X tokens that the engine can compute within the threshold. L is the whole history, not its cached part, or each
    eviction would release the next block. The largest need of all requests that used a block counts. Q is the mean growth of
    prompts so far. A need is calculated when a block is freed.
    """

    name = "tlru"
    rule = "the least recently used block not needed to hold the next turn's TTFT, then the least recently used"
    source = "Zhang et al., Tail-optimized caching for LLM inference, arXiv 2510.15152 (NeurIPS 2025)"
    piece_type = NeededPiece

    THRESHOLD_S: Final = 0.2  # seconds to the first token, the paper's service level

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._computable = self.THRESHOLD_S * settings.cost.prefill_tokens_s  # tokens
        self._history: dict[str, int] = {}  # conversation -> tokens after its last turn
        self._growth = 0
        self._turns = 0
        self._need = 0.0

    def finish(self, turn: Turn, now: float) -> None:
        """Calculate the need of the conversation's next turn."""
        before = self._history.get(turn.conversation)
        if before is not None:
            self._growth += max(0, turn.input_tokens - before)
            self._turns += 1
        history = self._history[turn.conversation] = turn.input_tokens + turn.output_tokens
        expected = self._growth / self._turns if self._turns else 0.0
        self._need = max(0.0, history + expected - self._computable)

    def free(self, pieces: Sequence[NeededPiece], turn: Turn, now: float) -> None:
        """Split a piece where the need ends."""
        tokens = self.workload.block_tokens
        cut: list[NeededPiece] = []
        for piece in pieces:
            piece.need = max(piece.need, self._need)
            needed = math.ceil(piece.need / tokens) - piece.depth
            if 0 < needed < piece.size:
                cut.append(piece.split(needed))
            cut.append(piece)
        super().free(cut, turn, now)

    def key(self, piece: NeededPiece, turn: Turn, now: float) -> float:
        """Return 0 for blocks beyond every need, else 1."""
        return 0.0 if piece.depth * self.workload.block_tokens >= piece.need else 1.0
