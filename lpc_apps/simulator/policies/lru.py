"""LRU, the default of engines."""

from collections import OrderedDict
from collections.abc import Sequence

from lpc_apps.simulator.blocks import Piece
from lpc_apps.simulator.policy import EvictionPolicy, PolicySettings, register
from lpc_apps.simulator.workload import Turn, Workload


@register
class LruPolicy(EvictionPolicy[Piece]):
    """Least recently used."""

    name = "lru"
    title = "LRU, as engines do today"
    rule = "the block whose last use ended longest ago, a chain tail first"
    source = "vLLM's FreeKVCacheBlockQueue"
    piece_type = Piece

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._pieces: OrderedDict[int, Piece] = OrderedDict()

    def free(self, pieces: Sequence[Piece], turn: Turn, now: float) -> None:
        """Append the pieces."""
        self._pieces.update((piece.block_id, piece) for piece in pieces)

    def touch(self, piece: Piece, now: float) -> None:
        """Remove the piece."""
        del self._pieces[piece.block_id]

    def first(self, now: float) -> Piece:
        """Return the least recently used piece."""
        return next(iter(self._pieces.values()))
