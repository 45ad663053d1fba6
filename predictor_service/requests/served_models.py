"""Tokenizers of the models that engines serve: configured by the operator by name, or offered by engines by digest.

Each is loaded once, in the background, so that no request waits for it. Until it is loaded, and if loading fails, requests for
it fail at once. A configured tokenizer takes precedence over an offered one, and a failed load of it is repeated after RETRY_S.
Offered ones are stored in memory only: engines send them again to a restarted sidecar (`predictor_service.requests.uploads`).
If too many are in memory, the client with the most loses its least recently used one, so that no client can push out those of
others.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from predictor_service.errors import TokenizerFailed, TokenizerLoading, UnknownServedModel, UnreadPrompt, UnreadTemplate
from predictor_service.requests.loading import LoaderClosed, TokenizerError, TokenizerLoader
from predictor_service.requests.served_model import ServedModel
from predictor_service.requests.uploads import Upload, Uploads

log = logging.getLogger(__name__)

LOADERS: Final = 2
"""Configured tokenizers that are loaded concurrently, so that one that hangs does not block the next."""
MAX_LISTED: Final = 8
"""Configured names in an error message."""
RETRY_S: Final = 300.0
"""Time before a failed load is repeated. An offered tokenizer never changes, so each further failure multiplies it by four, up
to a day."""
MAX_LOADED: Final = 8
"""Offered tokenizers in memory."""
MAX_LOADED_TOKENS: Final = 2**20
"""Sum of their vocabularies; 262,144 tokens take 80 MB."""
MAX_FAILED: Final = 100
"""Offered tokenizers that could not be loaded and are remembered."""
MAX_CLIENTS: Final = 100
"""Clients of one tokenizer that are remembered."""

State = Literal["ready", "loading", "failed"]
STATES: Final[tuple[State, ...]] = ("ready", "loading", "failed")


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
    """A tokenizer. An offered one has been loaded or has failed; without model and failure a configured one is being loaded.

    Attributes:
        source: folder or hub name of a configured tokenizer.
        digest: digest of an offered tokenizer; empty: it is configured.
        names: names of the served model, by client; never empty.
        failure: reason.
    """

    source: str = "its engine"
    digest: str = ""
    names: dict[str, str] = field(default_factory=dict)
    used_at: float = 0.0
    model: ServedModel | None = None
    failure: str = ""
    failures: int = 0
    retry_at: float = 0.0

    @property
    def vocabulary(self) -> int:
        return 0 if self.model is None else self.model.vocabulary

    def note(self, client: str, name: str) -> None:
        """Note a client's name of the tokenizer; of more than MAX_CLIENTS the oldest is dropped."""
        self.names.pop(client, None)
        self.names[client] = name
        if len(self.names) > MAX_CLIENTS:
            del self.names[next(iter(self.names))]

    def failed(self, name: str) -> str:
        """Return the message of the failure for a client that calls the served model ``name``."""
        return f"the tokenizer of served model {name} cannot be loaded from {self.source[:256]}: {self.failure}"

    def known(self, client: str) -> Known:
        name = self.names.get(client) or next(iter(self.names.values()))
        if self.model is not None:
            return Known(name, self.digest, "ready", self.model.unread, self.vocabulary)
        if self.failure:
            return Known(name, self.digest, "failed", self.failed(name), 0)
        return Known(name, self.digest, "loading", "", 0)


