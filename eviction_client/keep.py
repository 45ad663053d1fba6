"""Keeps the cached prefixes of waiting requests: they are evicted last, that of the oldest request last of all.

Only the :data:`KEPT_REQUESTS` oldest waiting requests count. A request counts from a step of the scheduler on, with the prefix
that is cached then. A request that waits alone counts only after a step has passed it over, so that nothing is done for an
engine that serves at once. When a request starts, its lost tokens are counted: in a dry run, those that keeping would save.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from eviction_client.plugin import Plugin
from eviction_client.stores.base import BlockHash
from eviction_client.waits import KEPT_REQUESTS, Waited, Waits

BLOCKS_PER_STEP: Final = 1024
"""Blocks looked up before one step; the remaining requests are looked up before later steps."""

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


class Keeper(Protocol):
    """Keeps blocks, like :class:`eviction_client.value_queue.ValueQueue`."""

    def wait(self, request: Hashable, blocks: Iterable[Any]) -> None:
        """Keep the blocks that a waiting request will hit."""

    def served(self, request: Hashable) -> None:
        """Stop keeping blocks for a request."""


class Found(NamedTuple):
    """The cached prefix of a waiting request.

    Attributes:
        cached: cached tokens of its prompt.
        tokens: tokens of its prompt.
        prompt: hashes of the prompt's full blocks.
        needs: keepers, each with its cached blocks; empty in a dry run.
    """

    cached: int
    tokens: int
    prompt: Sequence[BlockHash]
    needs: Sequence[tuple[Keeper, Sequence[Any]]]


class Lookup(Protocol[R_contra]):
    """Finds the cached prefix of a request in an engine."""

    def find(self, request: R_contra, budget: int) -> tuple[int, Found | None]:
        """Return the number of blocks looked up, at least one and about ``budget`` at most, and the cached prefix.

        If the budget does not suffice, the prefix is None, and the next call continues.
        """

    def prompt(self, request: R_contra) -> Sequence[BlockHash]:
        """Return the hashes of a prompt's full blocks. The engine has just started the request."""


class Keep(Generic[R]):
    """The waiting requests of one scheduler.

    Args:
        enabled: whether requests count; if not, prompts are only passed to the plug-in when they start.

    Attributes:
        waited: statistics of the requests that have waited.
        counted: the requests that count.
        beyond: the other waiting requests, oldest first.
    """

    def __init__(self, plugin: Plugin, lookup: Lookup[R], *, enabled: bool) -> None:
        self.waited = Waited()
        self.counted: dict[str, tuple[Waits, Found]] = {}
        self.beyond: dict[str, R] = {}
        self._plugin = plugin
        self._lookup = lookup
        self._enabled = enabled
        self._passed_over = False

    @property
    def waiting(self) -> bool:
        """Whether any request waits."""
        return bool(self.beyond or self.counted)

    def join(self, request_id: str, request: R) -> None:
        """Add a request that starts to wait."""
        self.beyond[request_id] = request

    def before_step(self) -> None:
        """Look up and count the oldest waiting requests, unless there is only one and it may be served at once."""
        waits, beyond = self.counted, self.beyond
        if (
            not beyond
            or not self._enabled
            or self._plugin.lru_forced
            or len(waits) >= KEPT_REQUESTS
            or (len(waits) + len(beyond) == 1 and not self._passed_over)
        ):
            return
        budget = BLOCKS_PER_STEP
        while beyond and budget > 0 and len(waits) < KEPT_REQUESTS:
            request_id, request = next(iter(beyond.items()))
            try:
                looked_up, found = self._lookup.find(request, budget)
            except Exception:
                del beyond[request_id]
                raise
            budget -= looked_up
            if found is None:
                return
            del beyond[request_id]
            self._count(request_id, found)

    def started(self, requests: Iterable[tuple[str, int]]) -> None:
        """Record the requests that a step has started, with the cached tokens of their prompts. Ignores unknown requests."""
        for request_id, cached in requests:
            request = self.beyond.pop(request_id, None)
            if request is not None:
                self._plugin.started(request_id, self._lookup.prompt(request), cached=cached)
            elif (waits := self.counted.get(request_id)) is not None:
                self.waited.served(waits[0], cached)
                self._plugin.served(request_id, cached)
                self.leave(request_id)
        self._passed_over = self.waiting

    def leave(self, request_id: str) -> None:
        """Remove a request if it waits."""
        counted = self.counted.pop(request_id, None)
        if counted is None:
            self.beyond.pop(request_id, None)
            return
        for keeper, _ in counted[1].needs:
            keeper.served(request_id)

    def _count(self, request_id: str, found: Found) -> None:
        self.counted[request_id] = Waits(found.cached, found.tokens, self.waited.requests["cold"]), found
        for keeper, blocks in found.needs:
            keeper.wait(request_id, blocks)
        self._plugin.started(request_id, found.prompt, kept=True)
