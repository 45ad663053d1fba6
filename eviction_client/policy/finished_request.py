"""A finished request, as the plug-in passes it to queues, tiers and the background."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eviction_client.stores.base import BlockHash


class ClassSpan(NamedTuple):
    """Consecutive blocks of a chain with one reuse class: from the previous run's end up to, without, depth ``end``."""

    end: int
    reuse_class: int


@dataclass(frozen=True, slots=True, eq=False)
class FinishedRequest:
    """A finished request.

    Attributes:
        session: digest of its conversation's name, the same in all engines; None: unknown.
        blocks: hashes of the computed blocks of its chain, from the start.
        prompt_blocks: number of these blocks that its prompt filled.
        at: time of the end, seconds since the epoch.
        first_class: reuse class of blocks used for the first time; see `eviction_client.policy.reuse_monitor.first_class`.
        runs: the reuse classes of its blocks, from the chain's start; empty without blocks.
        retain_s: seconds for which a hint retains all its blocks; 0: no hint.
        prompt_tokens: of its prompt; 0: unknown.
        opening: hash of the tokens of its first block.
        tenant: digest of its cache salt; empty without one.
    """

    request_id: Hashable
    session: str | None
    blocks: Sequence[BlockHash]
    prompt_blocks: int
    at: float
    first_class: int
    runs: Sequence[ClassSpan]
    retain_s: float = 0.0
    prompt_tokens: int = 0
    opening: int = 0
    tenant: str = ""
