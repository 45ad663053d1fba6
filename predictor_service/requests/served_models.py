"""Tokenizers of the models that engines serve: configured by the operator by name, or offered by engines by digest.

Each is loaded once, in the background, so that no request waits for it. Until it is loaded, and if loading fails, requests for
it fail at once; a failed load is repeated after RETRY_S. A configured tokenizer takes precedence over an offered one.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from predictor_service.errors import TokenizerFailed, TokenizerLoading, UnknownServedModel, UnreadPrompt
from predictor_service.requests.loading import TokenizerError, TokenizerLoader
from predictor_service.requests.offered import OfferedTokenizers, OfferRefused
from predictor_service.requests.served_model import ServedModel

log = logging.getLogger(__name__)

LOADERS: Final = 2
"""Tokenizers that are loaded concurrently, so that one that hangs does not block the next."""
RETRY_S: Final = 300.0
"""Time before a failed load is repeated. An offered tokenizer never changes, so each further failure multiplies it by four, up
to a day."""
MAX_LOADED: Final = 8
"""Offered tokenizers in memory, above which the least recently used is dropped."""
MAX_LOADED_TOKENS: Final = 2**20
"""Sum of their vocabularies; 262,144 tokens take 80 MB."""
MAX_LOADING: Final = 16
"""Offered tokenizers that are being loaded or queued for it."""
MAX_KNOWN: Final = 100
"""Offered tokenizers whose state is stored."""

State = Literal["ready", "loading", "failed"]
STATES: Final[tuple[State, ...]] = ("ready", "loading", "failed")


class Known(NamedTuple):
    """A tokenizer, configured or offered.

    Attributes:
        name: name of the served model.
        digest: digest of an offered tokenizer; empty: it is configured.
        failure: why loading failed; empty if it did not.
        vocabulary: all ids are below it; 0: it is not loaded.
    """

    name: str
    digest: str
    state: State
    failure: str
    vocabulary: int


@dataclass(eq=False, slots=True)
class _Entry:
    name: str
    digest: str
    source: str
    used_at: float
    model: ServedModel | None = None
    failure: str = ""
    failures: int = 0
    retry_at: float = 0.0

    @property
    def state(self) -> State:
        return "ready" if self.model is not None else "failed" if self.failure else "loading"


class ServedModels:
    """Finds the tokenizer of a request. Thread-safe; except :meth:`wait` no method blocks longer than an access to the disk.

    Args:
        paths: folder or hub name of the configured tokenizers, by served model.
        offered: storage of offered tokenizers; None: offers are disabled.
        loader: loads tokenizers; closed by :meth:`close`.
        clock: monotonic, seconds.
    """

    def __init__(
        self,
        paths: Mapping[str, str],
        offered: OfferedTokenizers | None = None,
        loader: TokenizerLoader | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.offered = offered
        self._loader = loader or TokenizerLoader()
        self._clock = clock
        self._lock = threading.Lock()
        self._one_offered = threading.Lock()
        """Held while an offered tokenizer is loaded: two at once could exceed the free memory."""
        self._threads = ThreadPoolExecutor(LOADERS, "load-tokenizer")
        self._configured = {name: _Entry(name, "", path, clock()) for name, path in paths.items()}
        self._offered: dict[str, _Entry] = {}
        self._loads = [load for entry in self._configured.values() if (load := self._begin(entry)) is not None]

    @property
    def names(self) -> list[str]:
        """Names of the configured models."""
        return sorted(self._configured)

    def get(self, name: str, digest: str = "") -> ServedModel:
        """Return a served model.

        Raises:
            UnknownServedModel: its tokenizer is neither configured nor offered.
            TokenizerLoading: the tokenizer is being received or loaded.
            TokenizerFailed: the tokenizer cannot be loaded.
        """
        with self._lock:
            entry = self._configured.get(name) or self._find(name, digest)
            if entry is None:
                raise self._absent(name, digest)
            entry.used_at = self._clock()
            if entry.model is not None:
                return entry.model
            if not entry.failure:
                raise TokenizerLoading(f"the tokenizer of served model {name[:100]} is being loaded: try again in some seconds")
            failure = entry.failure
            if entry.used_at >= entry.retry_at:
                entry.failure = ""
                self._begin(entry)
        raise TokenizerFailed(failure)

    def look(self, name: str, digest: str) -> UnreadPrompt | None:
        """Return why token ids of a model cannot be read; None: they can."""
        try:
            self.get(name, digest)
        except UnreadPrompt as error:
            return error
        return None

    def known(self) -> list[Known]:
        """Return all known tokenizers: the configured ones, then the offered ones, most recently used first."""
        with self._lock:
            offered = sorted(self._offered.values(), key=lambda entry: -entry.used_at)
            return [
                Known(e.name, e.digest, e.state, e.failure, 0 if e.model is None else e.model.vocabulary)
                for e in (*self._configured.values(), *offered)
            ]

    def count(self, state: str) -> int:
        """Return the number of tokenizers in a state."""
        return sum(known.state == state for known in self.known())

    def wait(self, timeout: float) -> None:
        """Wait until all configured tokenizers are loaded or have failed, at most ``timeout`` seconds."""
        if wait(self._loads, timeout).not_done:
            log.warning("some tokenizers of LPC_SERVED_MODELS are still loading: until then their prompts cannot be read")

    def close(self) -> None:
        """Stop loading."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._loader.close()

    # The lock must be held in the methods below.

    def _find(self, name: str, digest: str) -> _Entry | None:
        entry = self._offered.get(digest)
        if entry is None and self.offered is not None and (folder := self.offered.find(digest)) is not None:
            if sum(other.state == "loading" for other in self._offered.values()) >= MAX_LOADING:
                raise TokenizerLoading("other tokenizers are being loaded: try again in a minute")
            entry = self._offered[digest] = _Entry(name, digest, str(folder), self._clock())
            for old in list(self._least_recent_first())[: max(len(self._offered) - MAX_KNOWN, 0)]:
                del self._offered[old.digest]
            self._begin(entry)
        return entry

    def _drop_unused(self) -> None:
        """Drop the least recently used offered tokenizers above MAX_LOADED and MAX_LOADED_TOKENS."""
        loaded = [(e, e.model.vocabulary) for e in self._least_recent_first() if e.model is not None]
        tokens = sum(vocabulary for _, vocabulary in loaded)
        for n, (old, vocabulary) in enumerate(loaded[:-1]):
            if len(loaded) - n > MAX_LOADED or tokens > MAX_LOADED_TOKENS:
                del self._offered[old.digest]
                tokens -= vocabulary

    def _least_recent_first(self) -> Iterator[_Entry]:
        yield from sorted((e for e in self._offered.values() if e.state != "loading"), key=lambda entry: entry.used_at)

    def _absent(self, name: str, digest: str) -> UnreadPrompt:
        if self.offered is not None and self.offered.receives(digest):
            return TokenizerLoading(f"the tokenizer of served model {name[:100]} is being received: try again in some seconds")
        known = ", ".join(self.names) or "none"
        return UnknownServedModel(
            f"no tokenizer is configured for the served model {name[:100]!r} (configured: {known}), and none has been offered: "
            "let its engine's plug-in offer one, or set served_models / LPC_SERVED_MODELS in the sidecar"
        )

    def _begin(self, entry: _Entry) -> Future[None] | None:
        with suppress(RuntimeError):  # closed
            return self._threads.submit(self._load, entry)
        return None

    def _load(self, entry: _Entry) -> None:
        model, failure = None, ""
        name, origin = entry.name[:100], f"tokenizer {entry.digest[:12]}, from its engine" if entry.digest else entry.source
        if entry.digest and self.offered is not None and not self.offered.intact(entry.digest):
            with self._lock:
                self._offered.pop(entry.digest, None)
            return
        try:
            if entry.digest and self.offered is not None:
                with self._one_offered, self.offered.attempt(entry.digest):
                    loaded = self._loader.load(entry.source, offered=True)
            else:
                loaded = self._loader.load(entry.source, offered=False)
            model = ServedModel(name, loaded.backend, loaded.markup, loaded.lengths)
        except (TokenizerError, OfferRefused) as error:
            failure = f"the tokenizer of served model {name} cannot be loaded from {entry.source}: {error}"
        except Exception as error:  # record any failure, so that not every request repeats the load
            failure = f"the tokenizer of served model {name} cannot be loaded from {entry.source}: {type(error).__name__}"
        with self._lock:
            entry.model, entry.failure = model, failure
            entry.failures += model is None
            wait_s = RETRY_S * 4 ** min(entry.failures - 1, 4) if entry.digest else RETRY_S
            entry.retry_at = self._clock() + wait_s
            self._drop_unused()
        if model is None:
            log.error("%s. Its prompts cannot be read. Tried again after %g s; or set LPC_SERVED_MODELS", failure, wait_s)
        elif model.markup is None:
            log.warning("served model %s has no usable chat template: its prompts count as one user turn", name)
        if model is not None:
            log.info("prompts of served model %s can be read (%s)", name, origin)
