"""Answers offers of tokenizers, and receives those that are not known."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from typing import Final, TypeAlias

from lpc.errors import InvalidRequest, LpcError
from lpc.v1 import predictor_pb2 as pb
from lpc.wire.names import MAX_NAME, is_name
from lpc.wire.tokenizer_files import LEAST_CHUNK_BYTES, MAX_BYTES, NAMES, NEEDED, is_digest
from predictor_service.errors import TokenizerFailed, UnknownServedModel, UnreadPrompt, UnreadTemplate
from predictor_service.metrics import Metrics
from predictor_service.requests.served_models import Known, ServedModels, State
from predictor_service.requests.uploads import OfferWaits, Upload
from predictor_service.rpc.callers import Caller

STALLED_S: Final = 15.0
"""Time without data after which an upload is abandoned."""
MIN_BYTES_PER_S: Final = 512 * 2**10
"""Minimum mean rate of an upload, after an allowance of STALLED_S."""
MAX_HOURLY: Final = 32
"""Uploads that one caller may begin within an hour."""
SHORT_MESSAGES: Final = 64
"""Messages with less than LEAST_CHUNK_BYTES that an upload may have."""

WireState: TypeAlias = "pb.TokenizerState.ValueType"
_STATES: Final[dict[State, WireState]] = {
    "ready": pb.TOKENIZER_STATE_READY,
    "loading": pb.TOKENIZER_STATE_LOADING,
    "failed": pb.TOKENIZER_STATE_FAILED,
}


class OfferRefused(LpcError):
    """The sidecar does not accept an offered tokenizer. The message contains the reason and the remedy."""


class TokenizerOffers:
    """Answers offers of tokenizers. Use it from one event loop only. ``accepted``: whether engines may send theirs."""

    def __init__(self, models: ServedModels, metrics: Metrics, *, accepted: bool) -> None:
        self._models = models
        self._metrics = metrics
        self._accepted = accepted

    async def answer(self, parts: AsyncIterator[pb.OfferTokenizerRequest], caller: Caller) -> pb.TokenizerStatus:
        """Return the state of an offered tokenizer; receive it first if it is not known.

        ``parts``: the offer, then the bytes of its files. Raises InvalidRequest: the first message is not an offer.
        """
        caller.ask()
        offer = await _offer_in(parts)
        try:
            sizes = _sizes_of(offer)
            error = self._models.look(caller.who, offer.served_model, offer.digest)
            if not isinstance(error, UnknownServedModel):
                self._metrics.tokenizer_offers.labels("known").inc()
                return status_of(error)
            if not self._accepted or not sizes:
                raise OfferRefused(str(error))
            upload = self._models.begin(caller.who, offer.served_model, offer.digest, sizes)
        except OfferRefused as refusal:
            self._metrics.tokenizer_offers.labels("refused").inc()
            return pb.TokenizerStatus(state=pb.TOKENIZER_STATE_REFUSED, message=str(refusal))
        except OfferWaits as reason:
            self._metrics.tokenizer_offers.labels("waits").inc()
            return pb.TokenizerStatus(state=pb.TOKENIZER_STATE_LOADING, message=str(reason))
        return await self._received(upload, caller, parts)

    async def _received(
        self, upload: Upload, caller: Caller, parts: AsyncIterator[pb.OfferTokenizerRequest]
    ) -> pb.TokenizerStatus:
        """Receive an upload, and return the tokenizer's state. Whatever happens, the upload ends or is queued for loading."""
        result = "damaged"
        try:
            if not _counted(caller):
                result = "refused"
                raise OfferRefused(
                    f"client {caller.who} has sent {MAX_HOURLY} tokenizers within an hour: offer this one again later"
                )
            complete = await self._receive(upload, parts)
        except OfferRefused as refusal:
            # Shielded, because cancelling the call would otherwise cancel the work in the other thread.
            await asyncio.shield(asyncio.wrap_future(self._models.abandon(upload, punish=result == "damaged")))
            self._metrics.tokenizer_offers.labels(result).inc()
            return pb.TokenizerStatus(state=pb.TOKENIZER_STATE_REFUSED, message=str(refusal))
        except BaseException:
            self._models.abandon(upload, punish=True)
            raise
        if complete:
            self._metrics.tokenizer_offers.labels("received").inc()
            self._models.received(upload)
        else:
            self._models.abandon(upload, punish=False)
        error = self._models.look(caller.who, upload.name, upload.digest)
        return status_of(error)

    async def _receive(self, upload: Upload, parts: AsyncIterator[pb.OfferTokenizerRequest]) -> bool:
        """Write an upload's files; return False if another client was first. Raises OfferRefused."""
        loop = asyncio.get_running_loop()
        began_at, received, messages = loop.time(), 0, 0
        try:
            async with asyncio.timeout(STALLED_S) as limit:
                while received < upload.bytes:
                    data = (await anext(parts, pb.OfferTokenizerRequest())).data
                    received += len(data)
                    messages += 1
                    if not data:
                        raise OfferRefused("the engine could not read its tokenizer's files to the end: see its log")
                    if received > upload.bytes:
                        raise OfferRefused("the upload has more bytes than were offered")
                    if messages > SHORT_MESSAGES + received // LEAST_CHUNK_BYTES:
                        raise OfferRefused(f"send the files in messages of at least {LEAST_CHUNK_BYTES} bytes")
                    if not self._models.useful(upload):
                        return False
                    await loop.run_in_executor(self._models.disk, upload.write, data)
                    slowest = began_at + STALLED_S + received / MIN_BYTES_PER_S
                    limit.reschedule(min(loop.time() + STALLED_S, slowest))
            digest = await loop.run_in_executor(self._models.disk, upload.received_digest)
        except TimeoutError:
            raise OfferRefused("the upload was too slow: offer the tokenizer again") from None
        except OSError as error:
            raise OfferRefused(
                f"the sidecar cannot write to {tempfile.gettempdir()} ({error.strerror or error}): set TMPDIR to a writable "
                "folder with enough space"
            ) from error
        if digest != upload.digest:
            raise OfferRefused("the uploaded files do not have the offered digest: they have changed since the offer")
        return True


