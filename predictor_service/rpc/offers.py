"""The tokenizer that the engine at the other end of a stream offers: asked for where it is not known, and kept."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from lpc.errors import InvalidRequest
from lpc.v1 import predictor_pb2 as pb
from predictor_service.errors import TokenizerFailed, TokenizerLoading, UnreadPrompt
from predictor_service.metrics import Metrics
from predictor_service.requests.offered import OfferRefused, Receipt
from predictor_service.requests.served_models import Known, ServedModels, State

MAX_OFFERS: Final = 8
"""On one stream."""
LOOK_AGAIN_S: Final = 5.0
"""Seconds between looks at what has become of it, while prompts are not read."""
WireState: TypeAlias = "pb.TokenizerState.ValueType"
_STATES: Final[dict[State, WireState]] = {
    "ready": pb.TOKENIZER_STATE_READY,
    "loading": pb.TOKENIZER_STATE_LOADING,
    "failed": pb.TOKENIZER_STATE_FAILED,
}

Say = Callable[[str, pb.TokenizerStatus], None]
"""Sends a status to the engine, with the request_id of its offer."""


class StreamOffer:
    """What one stream offers. Lives on one event loop.

    The engine is told how it stands with its tokenizer when it offers it, and whenever that changes.

    Attributes:
        made: whether there was an offer; whoever makes one understands answers to prompts that were not read.
    """

    def __init__(self, models: ServedModels, caller: str, say: Say, metrics: Metrics) -> None:
        self.made = False
        self._caller = caller
        self._models = models
        self._say = say
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._looking = asyncio.Lock()
        self._offers = 0
        self._offer = pb.TokenizerOffer()
        self._request_id = ""
        self._receipt: Receipt | None = None
        self._refusal = ""
        self._said: tuple[WireState, str] | None = None
        self._looked_at = -LOOK_AGAIN_S
        self._tasks: set[asyncio.Task[None]] = set()
        self._end_watch = models.watch(self._look_from_any_thread)
        self._closed = False

    async def take(self, request_id: str, offer: pb.TokenizerOffer) -> None:
        """Take an offer; the status is sent. Raises InvalidRequest."""
        self._offers += 1
        if self._offers > MAX_OFFERS:
            raise InvalidRequest(f"at most {MAX_OFFERS} tokenizers can be offered on one stream")
        if self._receipt is not None:
            raise InvalidRequest("a tokenizer is being received on this stream: send the rest of it first")
        self.made = True
        self._request_id, self._offer, self._refusal, self._said = request_id, offer, "", None
        await self._look(first=True)

    async def chunk(self, data: bytes) -> None:
        """Take the next bytes of what is offered. What comes when nothing is wanted any more is passed over."""
        receipt = self._receipt
        if receipt is None:
            return
        try:
            if not data:
                receipt.abandon()
                raise OfferRefused("the engine could not read its tokenizer's files to the end: see its log")
            whole = await asyncio.to_thread(receipt.write, data)
        except OfferRefused as error:
            self._receipt, self._refusal = None, str(error)
            self._metrics.tokenizer_offers.labels("damaged").inc()
            self._tell(pb.TOKENIZER_STATE_REFUSED, self._refusal)
            self._models.changed()
            return
        if whole:
            self._receipt = None
            self._metrics.tokenizer_offers.labels("received").inc()
            self._models.look(self._offer.served_model, self._offer.digest)
            self._models.changed()

    def unread(self) -> None:
        """A prompt of this stream could not be read: look, now and then, whether the tokenizer got lost."""
        if self.made and self._loop.time() - self._looked_at >= LOOK_AGAIN_S:
            self._look_soon()

    def close(self) -> None:
        """The stream is over."""
        self._closed = True
        self._end_watch()
        for task in list(self._tasks):
            task.cancel()
        if self._receipt is not None:
            self._receipt.abandon()
            self._models.changed()

    def _look_from_any_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._look_soon)

    def _look_soon(self) -> None:
        if self.made and not self._closed:
            task = self._loop.create_task(self._look())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _look(self, *, first: bool = False) -> None:
        async with self._looking:
            self._looked_at = self._loop.time()
            if self._receipt is not None:
                return
            offer = self._offer
            error = await asyncio.to_thread(self._models.look, offer.served_model, offer.digest)
            if error is None or isinstance(error, TokenizerLoading | TokenizerFailed):
                if first:
                    self._metrics.tokenizer_offers.labels("known").inc()
                self._tell(_state_of(error), str(error) if isinstance(error, TokenizerFailed) else "")
                return
            await self._ask_for(offer, error)

    async def _ask_for(self, offer: pb.TokenizerOffer, error: UnreadPrompt) -> None:
        store = self._models.offered
        if self._refusal:
            return
        try:
            if store is None or not offer.files:
                raise OfferRefused(str(error))
            sizes = {file.name: file.bytes for file in offer.files[:MAX_OFFERS]}
            self._receipt = await asyncio.to_thread(store.receive, offer.digest, sizes, self._caller)
        except OfferRefused as refusal:
            self._refusal = str(refusal)
            self._metrics.tokenizer_offers.labels("refused").inc()
            self._tell(pb.TOKENIZER_STATE_REFUSED, self._refusal)
            return
        if self._closed and self._receipt is not None:
            self._receipt.abandon()
        self._tell(pb.TOKENIZER_STATE_LOADING if self._receipt is None else pb.TOKENIZER_STATE_WANTED)

    def _tell(self, state: WireState, message: str = "") -> None:
        if self._said != (state, message):
            self._said = state, message
            self._say(self._request_id, pb.TokenizerStatus(state=state, message=message))


def message_of(known: Known) -> pb.KnownTokenizer:
    """Return a tokenizer as GetModelInfo names it."""
    status = pb.TokenizerStatus(state=_STATES[known.state], message=known.failure)
    return pb.KnownTokenizer(served_model=known.name, digest=known.digest, status=status, vocabulary=known.vocabulary)


def _state_of(error: UnreadPrompt | None) -> WireState:
    return _STATES["ready" if error is None else "loading" if isinstance(error, TokenizerLoading) else "failed"]
