"""A request that has ended, as the plug-in leaves it to queues, tiers and the background."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eviction_client.stores.base import BlockHash


class Run(NamedTuple):
    """Blocks of a chain with one reuse class: from the end of the run before, up to and without depth ``end``."""

    end: int
    reuse_class: int


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """A request that has ended.

    Attributes:
        session: names its conversation in all engines; None: unknown.
        blocks: hashes of its chain from the start, as far as computed.
        prompt_blocks: how many of these its prompt filled.
        at: seconds since the epoch.
        first_class: reuse class of blocks that were used for the first time; see `eviction_client.reuse.first_class`.
        runs: the reuse classes of its blocks, from the chain's start; empty without blocks.
        retain_s: seconds for which a hint retains all of them; 0: no hint.
        token_ids: of its prompt; empty: unknown.
        salt: which keeps tenants apart.
    """

    request_id: Hashable
    session: str | None
    blocks: Sequence[BlockHash]
    prompt_blocks: int
    at: float
    first_class: int
    runs: Sequence[Run]
    retain_s: float = 0.0
    token_ids: Sequence[int] = ()
    salt: str = ""
