"""Tickets: opaque tokens that a caller returns later, for a flight, a candidate or an entry.

Tickets are not stored, so that any sidecar accepts them. A MAC under the key of the names covers the ticket, its client and its
tenant: nobody else can create or use one.
"""

import hmac
import json
from typing import Any, Final, Literal, NamedTuple, TypeVar

from response_cache.keys.canonical import NAME_BYTES, EntryId, Namer, Scope
from response_cache.semantic.evidence import Tier

LONGEST: Final = 4096
"""Size limit of a ticket in bytes."""


class Flight(NamedTuple):
    """An open flight. ``generation`` is that of the scope at the time of the lookup."""

    scope: Scope
    entry: EntryId
    token: str
    generation: int


class Candidate(NamedTuple):
    """An entry to compare the engine's answer with.

    ``score`` is its probability; ``decision`` is why it was not served; ``tier`` found it.
    """

    scope: Scope
    entry: EntryId
    score: float
    decision: str
    tier: Tier


class Served(NamedTuple):
    """An entry that was served or stored. ``source`` is exact or the tier; ``score`` is its probability then."""

    scope: Scope
    entry: EntryId
    source: Literal["exact"] | Tier
    score: float


T = TypeVar("T", Flight, Candidate, Served)


class Tickets:
    """Creates and verifies tickets."""

    def __init__(self, namer: Namer) -> None:
        self._namer = namer

    def give(self, client: str, tenant: str, ticket: Flight | Candidate | Served) -> bytes:
        """Return a ticket's bytes for a tenant of a client."""
        scope, entry, *rest = ticket
        payload = scope + entry + json.dumps(rest).encode()
        return self._proof(client, tenant, type(ticket), payload) + payload

    def read(self, client: str, tenant: str, kind: type[T], data: bytes) -> T | None:
        """Return the ticket that a client sent; None if it is invalid or another tenant's."""
        if len(data) > LONGEST:
            return None
        proof, payload = data[:NAME_BYTES], data[NAME_BYTES:]
        if not hmac.compare_digest(proof, self._proof(client, tenant, kind, payload)):
            return None
        rest: list[Any] = json.loads(payload[2 * NAME_BYTES :])
        return kind(Scope(payload[:NAME_BYTES]), EntryId(payload[NAME_BYTES : 2 * NAME_BYTES]), *rest)

    def _proof(self, client: str, tenant: str, kind: type, payload: bytes) -> bytes:
        return self._namer.proof(kind.__name__.encode(), client.encode(), tenant.encode(), payload)
