"""Turns a conversation of the wire format into the model's input, in a small pool of threads.

So the event loop is not blocked, and the preparation of one batch overlaps the inference of the one before. Preparation also
records the arrival of the turn, for the label of its prediction and for the return model.
"""

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from lpc.model.conversation import NO_TEXT, UserTurns, with_turn_count
from lpc.model.features import Features
from lpc.model.inference import Model
from lpc.model.returns.facts import Facts
from lpc.v1 import predictor_pb2 as pb
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


@dataclass(frozen=True, slots=True)
class Prepared:
    """A conversation as input of the model.

    Attributes:
        model: the only model that can run the features, because its tokenizer produced them.
        features: the model's input.
        turn: the turn as recorded by `TurnTracker`.
        has_text: whether the conversation has user text. Otherwise its prediction is not labelled.
        microseconds: duration of parsing and tokenisation.
    """

    model: Model
    features: Features
    turn: Turn
    has_text: bool
    microseconds: int


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

    async def prepare(self, conversation: pb.Conversation, model: Model, *, client: str = "") -> Prepared:
        """Prepare a conversation that has just arrived for a model.

        Args:
            client: name of its client.

        Raises:
            InvalidRequest, UnreadPrompt: the conversation cannot be read. Unavailable: the service is shutting down.
        """
        if self._closed:
            raise Unavailable(CLOSING)
        loop = asyncio.get_running_loop()
        threads = self._lane_of(conversation)
        at = self._clock()
        prepared, names = await loop.run_in_executor(threads, self._prepare, conversation, model, at, client)
        self._metrics.tokenize_seconds.observe(prepared.microseconds / 1e6)
        await self._share(prepared.turn, names, at)
        return prepared

    async def _share(self, turn: Turn, names: Names | None, at: float) -> None:
        """Find the previous turn among other sidecars' turns, unless this turn arrived before ``at``, in an earlier request."""
        if self._registry is None or not turn.sent.name or turn.arrival.asked_at != at or turn.shared_id:
            return
        if await self._registry.arrive(turn, names) == "repeated":
            # The sidecar that got the turn first labels it and learns from it.
            self._tracker.repeated_elsewhere(turn)

    async def note_unread(self, conversation: pb.Conversation, *, client: str = "") -> Turn:
        """Record the arrival of a conversation whose token ids cannot be read; arguments as in :meth:`prepare`."""
        if self._closed:
            raise Unavailable(CLOSING)
        loop = asyncio.get_running_loop()
        at = self._clock()
        threads = self._lane_of(conversation)
        turn, names = await loop.run_in_executor(threads, self._note_unread, conversation, at, client)
        await self._share(turn, names, at)
        return turn

    def _lane_of(self, conversation: pb.Conversation) -> ThreadPoolExecutor:
        return self._threads if self._parser.length(conversation) <= SMALL else self._large

    def close(self) -> None:
        """Refuse new work, and cancel work that has not begun."""
        self._closed = True
        for threads in (self._threads, self._large):
            threads.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, conversation: pb.Conversation, model: Model, at: float, client: str) -> tuple[Prepared, Names | None]:
        start = time.perf_counter_ns()
        turns = self._parser.parse(conversation, max(model.manifest.features.prompt_window, WINDOW))
        named = turns
        if not turns.has_text:
            named = self._by_digest(conversation, turns)
            turns = replace(turns, turn_count=named.turn_count)
        turn, names = self._arrive(conversation, named, at, facts_of(conversation, turns), client)
        features = model.encode(turns)
        return Prepared(model, features, turn, turns.has_text, (time.perf_counter_ns() - start) // 1000), names

    def _arrive(
        self, conversation: pb.Conversation, turns: UserTurns, at: float, facts: Facts, client: str
    ) -> tuple[Turn, Names | None]:
        """Return the recorded turn, and its names under the fleet's hash key; None: there is no key."""
        identity = identity_of(turns, conversation.conversation_id)
        turn = self._tracker.arrive(turns, identity, at, facts, opening_of(conversation), client, conversation.user)
        key = None if self._registry is None else self._registry.key
        if key is None or identity is None:
            return turn, None
        return turn, identity.under(key)._replace(user=user_name(client, conversation.user, key))

    def _note_unread(self, conversation: pb.Conversation, at: float, client: str) -> tuple[Turn, Names | None]:
        turns = self._by_digest(conversation, UserTurns(NO_TEXT, 1, told_apart=False))
        facts = facts_of(conversation, turns)._replace(reply_tokens=math.nan)
        return self._arrive(conversation, turns, at, facts, client)

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
