"""From a conversation on the wire to the model's input, in a small pool of threads: the event loop stays free, and the
preparation of the next batch overlaps inference of this one.

It also notes that a turn arrived: for the label of its prediction, and for the return model.
"""

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

from lpc.model.conversation import UserTurns, with_turn_count
from lpc.model.features import Features
from lpc.model.inference import Model
from lpc.model.returns.memory import Arrived
from lpc.v1 import predictor_pb2 as pb
from predictor_service.errors import CLOSING, Unavailable
from predictor_service.labels.memory import Labels, Turn
from predictor_service.labels.names import WINDOW, Names, names_of
from predictor_service.metrics import Metrics
from predictor_service.requests.parser import RequestParser, ids_of
from predictor_service.returns.turns import arrived
from predictor_service.sightings.shared import Sightings

TOKENIZER_THREADS: Final = {"cpu": 1, "cuda": 8}
"""One tokenises far faster than a CPU infers, and a second one only takes cores from it; a GPU wants more."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A conversation that the model can run, and what was noted of it.

    Attributes:
        model: the one whose tokenizer made the features: only it can run them.
        features: its input.
        turn: remembered for its label; None where its conversation cannot be recognised.
        asked: input of the return model, except the log-odds.
        turn_count: user turns so far.
        names: of a turn that has just arrived, in the fleet's hashes; None if other sidecars do not learn of it.
        arrived_at: when it came, seconds since the Unix epoch; for one asked again later than its turn.
        microseconds: that reading and tokenisation took.
    """

    model: Model
    features: Features
    turn: Turn | None
    asked: Arrived
    turn_count: int
    names: Names | None
    arrived_at: float
    microseconds: int


class Preparation:
    """Prepares conversations in its threads. Lives on one event loop.

    ``clock``: seconds since the Unix epoch. ``sightings``: by which sidecars tell each other of turns; None where they do not.
    """

    def __init__(
        self,
        parser: RequestParser,
        labels: Labels,
        metrics: Metrics,
        *,
        sightings: Sightings | None,
        threads: int,
        clock: Callable[[], float],
    ) -> None:
        self._parser = parser
        self._labels = labels
        self._metrics = metrics
        self._sightings = sightings
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
        prepared = await loop.run_in_executor(threads, self._prepare, conversation, model, self._clock())
        self._metrics.tokenize_seconds.observe(prepared.microseconds / 1e6)
        turn, asked = await self._seen(prepared.turn, prepared.names, prepared.arrived_at, prepared.asked)
        return replace(prepared, turn=turn, asked=asked)

    async def _seen(self, turn: Turn | None, names: Names | None, at: float, asked: Arrived) -> tuple[Turn | None, Arrived]:
        """Ask what other sidecars know of a turn's conversation, once for each turn; return both as they are then."""
        if self._sightings is None or turn is None or turn.asked_at != at or turn.waits_as is not None:
            return turn, asked
        found, past = await self._sightings.arrive(turn, names, asked.input_tokens)
        if found == "repeated":
            # The sidecar that was asked first labels it and learns from it.
            self._labels.repeated_elsewhere(turn)
            return None, asked._replace(conversation=b"")
        return turn, asked._replace(conversation=turn.conversation, past=past or asked.past)

    async def note_unread(self, conversation: pb.Conversation, *, large: bool = False) -> Arrived:
        """Note that a conversation arrives whose token ids cannot be read; return the return model's input."""
        if self._closed:
            raise Unavailable(CLOSING)
        loop = asyncio.get_running_loop()
        at = self._clock()
        turn, names, asked = await loop.run_in_executor(
            self._large if large else self._threads, self._note_unread, conversation, at
        )
        return (await self._seen(turn, names, at, asked))[1]

    def close(self) -> None:
        """Refuse new work, and forget what has not begun."""
        self._closed = True
        for threads in (self._threads, self._large):
            threads.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, conversation: pb.Conversation, model: Model, at: float) -> Prepared:
        """In one of the threads."""
        start = time.perf_counter_ns()
        turns = self._parser.parse(conversation, max(model.manifest.features.prompt_window, WINDOW))
        turn = self._labels.arrive(turns, conversation.conversation_id, at)
        features = model.encode(turns)
        asked = arrived(conversation, turns, turn, at)
        names = self._names(turns, conversation.conversation_id)
        taken = (time.perf_counter_ns() - start) // 1000
        return Prepared(model, features, turn, asked, turns.turn_count, names, at, taken)

    def _names(self, turns: UserTurns, conversation_id: str) -> Names | None:
        """Return a turn's names in the fleet's hashes."""
        key = self._sightings.key if self._sightings is not None else None
        return None if key is None else names_of(turns, conversation_id, key)

    def _note_unread(self, conversation: pb.Conversation, at: float) -> tuple[Turn | None, Names | None, Arrived]:
        """In one of the threads."""
        prompt = blake2b(ids_of(conversation.tokens).tobytes(), digest_size=16).hexdigest()
        limit = self._parser.limits.max_turn_count
        if conversation.HasField("turn_count"):
            count = conversation.turn_count
        else:
            count = min(self._labels.turn_of(prompt, conversation.conversation_id), limit)
        turns = with_turn_count(UserTurns((prompt,), 1, told_apart=False), count, limit)
        turn = self._labels.arrive(turns, conversation.conversation_id, at)
        asked = arrived(conversation, turns, turn, at)._replace(reply_tokens=math.nan)
        return turn, self._names(turns, conversation.conversation_id), asked
