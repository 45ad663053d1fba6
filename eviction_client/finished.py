"""A request that has ended, as the scorer leaves it to be learnt from."""

from collections.abc import Sequence
from dataclasses import dataclass

from eviction_client.credit import NOTHING_ABOVE, Above, CreditTable
from eviction_client.hints import NOTHING, Asked
from eviction_client.score import Keys
from eviction_client.stores.base import BlockHash


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """A request that has ended.

    Attributes:
        session: names its conversation in all engines; None where nobody said.
        blocks: hashes of its chain from the start, as far as computed.
        prompt_blocks: how many of these its prompt filled.
        ended: seconds since the epoch.
        keys: of its blocks, without its hints.
        table: its credit; None where there is no prediction, or where it counts for nothing.
        awaited: its prediction may still come.
        asked: what its hints ask for.
    """

    session: str | None
    blocks: Sequence[BlockHash]
    prompt_blocks: int
    ended: float
    keys: Keys
    table: CreditTable | None
    awaited: bool = False
    asked: Asked = NOTHING

    def keys_at(self, lifetime: float, table: CreditTable | None, above: Above = NOTHING_ABOVE) -> Keys:
        """Return its keys in a cache of this lifetime (seconds), with this credit. ``above``: where it is a tier."""
        if table is None:
            return self.keys
        t_last = self.keys.t_last
        return Keys(t_last, t_last + table.below(lifetime, above))
