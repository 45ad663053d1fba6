"""From a conversation on the wire to the model's input, in a small pool of threads: the event loop stays free, and the
preparation of the next batch overlaps inference of this one.

It also notes that a turn arrived: for the label of its prediction, and for the return model.
"""

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from lpc.model.conversation import UserTurns, with_turn_count
from lpc.model.features import Features
from lpc.model.inference import Model
from lpc.model.returns.facts import Facts
from lpc.v1 import predictor_pb2 as pb
from predictor_service.errors import CLOSING, Unavailable
from predictor_service.labels.memory import Labels, Turn
from predictor_service.labels.names import WINDOW, Names, names_of
from predictor_service.metrics import Metrics
from predictor_service.requests.parser import RequestParser, ids_of
from predictor_service.returns.turns import facts_of, opening_of
from predictor_service.sharing.registry import TurnRegistry

TOKENIZER_THREADS: Final = {"cpu": 1, "cuda": 8}
"""One tokenises far faster than a CPU infers, and a second one only takes cores from it; a GPU wants more."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A conversation that the model can run.

    Attributes:
        model: the one whose tokenizer made the features: only it can run them.
        features: its input.
        turn: as it is remembered.
        microseconds: that reading and tokenisation took.
    """

    model: Model
    features: Features
    turn: Turn
    microseconds: int


class Preparation:
    """Prepares conversations in its threads. Lives on one event loop.

    ``clock``: seconds since the Unix epoch. ``registry``: of the turns that sidecars share; None if they do not.
    """

    def __init__(
        self,
        parser: RequestParser,
        labels: Labels,
        metrics: Metrics,
        *,
        registry: TurnRegistry | None,
        threads: int,
        clock: Callable[[], float],
    ) -> None:
        self._parser = parser
        self._labels = labels
        self._metrics = metrics
        self._registry = registry
        self._clock = clock
        self._threads = ThreadPoolExecutor(threads, "tokenize")
        # Its own thread, so that small requests do not wait for large ones.
        self._large = ThreadPoolExecutor(1, "tokenize-large")
        self._closed = False

    async def prepare(self, conversation: pb.Conversation, model: Model, *, large: bool = False) -> Prepared:
        """Prepare a conversation, which arrives now, for a model. ``large``: it came in a large message.

        Raises:
            InvalidRequest, UnreadPrompt: it can't be answered as it is. Unavailable: the service is closing.
        """
        if self._closed:
            raise Unavailable(CLOSING)
        loop = asyncio.get_running_loop()
        threads = self._large if large else self._threads
        at = self._clock()
        prepared, names = await loop.run_in_executor(threads, self._prepare, conversation, model, at)
        self._metrics.tokenize_seconds.observe(prepared.microseconds / 1e6)
        await self._share(prepared.turn, names, at)
        return prepared

    async def _share(self, turn: Turn, names: Names | None, at: float) -> None:
        """Look among other sidecars' turns for the one before this one, unless it was asked before, at ``at``."""
        if self._registry is None or not turn.name or turn.asked_at != at or turn.shared_as:
            return
        if await self._registry.arrive(turn, names) == "repeated":
            # The sidecar that was asked first labels it and learns from it.
            self._labels.repeated_elsewhere(turn)

    async def note_unread(self, conversation: pb.Conversation, *, large: bool = False) -> Turn:
        """Note that a conversation arrives whose token ids cannot be read."""
        if self._closed:
            raise Unavailable(CLOSING)
        loop = asyncio.get_running_loop()
        at = self._clock()
        threads = self._large if large else self._threads
        turn, names = await loop.run_in_executor(threads, self._note_unread, conversation, at)
        await self._share(turn, names, at)
        return turn

    def close(self) -> None:
        """Refuse new work, and forget what has not begun."""
        self._closed = True
        for threads in (self._threads, self._large):
            threads.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, conversation: pb.Conversation, model: Model, at: float) -> tuple[Prepared, Names | None]:
        """In one of the threads."""
        start = time.perf_counter_ns()
        turns = self._parser.parse(conversation, max(model.manifest.features.prompt_window, WINDOW))
        turn, names = self._arrive(conversation, turns, at, facts_of(conversation, turns))
        features = model.encode(turns)
        return Prepared(model, features, turn, (time.perf_counter_ns() - start) // 1000), names

    def _arrive(self, conversation: pb.Conversation, turns: UserTurns, at: float, facts: Facts) -> tuple[Turn, Names | None]:
        """Return a turn as it is remembered, and its names in the fleet's hashes."""
        name, key = conversation.conversation_id, self._registry.key if self._registry is not None else None
        turn = self._labels.arrive(turns, name, at, facts, opening_of(conversation))
        return turn, None if key is None else names_of(turns, name, key)

    def _note_unread(self, conversation: pb.Conversation, at: float) -> tuple[Turn, Names | None]:
        """In one of the threads."""
        prompt = blake2b(ids_of(conversation.tokens).tobytes(), digest_size=16).hexdigest()
        limit = self._parser.limits.max_turn_count
        if conversation.HasField("turn_count"):
            count = conversation.turn_count
        else:
            count = min(self._labels.turn_of(prompt, conversation.conversation_id), limit)
        turns = with_turn_count(UserTurns((prompt,), 1, told_apart=False), count, limit)
        return self._arrive(conversation, turns, at, facts_of(conversation, turns)._replace(reply_tokens=math.nan))
