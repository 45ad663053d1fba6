"""Turns a conversation of the wire format into the model's input, in a small pool of threads.

So the event loop is not blocked, and the preparation of one batch overlaps the inference of the one before. Preparation also
records the arrival of the turn, for the label of its prediction and for the return model.
"""

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, TypeAlias

from lpc.model.conversation import NO_TEXT, UserTurns, with_turn_count
from lpc.model.returns.facts import Facts
from lpc.v1 import predictor_pb2 as pb
from predictor_service.batching.job import Job
from predictor_service.errors import CLOSING, Unavailable
from predictor_service.labels.names import WINDOW, Names, identity_of, user_name
from predictor_service.labels.tracker import TurnTracker
from predictor_service.labels.turn import Turn
from predictor_service.metrics import Metrics
from predictor_service.requests.parser import RequestParser, ids_of
from predictor_service.returns.turns import facts_of, opening_of

if TYPE_CHECKING:
    from predictor_service.sharing.registry import TurnRegistry

TOKENIZER_THREADS: Final = {"cpu": 1, "cuda": 8}
"""One thread tokenises far faster than a CPU infers, and a second one would take cores from inference; a GPU needs more."""

SMALL: Final = 16 * 2**10
"""Largest length of a conversation (`RequestParser.length`) that does not need the thread of large ones."""

_Arrived: TypeAlias = tuple[Turn, Names | None]


class Preparation:
    """Prepares conversations in threads. Use it from one event loop only.

    Args:
        registry: turns that sidecars share; None: they share none.
        threads: number of threads for requests of normal size.
        clock: seconds since the Unix epoch.
    """

    def __init__(
        self,
        parser: RequestParser,
        tracker: TurnTracker,
        metrics: Metrics,
        *,
        registry: "TurnRegistry | None",
        threads: int,
        clock: Callable[[], float],
    ) -> None:
        self._parser = parser
        self._tracker = tracker
        self._metrics = metrics
        self._registry = registry
        self._clock = clock
        self._threads = ThreadPoolExecutor(threads, "tokenize")
        # Large requests have a thread of their own, so that small ones do not wait for them.
        self._large = ThreadPoolExecutor(1, "tokenize-large")
        self._closed = False

    async def prepare(self, job: Job) -> Turn:
        """Prepare a conversation that has just arrived for the model; return its turn.

        Raises:
            InvalidRequest, UnreadPrompt: the conversation cannot be read. Unavailable: the service is shutting down.
        """
        if self._closed:
            raise Unavailable(CLOSING)
        at = self._clock()
        turn, names = await self._in_thread(self._prepare, job, at)
        self._metrics.tokenize_seconds.observe(job.tokenize_us / 1e6)
        await self._share(turn, names, at)
        return turn

    async def _share(self, turn: Turn, names: Names | None, at: float) -> None:
        """Find the previous turn among other sidecars' turns, unless this turn arrived before ``at``, in an earlier request."""
        if self._registry is None or not turn.sent.name or turn.arrival.asked_at != at or turn.shared_id:
            return
        if await self._registry.arrive(turn, names) == "repeated":
            # The sidecar that got the turn first labels it and learns from it.
            self._tracker.repeated_elsewhere(turn)

    async def note_unread(self, job: Job) -> Turn:
        """Record the arrival of a conversation whose token ids cannot be read. Raises Unavailable."""
        if self._closed:
            raise Unavailable(CLOSING)
        at = self._clock()
        turn, names = await self._in_thread(self._note_unread, job, at)
        await self._share(turn, names, at)
        return turn

    async def _in_thread(self, prepare: Callable[[Job, float], _Arrived], job: Job, at: float) -> _Arrived:
        threads = self._threads if self._parser.length(job.conversation) <= SMALL else self._large
        return await asyncio.get_running_loop().run_in_executor(threads, prepare, job, at)

    def close(self) -> None:
        """Refuse new work, and cancel work that has not begun."""
        self._closed = True
        for threads in (self._threads, self._large):
            threads.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, job: Job, at: float) -> _Arrived:
        start, conversation = time.perf_counter_ns(), job.conversation
        turns = self._parser.parse(conversation, max(job.model.manifest.features.prompt_window, WINDOW))
        named = turns
        if not turns.has_text:
            named = self._by_digest(conversation, turns)
            turns = replace(turns, turn_count=named.turn_count)
        turn, names = self._arrive(job, named, at, facts_of(conversation, turns))
        job.has_text, job.features = turns.has_text, job.model.encode(turns)
        job.tokenize_us = (time.perf_counter_ns() - start) // 1000
        return turn, names

    def _arrive(self, job: Job, turns: UserTurns, at: float, facts: Facts) -> _Arrived:
        """Set the recorded turn; return it, and its names under the fleet's hash key; None: there is no key."""
        conversation, client = job.conversation, job.client
        identity = identity_of(turns, conversation.conversation_id)
        turn = self._tracker.arrive(turns, identity, at, facts, opening_of(conversation), client, conversation.user)
        job.turn = turn
        key = None if self._registry is None else self._registry.key
        if key is None or identity is None:
            return turn, None
        return turn, identity.under(key)._replace(user=user_name(client, conversation.user, key))

    def _note_unread(self, job: Job, at: float) -> _Arrived:
        turns = self._by_digest(job.conversation, UserTurns(NO_TEXT, 1, told_apart=False))
        facts = facts_of(job.conversation, turns)._replace(reply_tokens=math.nan)
        return self._arrive(job, turns, at, facts)

    def _by_digest(self, conversation: pb.Conversation, turns: UserTurns) -> UserTurns:
        """Return the turns of a conversation without text, named by a digest of its input and counted by its id."""
        tokens = conversation.WhichOneof("input") == "tokens"
        # Of token ids, `SerializeToString` would create a Python object each.
        data = ids_of(conversation.tokens).tobytes() if tokens else conversation.SerializeToString(deterministic=True)
        prompt = blake2b(data, digest_size=16).hexdigest()
        limit = self._parser.limits.max_turn_count
        if conversation.HasField("turn_count"):
            count = conversation.turn_count
        else:
            count = min(self._tracker.turn_of(prompt, conversation.conversation_id), limit)
        return with_turn_count(replace(turns, prompts=(prompt,)), count, limit)
