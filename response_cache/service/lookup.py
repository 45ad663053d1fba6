"""The record of a request at the response caches, from the question to its answer."""

from dataclasses import dataclass

from response_cache.keys.canonical import CacheRequest, Names
from response_cache.store.entry import Entry
from response_cache.store.scopes import ScopeSettings


@dataclass(slots=True)
class Lookup:
    """A client's request on its way through the tiers, and again when its answer is stored.

    Attributes:
        client: authenticated name of the client.
        request: the request.
        settings: settings of its scope.
        names: names in the store, with partition and normal form once a tier needs them.
        about_now: whether the answer is valid for a short time only.
        generation: generation of the scope, as Redis has it; 0 before it was read.
    """

    client: str
    request: CacheRequest
    settings: ScopeSettings
    names: Names
    about_now: bool
    generation: int = 0

    def owns(self, entry: Entry) -> bool:
        """Return whether an entry belongs to the request's client, scope and tenant."""
        return entry.belongs_to(self.client, self.request.scope, self.request.tenant)
