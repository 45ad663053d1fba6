"""Pools what the engines of a fleet have seen of shared blocks, through a store: the claims of conversations on them.

A claim is a continuation probability, and when the conversation last used the block (:mod:`eviction_client.stores.claims`). The
reuse monitor adds the claims of other engines to those of its own conversations. So a block that a request uses belongs to the
class of the highest claim in the fleet, as on one engine that had seen all requests.

1. When a request starts, its gap spans and its first unknown block are asked for. If only one conversation holds that block,
   the request continues this conversation, which has moved from another engine: under the rule `lpc`. A request that branches
   off is taken for one that continues, and the turns that other rules count would be wrong.
2. When it ends, its turn is written, with the highest claim that this engine has seen of each block.
3. Under the rule `lpc` its free blocks are asked for again while they are cached, after longer and longer times: conversations
   move to other engines, where they go on or end. A claim that has changed moves the blocks to another place in the queue.
"""

import heapq
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final, Generic

from eviction_client.pace import in_pieces
from eviction_client.policy.policy import Policy
from eviction_client.policy.queue.free_queue import FreeQueue, Run
from eviction_client.policy.request import Claim, H, TrackedRequest, Use
from eviction_client.stores.base import BlockStore, EngineId, Turned
from eviction_client.stores.claims import MOST_LOG_ODDS, TAGS, SharedClaim, shared_claim

MAX_ASKED: Final = 256
"""Blocks per query of the store."""
ASK_EVERY_S: Final = 0.25
"""Interval of queries: what is asked until then shares its commands. Answers count when requests end, seconds later."""
WRITE_EVERY_S: Final = 1.0
"""Interval of writes: what ends until then shares its commands."""
MAX_POOLED: Final = 10_000
"""Cached answers of the store."""
TRIM_EVERY_S: Final = 100.0
FIRST_AGAIN_S: Final = 2.0
"""Age of free blocks at which they are asked for again."""
AGAIN_AFTER: Final = 1.25
"""Factor of that age from each time to the next."""
LATEST_AGAIN_S: Final = 600.0
MAX_FOLLOWED: Final = 4096
"""Ended requests whose free blocks are asked for again."""
FOREIGN: Final = -(2**40)
"""Conversations of other engines have the numbers from here down, by their tags."""


class Followed(Generic[H]):
    """An ended request whose free blocks are asked for again: those at the head of its runs, the deepest of each.

    Attributes:
        blocks: the computed blocks of its chain.
        depths: number of blocks up to the head of each run, by its name.
        runs: its runs in the queue, each with its first block's name, as long as they have not ended.
        at: end of the request, seconds since the epoch; ``due``: when it is asked for next.
    """

    __slots__ = ("at", "blocks", "depths", "due", "request", "runs")

    def __init__(self, request: TrackedRequest[H]) -> None:
        self.request: TrackedRequest[H] | None = request
        self.blocks, self.at = request.blocks, request.at
        self.runs: list[tuple[Run, H]] = []
        self.depths: dict[H, int] = {}
        self.due = request.at + FIRST_AGAIN_S

    def __lt__(self, other: "Followed[H]") -> bool:
        return self.due < other.due

    def live(self) -> bool:
        """Return whether a run is left. The scheduler's thread has set them once the request's blocks are free."""
        if self.request is not None:
            self.runs, self.request = list(self.request.runs), None
            heads = {block for _, block in self.runs}
            depth = 0
            for piece in in_pieces(self.blocks):
                for block in piece:
                    depth += 1
                    if block in heads:
                        self.depths[block] = depth
        self.runs = [entry for entry in self.runs if entry[0].following is not None]
        return bool(self.runs)


