"""Deletes the entries of a scope: all of them, or those that invalidation made unfindable.

Both functions raise RedisFailed; some entries may be deleted by then.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from lpc.responses import entry as entries
from lpc.responses import layout
from lpc.responses.canonical import EntryId, Scope
from lpc.responses.entry import Entry
from lpc.responses.sealing import Keyring, Unsealable
from lpc.responses.store import ERASING_S, Store

AT_ONCE: Final = 200


async def erase(store: Store, scope: Scope) -> int:
    """Delete the entries of a scope and their vectors; return how many entries were deleted.

    Names, evidence and counters remain until they expire. They are numbers and hashes.
    """
    erased = 0
    for batch in await _stored(store, scope):
        erased += await store.drop_all(scope, batch)
        keys = [layout.key(scope, "e", layout.text(name)) for name in batch]  # scripts cannot drop keys of another type
        left = await store.redis.ask_each(lambda pipe: [pipe.execute_command("UNLINK", key) for key in keys], ERASING_S)  # noqa: B023
        erased += sum(one for one in left if isinstance(one, int))
    return erased


async def erase_unfindable(store: Store, scope: Scope, keyring: Keyring) -> int:
    """Delete the entries of a scope that no request can find; return how many were deleted.

    These are entries whose scope, model, model version or tag was invalidated, and entries that no key of the file decrypts. A
    new entry that is stored under the same name at the same time may also be deleted.
    """

    def stamped(entry: Entry) -> list[tuple[str, str]]:
        """Return the keys of an entry's generations, and the generations at which it was stored."""
        own = zip(store.generation_keys(scope, entry.model, entry.version), entry.stamp, strict=True)
        return [*own, *((store.tag_key(scope, tag), then) for tag, then in entry.tags)]

    erased = 0
    for batch in await _stored(store, scope):
        keys = [layout.key(scope, "e", layout.text(name)) for name in batch]
        records = await store.redis.ask(lambda client: client.mget(keys), ERASING_S)  # noqa: B023
        opened = await asyncio.to_thread(_opened, list(zip(batch, records, strict=True)), scope, keyring)
        generations = list({key for _, entry in opened if entry is not None for key, _ in stamped(entry)})
        now = dict(zip(generations, await store.generations(generations), strict=True))
        gone = [name for name, entry in opened if entry is None or any(now[key] != then for key, then in stamped(entry))]
        erased += await store.drop_all(scope, gone)
    return erased


async def _stored(store: Store, scope: Scope) -> list[list[EntryId]]:
    """Return a scope's entries in batches. The cost depends on the size of the scope and not on that of Redis."""
    members = await store.redis.ask(lambda client: client.zrange(layout.key(scope, "z"), 0, -1), ERASING_S)
    names = layout.entries(member.partition(b":")[0] for member in members)
    return [names[start : start + AT_ONCE] for start in range(0, len(names), AT_ONCE)]


def _opened(records: Sequence[tuple[EntryId, bytes | None]], scope: Scope, keys: Keyring) -> list[tuple[EntryId, Entry | None]]:
    found: list[tuple[EntryId, Entry | None]] = []
    for name, record in records:
        try:
            if record is not None:
                found.append((name, entries.unseal(record, scope, name, keys)))
        except Unsealable:
            found.append((name, None))
    return found
