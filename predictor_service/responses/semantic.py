"""Another question's answer, where evidence allows it: what the cache asks of that tier, and a tier that does nothing."""

from typing import Protocol

from lpc.responses.answers import Answer
from lpc.responses.canonical import Asked, EntryId, Names, Scope
from lpc.responses.entry import Entry
from lpc.responses.scopes import ScopeSettings
from lpc.responses.store import Found
from lpc.responses.tickets import Served
from predictor_service.responses.opening import Opener
from predictor_service.responses.outcomes import Hit, InForce, Miss


class Semantic(Protocol):
    """The tier, of all scopes. Methods that ask Redis raise RedisFailed."""

    async def lookup(
        self, client: str, names: Names, asked: Asked, settings: ScopeSettings, found: Found, opener: Opener
    ) -> Hit | Miss:
        """Look for a similar question of the same partition, and decide what to do with its answer."""

    async def offer(
        self, client: str, names: Names, asked: Asked, settings: ScopeSettings, name: EntryId, entry: Entry
    ) -> Hit | Miss:
        """Decide what to do with the answer to a request of the same normalised form."""

    async def vector(self, names: Names, asked: Asked, settings: ScopeSettings, expires_at: float, generation: str) -> bytes:
        """Return the sealed vector of a question whose answer is being stored; nothing where its scope has no such tier."""

    async def label(
        self,
        client: str,
        names: Names,
        asked: Asked,
        settings: ScopeSettings,
        answer: Answer | None,
        ticket: bytes,
        same: bool | None,
    ) -> None:
        """Compare the engine's answer (None: it never came) with the candidate's, unless ``same`` is known, and learn."""

    async def complain(self, served: Served, ticket: bytes, settings: ScopeSettings, of: str) -> bool:
        """Learn that an answer which was served to the tenant ``of`` was wrong; return False where that is known already."""

    async def in_force(self, scope: Scope, settings: ScopeSettings) -> InForce:
        """Return what evidence allows in a scope now."""

    def gone(self, scope: Scope, entry: EntryId) -> None:
        """Forget an entry here at once."""


class Nothing(Semantic):
    """No semantic tier."""

    async def lookup(
        self, client: str, names: Names, asked: Asked, settings: ScopeSettings, found: Found, opener: Opener
    ) -> Hit | Miss:
        """Find nothing."""
        return Miss("cold")

    async def offer(
        self, client: str, names: Names, asked: Asked, settings: ScopeSettings, name: EntryId, entry: Entry
    ) -> Hit | Miss:
        """Serve nothing."""
        return Miss("cold")

    async def vector(self, names: Names, asked: Asked, settings: ScopeSettings, expires_at: float, generation: str) -> bytes:
        """Return nothing."""
        return b""

    async def label(
        self,
        client: str,
        names: Names,
        asked: Asked,
        settings: ScopeSettings,
        answer: Answer | None,
        ticket: bytes,
        same: bool | None,
    ) -> None:
        """Learn nothing."""

    async def complain(self, served: Served, ticket: bytes, settings: ScopeSettings, of: str) -> bool:
        """Learn nothing."""
        return True

    async def in_force(self, scope: Scope, settings: ScopeSettings) -> InForce:
        """Say that nothing is."""
        return InForce()

    def gone(self, scope: Scope, entry: EntryId) -> None:
        """Forget nothing."""
