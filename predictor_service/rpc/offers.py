"""Answers offers of tokenizers, and receives those that are not known."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final, TypeAlias

from lpc.errors import InvalidRequest
from lpc.v1 import predictor_pb2 as pb
from lpc.wire.tokenizer_files import NAMES
from predictor_service.errors import TokenizerFailed, TokenizerLoading, UnreadPrompt
from predictor_service.metrics import Metrics
from predictor_service.requests.offered import STALLED_S, OfferedTokenizers, OfferRefused, Receipt
from predictor_service.requests.served_models import Known, ServedModels, State

WireState: TypeAlias = "pb.TokenizerState.ValueType"
_STATES: Final[dict[State, WireState]] = {
    "ready": pb.TOKENIZER_STATE_READY,
    "loading": pb.TOKENIZER_STATE_LOADING,
    "failed": pb.TOKENIZER_STATE_FAILED,
}


class TokenizerOffers:
    """Answers offers of tokenizers. Use it from one event loop only."""

    def __init__(self, models: ServedModels, metrics: Metrics) -> None:
        self._models = models
        self._metrics = metrics

    async def answer(self, parts: AsyncIterator[pb.OfferTokenizerRequest], caller: str) -> pb.TokenizerStatus:
        """Return the state of an offered tokenizer; receive it first if it is not known.

        Args:
            parts: the offer, then the bytes of its files.
            caller: name of the client.

        Raises:
            InvalidRequest: the first message is not an offer.
        """
        first = await anext(parts, pb.OfferTokenizerRequest())
        if first.WhichOneof("part") != "offer":
            raise InvalidRequest("the first message of the call must be the offer")
        offer = first.offer
        error = await asyncio.to_thread(self._models.look, offer.served_model, offer.digest)
        if error is None or isinstance(error, TokenizerLoading | TokenizerFailed):
            self._metrics.tokenizer_offers.labels("known").inc()
            return _status(error)
        try:
            receipt = await self._begin(offer, error, caller)
        except OfferRefused as refusal:
            self._metrics.tokenizer_offers.labels("refused").inc()
            return pb.TokenizerStatus(state=pb.TOKENIZER_STATE_REFUSED, message=str(refusal))
        if receipt is None:  # another engine is sending it
            return pb.TokenizerStatus(state=pb.TOKENIZER_STATE_LOADING)
        try:
            await _receive(receipt, parts)
        except OfferRefused as refusal:
            self._metrics.tokenizer_offers.labels("damaged").inc()
            return pb.TokenizerStatus(state=pb.TOKENIZER_STATE_REFUSED, message=str(refusal))
        self._metrics.tokenizer_offers.labels("received").inc()
        return _status(await asyncio.to_thread(self._models.look, offer.served_model, offer.digest))

    async def _begin(self, offer: pb.TokenizerOffer, error: UnreadPrompt, caller: str) -> Receipt | None:
        store: OfferedTokenizers | None = self._models.offered
        if store is None or not offer.files:
            raise OfferRefused(str(error))
        sizes = {file.name: file.bytes for file in offer.files[: len(NAMES) + 1]}
        return await asyncio.to_thread(store.receive, offer.digest, sizes, caller)


async def _receive(receipt: Receipt, parts: AsyncIterator[pb.OfferTokenizerRequest]) -> None:
    """Write the files. Raises OfferRefused, and discards the files."""
    complete = False
    try:
        while not complete:
            async with asyncio.timeout(STALLED_S):
                part = await anext(parts, pb.OfferTokenizerRequest())
            if not part.data:
                raise OfferRefused("the engine could not read its tokenizer's files to the end: see its log")
            complete = await asyncio.to_thread(receipt.write, part.data)
    except TimeoutError:
        raise OfferRefused("the upload was too slow: offer the tokenizer again") from None
    finally:
        if not complete:
            receipt.abandon()


def message_of(known: Known) -> pb.KnownTokenizer:
    """Return a tokenizer as a message of GetModelInfo."""
    status = pb.TokenizerStatus(state=_STATES[known.state], message=known.failure)
    return pb.KnownTokenizer(served_model=known.name, digest=known.digest, status=status, vocabulary=known.vocabulary)


def _status(error: UnreadPrompt | None) -> pb.TokenizerStatus:
    if error is None:
        return pb.TokenizerStatus(state=pb.TOKENIZER_STATE_READY)
    if isinstance(error, TokenizerFailed):
        return pb.TokenizerStatus(state=pb.TOKENIZER_STATE_FAILED, message=str(error))
    return pb.TokenizerStatus(state=pb.TOKENIZER_STATE_LOADING)
