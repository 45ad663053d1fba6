"""Decryption of records for a lookup, with a check that the entry may be served."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from response_cache.keys.canonical import EntryId
from response_cache.keys.sealing import Keys, Unsealable
from response_cache.service.lookup import Lookup
from response_cache.service.metrics import CacheMetrics
from response_cache.store import entry as entries
from response_cache.store.entry import Entry
from response_cache.store.forms import form_of, in_form

T = TypeVar("T")

THREAD_FROM: Final = 32 * 2**10
"""Size in bytes from which work on a record runs in a thread, so that it does not block the event loop."""


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens records.

    Attributes:
        keys: encryption keys.
        metrics: Prometheus metrics.
        clock: returns seconds since the epoch.
    """

    keys: Keys
    metrics: CacheMetrics
    clock: Callable[[], float]

    async def open(self, lookup: Lookup, name: EntryId, record: bytes | None) -> Entry | None:
        """Return the entry of a record if the request may get it, with the answer in its form; else None."""
        if record is None:
            return None
        scope, keyring = lookup.names.scope, self.keys.current
        try:
            if len(record) < THREAD_FROM:
                entry = entries.unseal(record, scope, name, keyring)
            else:
                entry = await asyncio.to_thread(entries.unseal, record, scope, name, keyring)
        except Unsealable:
            self.metrics.unreadable.inc()
            return None
        if not lookup.owns(entry) or entry.generation != lookup.generation or entry.expires_at <= self.clock():
            return None
        answer = await offload(entry.answer.size, partial(in_form, entry.answer, form_of(lookup.request.parameters)))
        return None if answer is None else entry._replace(answer=answer)


async def offload(size: int, work: Callable[[], T]) -> T:
    """Do work on ``size`` bytes; in a thread if it is large."""
    return work() if size < THREAD_FROM else await asyncio.to_thread(work)
