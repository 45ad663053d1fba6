"""Decryption of records for a request, with a check that the entry may be served."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from response_cache.keys.canonical import EntryId, Request, Scope
from response_cache.keys.sealing import Keys, Unsealable
from response_cache.service.metrics import CacheMetrics
from response_cache.store import entry as entries
from response_cache.store.entry import Entry
from response_cache.store.forms import form_of, in_form

T = TypeVar("T")

THREAD_FROM: Final = 32 * 2**10
"""Size in bytes from which work on a record runs in a thread, so that it does not block the event loop."""


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens records for one request.

    Attributes:
        keys: encryption keys.
        metrics: Prometheus metrics.
        clock: returns seconds since the epoch.
        client: authenticated name of the client.
        request: its request.
        generation: current generation of the scope.
    """

    keys: Keys
    metrics: CacheMetrics
    clock: Callable[[], float]
    client: str
    request: Request
    generation: int

    async def open(self, scope: Scope, name: EntryId, record: bytes | None) -> Entry | None:
        """Return the entry of a record if this request may get it, with the answer in its form; else None."""
        if record is None:
            return None
        keyring = self.keys.current
        try:
            if len(record) < THREAD_FROM:
                entry = entries.unseal(record, scope, name, keyring)
            else:
                entry = await asyncio.to_thread(entries.unseal, record, scope, name, keyring)
        except Unsealable:
            self.metrics.unreadable.inc()
            return None
        now, request = self.clock(), self.request
        if not entry.belongs_to(self.client, request.scope, request.tenant):
            return None
        if entry.generation != self.generation or entry.expires_at <= now:
            return None
        answer = await offload(entry.answer.size, partial(in_form, entry.answer, form_of(request.parameters)))
        return None if answer is None else entry._replace(answer=answer)


async def offload(size: int, work: Callable[[], T]) -> T:
    """Do work on ``size`` bytes; in a thread if it is large."""
    return work() if size < THREAD_FROM else await asyncio.to_thread(work)
