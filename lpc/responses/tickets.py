"""What a caller is given to hand in again, opaque and proved: a flight, a candidate, an entry.

The sidecar keeps nothing of them, so that any sidecar may be handed them. They are proved under the key of the names, with the
client and the tenant that they were given to: nobody can make one, or use another client's or tenant's.
"""

import hmac
import json
from typing import Any, Final, NamedTuple, TypeVar

from lpc.responses.canonical import NAME_BYTES, EntryId, Namer, Scope
from lpc.responses.store import Stamp

_dump: Final = json.JSONEncoder(separators=(",", ":")).encode
_EXACT: Final = _dump(("exact", 1.0)).encode()
LONGEST: Final = 4096
"""Bytes of a ticket; what is longer is none."""


class Flight(NamedTuple):
    """Leave to store the answer to a request. ``token``: of the flight; ``stamp``, ``tags``: generations when it was asked."""

    scope: Scope
    entry: EntryId
    token: str
    stamp: Stamp
    tags: Stamp


class Candidate(NamedTuple):
    """An entry to compare the engine's answer with.

    ``similarity``: of the questions; ``decision``: why it was not served.
    """

    scope: Scope
    entry: EntryId
    similarity: float
    decision: str


class Served(NamedTuple):
    """An entry that was served or stored. ``source``: exact or semantic; ``similarity``: of the questions."""

    scope: Scope
    entry: EntryId
    source: str
    similarity: float


T = TypeVar("T", Flight, Candidate, Served)


class Tickets:
    """Gives and reads tickets."""

    def __init__(self, namer: Namer) -> None:
        self._namer = namer

    def give(self, client: str, tenant: str, ticket: Flight | Candidate | Served) -> bytes:
        """Return the bytes that stand for a ticket in the hands of a client's tenant."""
        scope, entry, *rest = ticket
        payload = scope + entry + _dump(rest).encode()
        return self._proof(client, tenant, type(ticket), payload) + payload

    def exact_proof(self, client: str, tenant: str, scope: Scope, entry: EntryId) -> bytes:
        """Return the proof of the ticket that an exact hit gives, which is stored with the entry."""
        return self._proof(client, tenant, Served, scope + entry + _EXACT)

    @staticmethod
    def exact(scope: Scope, entry: EntryId, proof: bytes) -> bytes:
        """Return the ticket that an exact hit gives, by its proof."""
        return b"".join((proof, scope, entry, _EXACT))

    def read(self, client: str, tenant: str, kind: type[T], data: bytes) -> T | None:
        """Return the ticket that a client hands in; None where it is none, or not one of this tenant's."""
        if len(data) > LONGEST:
            return None
        proof, payload = data[:NAME_BYTES], data[NAME_BYTES:]
        if not hmac.compare_digest(proof, self._proof(client, tenant, kind, payload)):
            return None
        rest = json.loads(payload[2 * NAME_BYTES :])
        fields: list[Any] = [tuple(value) if isinstance(value, list) else value for value in rest]
        return kind(Scope(payload[:NAME_BYTES]), EntryId(payload[NAME_BYTES : 2 * NAME_BYTES]), *fields)

    def _proof(self, client: str, tenant: str, kind: type, payload: bytes) -> bytes:
        return self._namer.proof(kind.__name__.encode(), client.encode(), tenant.encode(), payload)