class ServedModels:
    """Finds the tokenizer of a request. Thread-safe; except :meth:`wait` no method blocks.

    Attributes:
        disk: runs all work on the files of uploads, in order.

    Args:
        paths: folder or hub name of the configured tokenizers, by served model.
        loader: loads tokenizers; closed by :meth:`close`.
        clock: monotonic, seconds.
    """

    def __init__(
        self, paths: Mapping[str, str], loader: TokenizerLoader | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.loader = loader or TokenizerLoader()
        self._clock = clock
        self._lock = threading.Lock()
        self._uploads = Uploads(self.loader.scratch, clock)
        self._offered: dict[str, _Entry] = {}
        """Tokenizers by digest."""
        self.disk = ThreadPoolExecutor(1, "write-tokenizer")
        self._threads = ThreadPoolExecutor(LOADERS, "load-tokenizer")
        # A thread of its own, so that no offer delays a configured tokenizer; one, because two loads could exceed the memory.
        self._offer_thread = ThreadPoolExecutor(1, "load-offered")
        self._configured = {name: _Entry(path, names={"": name}) for name, path in paths.items()}
        self._loads = [load for name in self._configured if (load := self._begin(name)) is not None]

    @property
    def names(self) -> list[str]:
        """Names of the configured models."""
        return sorted(self._configured)

    @property
    def uploading(self) -> int:
        """Bytes on the disk that are reserved for uploads."""
        with self._lock:
            return self._uploads.bytes

    def get(self, name: str, digest: str = "") -> ServedModel:
        """Return a served model.

        Raises:
            UnknownServedModel: its tokenizer is neither configured nor offered.
            TokenizerLoading: the tokenizer is being received or loaded.
            TokenizerFailed: the tokenizer cannot be loaded.
        """
        with self._lock:
            configured = self._configured.get(name)
            entry = configured or self._offered.get(digest)
            if entry is not None:
                entry.used_at = self._clock()
                if entry.model is not None:
                    return entry.model
            loading = self._uploads.has(digest) if configured is None else not configured.failure
            if loading:
                raise TokenizerLoading(f"the tokenizer of served model {name} is being loaded: try again in some seconds")
            if entry is None:
                raise self._unknown(name)
            failure = entry.failed(name)
            if configured is not None and self._clock() >= configured.retry_at:
                configured.failure = ""
                self._begin(name)
        raise TokenizerFailed(failure)

    def look(self, client: str, name: str, digest: str) -> UnreadPrompt | None:
        """Return why token ids of a model cannot be read; None: they can. UnknownServedModel: it may be sent (again).

        Args:
            client: who offers the tokenizer.
        """
        if self.needs(client, name, digest):
            return self._unknown(name)
        try:
            model = self.get(name, digest)
        except UnreadPrompt as error:
            return error
        return UnreadTemplate(model.unread) if model.unread else None

    def known(self, client: str = "") -> list[Known]:
        """Return the configured tokenizers, then the offered ones: ready, most recently used first, loading, failed.

        Args:
            client: whose names are returned; for a tokenizer that it has not offered, the name of another client.
        """
        with self._lock:
            configured = [entry.known(client) for entry in self._configured.values()]
            entries = sorted(self._offered.values(), key=lambda entry: -entry.used_at)
            offered = {entry.digest: entry.known(client) for entry in entries}
            for digest, name in self._uploads.names(client).items():
                known = offered.pop(digest, None)  # a failed one that is tried again is the last, as all that are loading
                if known is None or known.state == "failed":
                    known = Known(name, digest, "loading", "", 0)
                offered[digest] = known
        return configured + sorted(offered.values(), key=lambda known: STATES.index(known.state))

    def count(self, state: str) -> int:
        """Return the number of tokenizers in a state."""
        return sum(known.state == state for known in self.known())

    def wait(self, timeout: float) -> None:
        """Wait until all configured tokenizers are loaded or have failed, at most ``timeout`` seconds."""
        if wait(self._loads, timeout).not_done:
            log.warning("some tokenizers of LPC_SERVED_MODELS are still loading: until then their prompts cannot be read")

    def close(self) -> None:
        """Stop loading."""
        for threads in (self._threads, self._offer_thread):
            threads.shutdown(wait=False, cancel_futures=True)
        self.disk.shutdown()  # within milliseconds: it only deletes what was being received
        self.loader.close()

    # Offers.

    def needs(self, client: str, name: str, digest: str) -> bool:
        """Return whether an upload of a tokenizer may help; note that this client has offered it."""
        if name in self._configured:
            return False
        with self._lock:
            if digest in self._offered:
                self._offered[digest].note(client, name)
            return self._needs(digest)

    def begin(self, client: str, name: str, digest: str, sizes: Mapping[str, int]) -> Upload:
        """Begin an upload; :meth:`received` or :meth:`abandon` must follow. Raises OfferWaits."""
        with self._lock:
            return self._uploads.begin(client, name, digest, sizes)

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
                self._offer_thread.submit(self._load, upload.name, upload)
                return
        self.abandon(upload, punish=False)

    def abandon(self, upload: Upload, *, punish: bool) -> "Future[None]":
        """End an upload that is not loaded, in the background. ``punish``: let its client wait for the time that it took."""
        if punish:
            with self._lock:
                self._uploads.punish(upload.client, self._clock() - upload.began_at)
        try:
            return self.disk.submit(self._end, upload)
        except RuntimeError:  # closed
            self._end(upload)
            done: Future[None] = Future()
            done.set_result(None)
            return done

    def _end(self, upload: Upload) -> None:
        upload.delete()
        with self._lock:
            self._uploads.end(upload)

    def _unknown(self, name: str) -> UnknownServedModel:
        names = self.names
        known = ", ".join(listed[:100] for listed in names[:MAX_LISTED]) or "none"
        if len(names) > MAX_LISTED:
            known += f" and {len(names) - MAX_LISTED} more"
        return UnknownServedModel(
            f"no tokenizer is configured for the served model {name[:100]!r} (configured: {known}), and none has been offered: "
            "let its engine's plug-in offer one, or set served_models / LPC_SERVED_MODELS in the sidecar"
        )

    def _begin(self, name: str) -> Future[None] | None:
        with suppress(RuntimeError):  # closed
            return self._threads.submit(self._load, name)
        return None

    def _load(self, name: str, upload: Upload | None = None) -> None:
        """Load the configured tokenizer of a served model, or an upload of it."""
        model, failure, began_at = None, "", self._clock()
        try:
            if upload is None:
                title, source = name, self._configured[name].source
                origin = f"from {source}"
            else:
                title, source = f"the offered tokenizer {upload.digest[:12]}", str(upload.folder)
                origin = f"{upload.digest[:12]} from client {upload.client}"
            loaded = self.loader.load(source, offered=upload is not None)
            model = ServedModel(title, loaded.backend, loaded.markup, loaded.lengths)
        except LoaderClosed:
            if upload is not None:
                self._end(upload)
            return
        except TokenizerError as error:
            failure = str(error)
        except Exception as error:  # record any failure, so that not every request or offer repeats the load
            failure = type(error).__name__
        took_s = self._clock() - began_at
        if upload is not None:
            # Before the outcome is visible, so that a client that sees it can begin its next upload.
            upload.delete()
        with self._lock:
            now = self._clock()
            if upload is None:
                entry, retry_s = self._configured[name], RETRY_S
            else:
                entry = self._offered.setdefault(upload.digest, _Entry(digest=upload.digest))
                entry.note(upload.client, name)
                entry.used_at, retry_s = now, RETRY_S * 4 ** min(entry.failures, 4)
            entry.model, entry.failure = model, failure
            if model is None:
                entry.failures, entry.retry_at = entry.failures + 1, now + retry_s
            if upload is not None:
                if model is None:
                    self._uploads.punish(upload.client, took_s)
                self._uploads.end(upload)
                self._drop()
        if model is None:
            again = "Tried again" if upload is None else "The tokenizer is accepted again"
            log.error(
                "%s. Its prompts cannot be read. %s after %g s; or set LPC_SERVED_MODELS", entry.failed(name), again, retry_s
            )
            return
        if model.unread:
            log.warning("prompts of served model %s are read in part: %s", name, model.unread)
            return
        if model.markup is None:
            log.warning("served model %s has no usable chat template: its prompts count as one user turn", name)
        log.info("prompts of served model %s can be read (tokenizer %s)", name, origin)

    # The lock must be held in the methods below.

    def _needs(self, digest: str) -> bool:
        entry = self._offered.get(digest)
        if entry is not None and (entry.model is not None or self._clock() < entry.retry_at):
            return False
        return not self._uploads.has(digest, whole=True)

    def _drop(self) -> None:
        """Drop offered tokenizers above the limits."""
        ready = [entry for entry in self._offered.values() if entry.model is not None]
        while len(ready) > MAX_LOADED:
            self._drop_one(ready, lambda _: 1)
        while sum(entry.vocabulary for entry in ready) > MAX_LOADED_TOKENS and len(ready) > 1:
            self._drop_one(ready, lambda entry: entry.vocabulary)
        failed = [entry for entry in self._offered.values() if entry.model is None]
        while len(failed) > MAX_FAILED:
            self._drop_one(failed, lambda _: 1)

    def _drop_one(self, entries: list[_Entry], size: Callable[[_Entry], int]) -> None:
        """Drop the least recently used tokenizer of the client that has the most.

        One with several clients counts for the one that has the least, so that a client cannot push out a tokenizer by offering
        it as well.
        """
        held: Counter[str] = Counter()
        for entry in entries:
            held.update(dict.fromkeys(entry.names, size(entry)))
        shares = {entry.digest: min(held[client] for client in entry.names) for entry in entries}
        first = min(entries, key=lambda entry: (-shares[entry.digest], entry.used_at))
        entries.remove(first)
        del self._offered[first.digest]