async def _offer_in(parts: AsyncIterator[pb.OfferTokenizerRequest]) -> pb.TokenizerOffer:
    """Return the offer in a call's first message. Raises InvalidRequest."""
    try:
        async with asyncio.timeout(STALLED_S):
            first = await anext(parts, pb.OfferTokenizerRequest())
    except TimeoutError:
        raise InvalidRequest(f"the offer did not arrive within {STALLED_S:g} s") from None
    if first.WhichOneof("part") != "offer":
        raise InvalidRequest("the first message of the call must be the offer")
    return first.offer


def _sizes_of(offer: pb.TokenizerOffer) -> dict[str, int]:
    """Return the bytes of each file of an offer; empty: there are no files. Raises OfferRefused: it is invalid or too large."""
    if not is_name(offer.served_model):
        raise OfferRefused(
            f"served_model is not a name of at most {MAX_NAME} printable characters: set LPC_SERVED_MODEL in the engine"
        )
    if (offer.digest or offer.files) and not is_digest(offer.digest):
        raise OfferRefused("the digest of the tokenizer is not 64 hexadecimal digits in lower case")
    sizes = {file.name: file.bytes for file in offer.files[: len(NAMES)]}
    total = sum(sizes.values())
    in_order = [name for name in NAMES if name in sizes]
    if offer.files and (len(offer.files) != len(sizes) or NEEDED not in sizes or list(sizes) != in_order):
        raise OfferRefused(f"the files of a tokenizer are, in this order, any of {', '.join(NAMES)}, with {NEEDED}")
    if total > MAX_BYTES:
        raise OfferRefused(
            f"the tokenizer has {total} bytes, this sidecar accepts {MAX_BYTES}: set its folder in LPC_SERVED_MODELS"
        )
    return sizes


def _counted(caller: Caller) -> bool:
    """Count an upload of a caller, unless there were too many within an hour."""
    return not caller.take("uploads", MAX_HOURLY / 3600, MAX_HOURLY)


def message_of(known: Known) -> pb.KnownTokenizer:
    """Return a tokenizer as a message of GetModelInfo."""
    status = pb.TokenizerStatus(state=_STATES[known.state], message=known.failure)
    return pb.KnownTokenizer(served_model=known.name, digest=known.digest, status=status, vocabulary=known.vocabulary)


def status_of(error: UnreadPrompt | None) -> pb.TokenizerStatus:
    """Return the status of a tokenizer with which a prompt could not be read; None: it could."""
    if error is None:
        return pb.TokenizerStatus(state=pb.TOKENIZER_STATE_READY)
    if isinstance(error, UnreadTemplate):
        return pb.TokenizerStatus(state=pb.TOKENIZER_STATE_READY, message=str(error))
    if isinstance(error, TokenizerFailed):
        return pb.TokenizerStatus(state=pb.TOKENIZER_STATE_FAILED, message=str(error))
    return pb.TokenizerStatus(state=pb.TOKENIZER_STATE_LOADING)
