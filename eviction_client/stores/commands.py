"""What is said to Redis: the question for scores, the scripts that change them, and a probe of whether all of it is allowed.

``client`` is always one of :class:`lpc.wire.redis_connection.Connection`. Everything here raises what redis-py raises.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from eviction_client.stores.base import BlockHash
from eviction_client.stores.layout import MEMBER_BYTES, RECORD_SCRIPT, TRIM_SCRIPT, UNIT, Layout, floor, members
from lpc.wire.redis_connection import evaluate, pipeline

TRIM_CHUNK: Final = 4096
"""Most blocks that one script removes: Redis serves nobody else while it runs (about 1 ms per 1,000 blocks)."""


def look_up(
    client: Any, layout: Layout, blocks: Sequence[BlockHash], refused: Callable[[Exception], object], *, shared: bool = False
) -> list[float | None]:
    """Return the score of each block; None: it is unknown, or, with ``shared``, only one conversation holds it.

    A shard that Redis refuses to read (its key holds another type) does not keep the others' scores back.

    Args:
        refused: called with the error of each such shard.

    Raises:
        TypeError: ``blocks`` are not hashes.
    """
    names = members(blocks)
    asked = [(shard, indices) for shard, indices in enumerate(layout.by_shard(blocks)) if indices]
    found: list[float | None] = [None] * len(blocks)
    if not asked:
        return found
    commands = pipeline(client)
    for shard, indices in asked:
        commands.execute_command("ZMSCORE", layout.scores_key(shard), *(names[i] for i in indices))
    for (_, indices), stored in zip(asked, commands.execute(raise_on_error=False), strict=True):
        if isinstance(stored, Exception):
            refused(stored)
            continue
        for i, value in zip(indices, stored, strict=True):
            if value is not None:
                stored = float(value)
                score = floor(stored)
                found[i] = score if not shared or score == stored else None
    return found


def trim(client: Any, layout: Layout, shards: Sequence[int], threshold: float) -> tuple[int, list[int]]:
    """Remove at most TRIM_CHUNK blocks below ``threshold`` from each shard; return how many, and which may hold more."""
    removed = evaluate(client, TRIM_SCRIPT, [(1, layout.scores_key(shard), threshold, TRIM_CHUNK) for shard in shards])
    return sum(removed), [shard for shard, count in zip(shards, removed, strict=True) if count == TRIM_CHUNK]


def probe(client: Any, layout: Layout) -> None:
    """Do once what a store does, on keys of its own that live for a second."""
    own = replace(layout, namespace=f"{layout.namespace}:check", shards=1)
    key = own.scores_key(0)
    client.execute_command("ZMSCORE", key, "x")
    record = (1, 1000, 1000, UNIT, MEMBER_BYTES, 0.0, 0.0, b"\0" * MEMBER_BYTES)
    client.execute_command("EVAL", RECORD_SCRIPT, 2, key, own.batch_key(0), *record)
    client.execute_command("EVAL", TRIM_SCRIPT, 1, key, "inf", 1)
