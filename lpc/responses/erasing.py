"""Deletion of what is stored: of a scope, or of what invalidation has left unfindable in a scope."""

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


class Eraser:
    """Deletes in one Redis what a store has stored there. Every method raises RedisFailed: some of it may be deleted then."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._redis = store.redis

    async def scope(self, scope: Scope) -> int:
        """Delete the entries of a scope and their vectors; return how many entries it was.

        The scope's own list says which, so that a call costs what the scope holds, however large the Redis is. What remains
        ends by itself: names, evidence and figures, which are numbers and hashes.
        """
        erased = 0
        members = await self._redis.ask(lambda client: client.zrange(layout.key(scope, "z"), 0, -1), ERASING_S)
        names = layout.entries(member.partition(b":")[0] for member in members)
        for start in range(0, len(names), AT_ONCE):
            batch = names[start : start + AT_ONCE]
            erased += await self._store.drop_all(scope, batch)
            keys = [layout.key(scope, "e", layout.text(name)) for name in batch]  # of another type: no script can drop them
            left = await self._redis.ask_each(lambda pipe: [pipe.execute_command("UNLINK", key) for key in keys], ERASING_S)  # noqa: B023
            erased += sum(one for one in left if isinstance(one, int))
        return erased

    async def unfindable(self, scope: Scope, keys: Keyring) -> int:
        """Delete the entries of a scope that no request finds any more; return how many it were.

        Those whose model, model version, tag or scope was invalidated since they were stored, and those that do not open under
        any key of this file: of what they are cannot be known. An answer that is stored in the place of one of them at this
        very moment may go with it.
        """
        members = await self._redis.ask(lambda client: client.zrange(layout.key(scope, "z"), 0, -1), ERASING_S)
        names = layout.entries(member.partition(b":")[0] for member in members)
        erased = 0
        for start in range(0, len(names), AT_ONCE):
            batch = names[start : start + AT_ONCE]
            opened = await asyncio.to_thread(_opened, await self._records(scope, batch), scope, keys)
            now = await self._generations(scope, [entry for _, entry in opened if entry is not None])
            gone = [
                name
                for name, entry in opened
                if entry is None or any(now[what] != then for what, then in self._hangs_on(scope, entry))
            ]
            erased += await self._store.drop_all(scope, gone)
        return erased

    async def _records(self, scope: Scope, names: Sequence[EntryId]) -> list[tuple[EntryId, bytes]]:
        keys = [layout.key(scope, "e", layout.text(name)) for name in names]
        found = await self._redis.ask(lambda client: client.mget(keys), ERASING_S)
        return [(name, record) for name, record in zip(names, found, strict=True) if record is not None]

    def _hangs_on(self, scope: Scope, entry: Entry) -> list[tuple[str, str]]:
        """Return the keys of the generations that an entry hangs on, and what they were."""
        stamped = zip(self._store.generation_keys(scope, entry.model, entry.version), entry.stamp, strict=True)
        return [*stamped, *((self._store.tag_key(scope, tag), then) for tag, then in entry.tags)]

    async def _generations(self, scope: Scope, found: Sequence[Entry]) -> dict[str, str]:
        keys = list({key for entry in found for key, _ in self._hangs_on(scope, entry)})
        return dict(zip(keys, await self._store.generations(keys), strict=True))


def _opened(records: Sequence[tuple[EntryId, bytes]], scope: Scope, keys: Keyring) -> list[tuple[EntryId, Entry | None]]:
    found: list[tuple[EntryId, Entry | None]] = []
    for name, record in records:
        try:
            found.append((name, entries.unseal(record, scope, name, keys)))
        except Unsealable:
            found.append((name, None))
    return found
