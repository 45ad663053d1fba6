"""Answers offers of tokenizers, and receives those that are not known."""

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeAlias

from lpc.errors import InvalidRequest, LpcError
from lpc.v1 import predictor_pb2 as pb
from lpc.wire.tokenizer_files import MAX_BYTES, NAMES, NEEDED, digest_of
from predictor_service.errors import TokenizerFailed, UnknownServedModel, UnreadPrompt
from predictor_service.metrics import Metrics
from predictor_service.requests.served_models import Known, ServedModels, State
from predictor_service.rpc.callers import Bucket, Caller

STALLED_S: Final = 30.0
"""Time without data after which an upload is abandoned, so that another engine can send the tokenizer."""
MIN_BYTES_PER_S: Final = 256 * 2**10
"""Minimum mean rate of an upload, after an allowance of STALLED_S."""
MAX_HOURLY: Final = 32
"""Uploads that one caller may begin within an hour."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")

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
        self._sending: set[str] = set()
        """Callers whose upload is in progress."""

    async def answer(self, parts: AsyncIterator[pb.OfferTokenizerRequest], caller: Caller) -> pb.TokenizerStatus:
        """Return the state of an offered tokenizer; receive it first if it is not known.

        ``parts``: the offer, then the bytes of its files. Raises InvalidRequest: the first message is not an offer.
        """
        first = await anext(parts, pb.OfferTokenizerRequest())
        if first.WhichOneof("part") != "offer":
            raise InvalidRequest("the first message of the call must be the offer")
        offer = first.offer
        error = self._models.look(offer.served_model, offer.digest)
        if not isinstance(error, UnknownServedModel):
            self._metrics.tokenizer_offers.labels("known").inc()
            return _status(error)
        try:
            if not self._accepted or not offer.files:
                raise OfferRefused(str(error))
            sizes = _sizes_of(offer)
            if caller.name in self._sending or not self._models.has_room:
                return pb.TokenizerStatus(state=pb.TOKENIZER_STATE_LOADING)
            _count(caller)
        except OfferRefused as refusal:
            self._metrics.tokenizer_offers.labels("refused").inc()
            return pb.TokenizerStatus(state=pb.TOKENIZER_STATE_REFUSED, message=str(refusal))
        self._models.expect(offer.served_model, offer.digest)
        self._sending.add(caller.name)
        folder = None
        try:
            folder = await _receive(offer.digest, sizes, parts)
        except OfferRefused as refusal:
            self._metrics.tokenizer_offers.labels("damaged").inc()
            return pb.TokenizerStatus(state=pb.TOKENIZER_STATE_REFUSED, message=str(refusal))
        finally:
            self._sending.discard(caller.name)
            if folder is None:
                self._models.give_up(offer.digest)
        self._metrics.tokenizer_offers.labels("received").inc()
        self._models.received(offer.digest, folder)
        return _status(self._models.look(offer.served_model, offer.digest))


def _sizes_of(offer: pb.TokenizerOffer) -> dict[str, int]:
    """Return the bytes of each file of an offer. Raises OfferRefused: it is invalid or too large."""
    sizes = {file.name: file.bytes for file in offer.files[: len(NAMES) + 1]}
    total = sum(sizes.values())
    if not _DIGEST.fullmatch(offer.digest):
        raise OfferRefused("the digest of the tokenizer is not 64 hexadecimal digits in lower case")
    if NEEDED not in sizes or list(sizes) != [name for name in NAMES if name in sizes]:
        raise OfferRefused(f"the files of a tokenizer are, in this order, any of {', '.join(NAMES)}, with {NEEDED}")
    if total > MAX_BYTES:
        raise OfferRefused(
            f"the tokenizer has {total} bytes, this sidecar accepts {MAX_BYTES}: set its folder in LPC_SERVED_MODELS"
        )
    return sizes


def _count(caller: Caller) -> None:
    """Count an upload of a caller. Raises OfferRefused: there were too many."""
    if caller.uploads is None:
        caller.uploads = Bucket(MAX_HOURLY / 3600, holds=MAX_HOURLY)
    if caller.uploads.take(1):
        raise OfferRefused(f"client {caller.name} has sent {MAX_HOURLY} tokenizers within an hour: offer this one again later")


async def _receive(digest: str, sizes: dict[str, int], parts: AsyncIterator[pb.OfferTokenizerRequest]) -> Path:
    """Return a new folder with the uploaded files. Raises OfferRefused."""
    total, data = sum(sizes.values()), bytearray()
    try:
        async with asyncio.timeout(STALLED_S + total / MIN_BYTES_PER_S):
            while len(data) < total:
                part = await asyncio.wait_for(anext(parts, pb.OfferTokenizerRequest()), STALLED_S)
                if not part.data:
                    raise OfferRefused("the engine could not read its tokenizer's files to the end: see its log")
                data += part.data
    except TimeoutError:
        raise OfferRefused("the upload was too slow: offer the tokenizer again") from None
    if len(data) > total:
        raise OfferRefused("the upload has more bytes than were offered")
    return await asyncio.to_thread(_write, digest, sizes, data)


def _write(digest: str, sizes: dict[str, int], data: bytearray) -> Path:
    """Write an upload's files into a new folder of this user, and return it. Raises OfferRefused."""
    files: dict[str, memoryview] = {}
    rest = memoryview(data)
    for name, size in sizes.items():
        files[name], rest = rest[:size], rest[size:]
    if digest_of({name: sha256(content).hexdigest() for name, content in files.items()}) != digest:
        raise OfferRefused("the uploaded files do not have the offered digest: they have changed since the offer")
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="lpc-offered-"))
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise OfferRefused(
            f"the sidecar cannot write to {tempfile.gettempdir()} ({error.strerror}): set TMPDIR to a writable folder with "
            "enough space"
        ) from error
    return folder


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
