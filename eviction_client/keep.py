"""Keep: what waiting requests will hit is evicted last, that of the first to come the very last. The same in every engine.

Only the :data:`KEPT_REQUESTS` that came first count. A request needs the prefix that is cached when it begins to count, before
a step of the scheduler. One that waits alone counts only if a step has passed it over, so that nothing is done for an engine
that serves at once. What a request has lost meanwhile is known when it starts: a dry run counts what keeping would save.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from eviction_client.plugin import Plugin
from eviction_client.stores.base import BlockHash
from eviction_client.waits import KEPT_REQUESTS, Waited, Waits

BLOCKS_PER_STEP: Final = 1024
"""Blocks that are looked up before one step, after which the other requests have to wait for the next one."""

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


class Keeper(Protocol):
    """What keeps blocks, as :class:`eviction_client.value_queue.ValueQueue` does."""

    def wait(self, request: Hashable, blocks: Iterable[Any]) -> None:
        """Keep blocks that a request will hit that waits from now on."""

    def served(self, request: Hashable) -> None:
        """Note that a request does not wait any more."""


class Found(NamedTuple):
    """What a request needs.

    Attributes:
        cached: tokens of its prompt that are cached.
        tokens: of its prompt.
        prompt: hashes of the prompt's full blocks.
        needs: what keeps blocks, and these; nothing in a dry run.
    """

    cached: int
    tokens: int
    prompt: Sequence[BlockHash]
    needs: Sequence[tuple[Keeper, Sequence[Any]]]


class Lookup(Protocol[R_contra]):
    """How an engine finds what is cached of a request."""

    def find(self, request: R_contra, budget: int) -> tuple[int, Found | None]:
        """Return the blocks looked up, at least one and about ``budget`` at most, and what the request needs.

        None: it takes more than that. The next call goes on.
        """

    def prompt(self, request: R_contra) -> Sequence[BlockHash]:
        """Return the hashes of the full blocks of a prompt that the engine has just begun."""


class Keep(Generic[R]):
    """The waiting requests of one scheduler.

    Args:
        enabled: else no request counts, and all that is done is to show prompts to the plug-in as they start.

    Attributes:
        waited: those that have waited.
        counted: those that count.
        beyond: those that do not, in the order in which they came.
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
        """Take in a request that waits from now on."""
        self.beyond[request_id] = request

    def before_step(self) -> None:
        """Let the requests that came first count, unless there is only one and it may be served at once."""
        waits, beyond = self.counted, self.beyond
        if (
            not beyond
            or not self._enabled
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
        """Note which requests a step has begun, and how many tokens of their prompts were cached. Others may be among them."""
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
        """Let go of a request that waits no more; nothing if it did not."""
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
