"""Tokenizers that engines offer, by digest: their uploads, the order in which they are loaded, and which stay in memory.

No client can keep a tokenizer from others:

- A client has one upload at a time, from its offer until the tokenizer is loaded. So the queue before the loader, first come
  first served, has at most one of each client.
- Several clients may upload one digest. The first complete and valid upload is loaded; the others end.
- A client whose upload or load fails may not begin another one for PENALTY times the time that it took.
- If too many tokenizers are in memory, the client with the most loses its least recently used one.

They are stored in memory only: engines send them again to a restarted sidecar.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from lpc.errors import LpcError
from lpc.wire.tokenizer_files import MAX_BYTES
from predictor_service.errors import TokenizerFailed, TokenizerLoading
from predictor_service.requests.loading import LoaderClosed, TokenizerError, TokenizerLoader
from predictor_service.requests.served_model import ServedModel
from predictor_service.requests.upload import Upload

log = logging.getLogger(__name__)

RETRY_S: Final = 300.0
"""Time before a failed load is repeated. An offered tokenizer never changes, so each further failure multiplies it by four, up
to a day."""
MAX_LOADED: Final = 8
"""Offered tokenizers in memory."""
MAX_LOADED_TOKENS: Final = 2**20
"""Sum of their vocabularies; 262,144 tokens take 80 MB."""
MAX_UPLOADED: Final = 4 * MAX_BYTES
"""Bytes of all uploads on the disk: received, waiting and being loaded."""
LEAST_UPLOAD: Final = MAX_BYTES // 8
"""A smaller upload counts as this many bytes, which bounds the number of uploads at a time."""
MAX_FAILED: Final = 100
"""Offered tokenizers that could not be loaded and are remembered."""
MAX_CLIENTS: Final = 100
"""Clients of one tokenizer that are remembered."""
ALONE_S: Final = 3.0
"""Time for which an upload is the only one of its digest: a fleet that starts should not send its tokenizer many times."""
PENALTY: Final = 4.0
FREE_S: Final = 1.0
"""Shorter failures are not punished: a client may be a whole fleet, of which one engine restarts."""

State = Literal["ready", "loading", "failed"]


class OfferWaits(LpcError):
    """An offered tokenizer is not accepted now, but later. The message contains the reason."""


class Known(NamedTuple):
    """A tokenizer, configured or offered.

    Attributes:
        name: name of the served model.
        digest: digest of an offered tokenizer; empty: it is configured.
        failure: why loading failed, or what of its prompts is not read; empty: nothing.
        vocabulary: all ids are below it; 0: it is not loaded.
    """

    name: str
    digest: str
    state: State
    failure: str
    vocabulary: int


@dataclass(eq=False, slots=True)
class _Entry:
    """A tokenizer that was loaded or has failed. ``names``: of the served model, by client; never empty."""

    digest: str
    used_at: float = 0.0
    model: ServedModel | None = None
    failure: str = ""
    failures: int = 0
    retry_at: float = 0.0
    names: dict[str, str] = field(default_factory=dict)

    @property
    def vocabulary(self) -> int:
        return 0 if self.model is None else self.model.vocabulary


class OfferedTokenizers:
    """Thread-safe; no method blocks.

    Attributes:
        disk: runs all work on the files of uploads, in order.

    Args:
        loader: loads tokenizers.
        clock: monotonic, seconds.
    """

    def __init__(self, loader: TokenizerLoader, clock: Callable[[], float]) -> None:
        self._loader = loader
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._uploads: dict[str, Upload] = {}
        """By client."""
        self._rest_until: dict[str, float] = {}
        """By client, of those that may not begin an upload."""
        self.disk = ThreadPoolExecutor(1, "write-tokenizer")
        # One thread, because two loads at once could exceed the free memory.
        self._loads = ThreadPoolExecutor(1, "load-offered")

    @property
    def uploading(self) -> int:
        """Bytes on the disk that are reserved for uploads."""
        with self._lock:
            return self._reserved()

    def get(self, name: str, digest: str) -> ServedModel | None:
        """Return a tokenizer; None: it is unknown. Raises TokenizerLoading, TokenizerFailed. ``name``: for the message."""
        with self._lock:
            entry = self._entries.get(digest)
            if entry is not None and entry.model is not None:
                entry.used_at = self._clock()
                return entry.model
            if any(upload.digest == digest for upload in self._uploads.values()):
                raise TokenizerLoading(f"the tokenizer of served model {name} is being loaded: try again in some seconds")
            if entry is None:
                return None
            entry.used_at = self._clock()
            raise TokenizerFailed(_failure(name, entry.failure))

    def needs(self, client: str, name: str, digest: str) -> bool:
        """Return whether an upload of a tokenizer may help; note that this client has offered it."""
        with self._lock:
            entry = self._entries.get(digest)
            if entry is not None:
                _note(entry, client, name)
            return self._needs(digest)

    def begin(self, client: str, name: str, digest: str, sizes: Mapping[str, int]) -> Upload:
        """Begin an upload; :meth:`received` or :meth:`abandon` must follow. Raises OfferWaits."""
        with self._lock:
            now = self._clock()
            if client in self._uploads:
                raise OfferWaits(f"another tokenizer of client {client} is being received or loaded")
            rest_s = self._rest_until.get(client, now) - now
            if rest_s > 0:
                raise OfferWaits(f"a tokenizer of client {client} has failed: its next one is accepted in {rest_s:.0f} s")
            if any(one.digest == digest and now < one.began_at + ALONE_S for one in self._uploads.values()):
                raise OfferWaits("another client sends this tokenizer")
            upload = Upload(client, name, digest, sizes, now, self._loader.scratch)
            if self._reserved() + _weight(upload) > MAX_UPLOADED:
                raise OfferWaits("other clients send as many tokenizers as this sidecar receives at a time")
            self._uploads[client] = upload
            return upload

    def useful(self, upload: Upload) -> bool:
        """Return whether an upload is still needed: no other one of its digest has arrived."""
        with self._lock:
            return self._needs(upload.digest)

    def received(self, upload: Upload) -> None:
        """Queue a complete, valid upload for loading; if another one of its digest was first, end it."""
        with self._lock:
            upload.whole = self._needs(upload.digest)
        if upload.whole:
            with suppress(RuntimeError):  # closed
                self._loads.submit(self._load, upload)
                return
        self.abandon(upload, punish=False)

    def abandon(self, upload: Upload, *, punish: bool) -> "Future[None]":
        """End an upload that is not loaded, in the background. ``punish``: let its client wait for the time that it took."""
        if punish:
            with self._lock:
                self._punish(upload.client, self._clock() - upload.began_at)
        try:
            return self.disk.submit(self._end, upload)
        except RuntimeError:  # closed
            self._end(upload)
            done: Future[None] = Future()
            done.set_result(None)
            return done

    def known(self, client: str) -> list[Known]:
        """Return all offered tokenizers: ready ones, most recently used first, then those on their way, then failed ones.

        Args:
            client: whose names are returned; for a tokenizer that it has not offered, the name of another client.
        """
        with self._lock:
            entries = sorted(self._entries.values(), key=lambda entry: -entry.used_at)
            ready = [_known(entry, client) for entry in entries if entry.model is not None]
            names = {upload.digest: upload.name for upload in self._uploads.values() if self._is_loading(upload.digest)}
            if (own := self._uploads.get(client)) is not None and own.digest in names:
                names[own.digest] = own.name
            loading = [Known(name, digest, "loading", "", 0) for digest, name in names.items()]
            failed = [_known(entry, client) for entry in entries if entry.failure and entry.digest not in names]
            return [*ready, *loading, *failed]

    def close(self) -> None:
        """Stop loading."""
        self._loads.shutdown(wait=False, cancel_futures=True)
        self.disk.shutdown()  # within milliseconds: it only deletes what was being received

    def _load(self, upload: Upload) -> None:
        began_at = self._clock()
        model, failure, short = None, "", upload.digest[:12]
        try:
            loaded = self._loader.load(str(upload.folder), offered=True)
            model = ServedModel(f"the offered tokenizer {short}", loaded.backend, loaded.markup, loaded.lengths)
        except LoaderClosed:
            self._end(upload)
            return
        except TokenizerError as error:
            failure = str(error)
        except Exception as error:  # record any failure, so that not every offer repeats the load
            failure = type(error).__name__
        took_s = self._clock() - began_at
        # Before the outcome is visible, so that a client that sees it can begin its next upload.
        upload.delete()
        with self._lock:
            entry = self._entries.setdefault(upload.digest, _Entry(upload.digest))
            _note(entry, upload.client, upload.name)
            entry.used_at = self._clock()
            entry.model, entry.failure = model, failure
            if model is None:
                entry.failures += 1
                entry.retry_at = entry.used_at + RETRY_S * 4 ** min(entry.failures - 1, 4)
                self._punish(upload.client, took_s)
            del self._uploads[upload.client]
            self._drop()
        if model is None:
            log.error(
                "%s. Its prompts cannot be read. The tokenizer is accepted again after %g s; or set LPC_SERVED_MODELS",
                _failure(upload.name, failure),
                entry.retry_at - entry.used_at,
            )
            return
        if model.unread:
            log.warning("prompts of served model %s are read in part: %s", upload.name, model.unread)
            return
        if model.markup is None:
            log.warning("served model %s has no usable chat template: its prompts count as one user turn", upload.name)
        log.info("prompts of served model %s can be read (tokenizer %s from client %s)", upload.name, short, upload.client)

    def _end(self, upload: Upload) -> None:
        upload.delete()
        with self._lock:
            del self._uploads[upload.client]

    # The lock must be held in the methods below.

    def _reserved(self) -> int:
        return sum(map(_weight, self._uploads.values()))

    def _is_loading(self, digest: str) -> bool:
        entry = self._entries.get(digest)
        return (entry is None or entry.model is None) and any(one.digest == digest for one in self._uploads.values())

    def _needs(self, digest: str) -> bool:
        entry = self._entries.get(digest)
        if entry is not None and (entry.model is not None or self._clock() < entry.retry_at):
            return False
        return not any(one.whole and one.digest == digest for one in self._uploads.values())

    def _punish(self, client: str, seconds: float) -> None:
        now = self._clock()
        self._rest_until = {one: until for one, until in self._rest_until.items() if until > now}
        if seconds > FREE_S:
            self._rest_until[client] = now + PENALTY * seconds

    def _drop(self) -> None:
        """Drop tokenizers above the limits."""
        ready = [entry for entry in self._entries.values() if entry.model is not None]
        while len(ready) > MAX_LOADED:
            self._drop_first(ready, lambda _: 1)
        while sum(entry.vocabulary for entry in ready) > MAX_LOADED_TOKENS and len(ready) > 1:
            self._drop_first(ready, lambda entry: entry.vocabulary)
        failed = [entry for entry in self._entries.values() if entry.model is None]
        while len(failed) > MAX_FAILED:
            self._drop_first(failed, lambda _: 1)

    def _drop_first(self, entries: list[_Entry], size: Callable[[_Entry], int]) -> None:
        first = first_to_go(entries, size)
        entries.remove(first)
        del self._entries[first.digest]


def first_to_go(entries: Iterable[_Entry], size: Callable[[_Entry], int]) -> _Entry:
    """Return the tokenizer to drop: the least recently used one of the client that has the most.

    A tokenizer's rank is the size of those that its client has used since, itself included. With several clients the lowest
    rank counts, so that a client cannot push out a tokenizer by offering it as well.
    """
    used: Counter[str] = Counter()
    ranks: list[tuple[int, _Entry]] = []
    for entry in sorted(entries, key=lambda entry: -entry.used_at):
        for client in entry.names:
            used[client] += size(entry)
        ranks.append((min(used[client] for client in entry.names), entry))
    return max(reversed(ranks), key=lambda ranked: ranked[0])[1]


def _weight(upload: Upload) -> int:
    return max(upload.bytes, LEAST_UPLOAD)


def _note(entry: _Entry, client: str, name: str) -> None:
    """Note a client's name of a tokenizer; of more than MAX_CLIENTS the oldest is dropped."""
    entry.names.pop(client, None)
    entry.names[client] = name
    if len(entry.names) > MAX_CLIENTS:
        del entry.names[next(iter(entry.names))]


def _known(entry: _Entry, client: str) -> Known:
    name = entry.names.get(client) or next(iter(entry.names.values()))
    failure = _failure(name, entry.failure) if entry.failure else ""
    unread = "" if entry.model is None else entry.model.unread
    return Known(name, entry.digest, "failed" if failure else "ready", failure or unread, entry.vocabulary)


def _failure(name: str, reason: str) -> str:
    return f"the tokenizer of served model {name} cannot be loaded from its engine: {reason}"