class FleetPool(Generic[H]):
    """Claims of one engine's conversations and of others'. The background calls all methods but :meth:`place_again`.

    Args:
        store: the shared claims.
        engine: name of this engine, which no other one of the fleet has.

    Attributes:
        elsewhere: blocks that conversations of other engines hold. Only the background writes it.
        raised: spans whose blocks have got the claim of a conversation of another engine.
        implausible: answers of the store that no engine would have written.
    """

    def __init__(self, store: BlockStore[H], engine: EngineId) -> None:
        self.store = store
        self.elsewhere: OrderedDict[H, SharedClaim] = OrderedDict()
        self.raised = 0
        self._salt = int.from_bytes(blake2b(engine.encode(errors="replace"), digest_size=8).digest())
        self._started: deque[TrackedRequest[H]] = deque(maxlen=MAX_ASKED)
        self._followed: list[Followed[H]] = []
        """Heap by the time at which they are due."""
        self._changed: deque[tuple[Run, H]] = deque(maxlen=MAX_FOLLOWED)
        self._asked_at = -math.inf
        self._written_at = self._trimmed_at = time.monotonic()

    @property
    def implausible(self) -> int:
        """Answers of the store that no engine would have written."""
        return self.store.refused

    def tag_of(self, conversation: int) -> int:
        """Return the tag of a conversation's number."""
        if conversation <= FOREIGN:
            return FOREIGN - conversation
        digest = blake2b(conversation.to_bytes(8, signed=True), key=self._salt.to_bytes(8), digest_size=4).digest()
        return int.from_bytes(digest) % TAGS

    def place_again(self, queue: FreeQueue[Any], policy: Policy[H], now: Callable[[], float], most: int = MAX_FOLLOWED) -> None:
        """Move runs of a queue whose value the conversations of other engines have changed. In the scheduler's thread.

        Args:
            now: returns seconds since the epoch.
            most: runs that are looked at.
        """
        for _ in range(most):
            if not self._changed:
                return
            run, block = self._changed.popleft()
            reuse_class = policy.class_now(block, now())
            if reuse_class is not None:
                queue.place_again(run, reuse_class)

    def started(self, request: TrackedRequest[H]) -> None:
        """Note a request whose blocks the next query asks for."""
        self._started.append(request)

    def finished(self, request: TrackedRequest[H], policy: Policy[H]) -> None:
        """Record the turn of a finished request, and what its engine has seen of each block."""
        own = request.conversation
        if not request.blocks or own is None:
            return
        tag = self.tag_of(own)
        for start, end, use in policy.monitor.uses_of(request.blocks):
            over = use.only == own and start >= request.done_from
            highest = use.claims[0]
            claim = shared_claim(
                self.tag_of(highest.conversation),
                -MOST_LOG_ODDS if over else highest.log_odds,
                highest.at,
                request.turn,
                predicted=highest.predicted,
                holders=1 if use.only is not None else max(len(use.claims), 2),
            )
            self.store.record(request.blocks[start:end], Turned(tag, request.at, claim), policy.monitor.mean_gap_s)
        if policy.places_by_claim and request.follows:
            heapq.heappush(self._followed, Followed(request))
            if len(self._followed) > MAX_FOLLOWED:
                self._followed.pop()

    def exchange(self, policy: Policy[H], now: float) -> None:
        """Query the store for the noted blocks, and write recorded turns to it every WRITE_EVERY_S.

        Args:
            now: seconds since the epoch.
        """
        at = time.monotonic()
        waits = self._started or (self._followed and self._followed[0].due <= now)
        if waits and not self._asked_at <= now < self._asked_at + ASK_EVERY_S:
            self._asked_at = now
            self._ask(policy, now)
        if at - self._written_at >= WRITE_EVERY_S:
            self._written_at = at
            self.store.flush()

    def trim(self, now: float) -> None:
        """Let the store forget what is over, every TRIM_EVERY_S. ``now``: seconds since the epoch."""
        at = time.monotonic()
        if at - self._trimmed_at >= TRIM_EVERY_S:
            self._trimmed_at = at
            self.store.trim(now)

    def _ask(self, policy: Policy[H], now: float) -> None:
        asked: dict[H, None] = {}
        started = []
        while self._started and len(asked) < MAX_ASKED:
            request = self._started.pop()  # the latest first: the others may have ended
            started.append(request)
            if request.new_blocks:  # another engine may know the first unknown block
                asked[request.prompt[request.old]] = None
            deepest = request.gap_spans[: -MAX_ASKED - 1 : -1]
            asked.update(dict.fromkeys(request.prompt[span.end - 1] for span in deepest))
        self._started.clear()
        again = []
        while self._followed and self._followed[0].due <= now and len(asked) < MAX_ASKED:
            followed = heapq.heappop(self._followed)
            if followed.live():
                again.append(followed)
                asked.update(dict.fromkeys(block for _, block in followed.runs))
        if not asked:
            return
        found = self.store.claims(list(asked))
        for request in started:
            self._answered(request, found, policy)
        for followed in again:
            self._followed_up(followed, found, policy)
            followed.due = now + (now - followed.at) * (AGAIN_AFTER - 1.0)
            if now - followed.at < LATEST_AGAIN_S:
                heapq.heappush(self._followed, followed)
        for block in asked:
            self.elsewhere.pop(block, None)
            if block in found and self._is_elsewhere(policy.monitor.use_of(block)):
                self.elsewhere[block] = found[block]
        while len(self.elsewhere) > MAX_POOLED:
            self.elsewhere.popitem(last=False)

    def _answered(self, request: TrackedRequest[H], found: dict[H, SharedClaim], policy: Policy[H]) -> None:
        """Add the claims on the spans of a request's prompt; let it continue a conversation of another engine."""
        monitor = policy.monitor
        known = [span.end for span in request.gap_spans if span.use is not None]
        self._add_claims(request.prompt, known, found, policy)
        claim = found.get(request.prompt[request.old]) if request.new_blocks else None
        if claim is not None and claim.holders == 1 and policy.places_by_claim:
            monitor.moved_here(request, self._claim(claim), claim.turn)

    def _followed_up(self, followed: Followed[H], found: dict[H, SharedClaim], policy: Policy[H]) -> None:
        """Add the claims on the free blocks of an ended request; move those whose value they change."""
        depths = sorted(followed.depths[block] for _, block in followed.runs if block in followed.depths)
        self._add_claims(followed.blocks, depths, found, policy)
        self._changed.extend(followed.runs)

    def _add_claims(self, chain: Sequence[H], depths: Sequence[int], found: dict[H, SharedClaim], policy: Policy[H]) -> None:
        """Add the claims found on the last blocks of parts of a chain to these parts, and the deepest one to all before it.

        Who holds a block holds those before it. The other parts have claims at least as high in the store. Rules other than
        `lpc` read predicted claims only.

        Args:
            depths: numbers of blocks up to the end of each part, ascending.
        """
        for number, depth in enumerate(depths):
            claim = found.get(chain[depth - 1])
            if claim is not None and (policy.places_by_claim or claim.predicted):
                start = depths[number - 1] if 0 < number < len(depths) - 1 else 0
                self.raised += policy.monitor.add_claim(chain[start:depth], self._claim(claim), self.tag_of)

    @staticmethod
    def _is_elsewhere(use: Use | None) -> bool:
        return use is None or any(claim.conversation <= FOREIGN for claim in use.claims)

    @staticmethod
    def _claim(claim: SharedClaim) -> Claim:
        return Claim(FOREIGN - claim.conversation, claim.log_odds, claim.at, claim.predicted)
