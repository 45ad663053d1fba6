"""The tokenizers of the models that engines serve: configured by the operator, or offered by the engines themselves.

Nobody ever waits for one. It is loaded in the background, once; until then, and where it cannot be loaded, asking for it is an
error at once, and it is tried again after RETRY_S. What an operator has configured under a name comes before what engines
offer, which is known by its digest: a caller with that digest has the same tokenizer.
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
"""Tokenizers that are loaded at a time: one that hangs does not hold up the next."""
RETRY_S: Final = 300.0
"""Seconds for which a tokenizer that could not be loaded is not tried again. An offered one never changes: after each further
failure this time is four times as long, up to a day."""
MAX_LOADED: Final = 8
"""Offered tokenizers held in memory; over it the one unused longest is dropped."""
MAX_LOADED_TOKENS: Final = 2**20
"""Of all of them: 262,144 take 80 MB."""
MAX_LOADING: Final = 16
"""Offered tokenizers that are loaded or wait for it."""
MAX_KNOWN: Final = 100
"""Offered tokenizers of which it is known whether they can be loaded."""

State = Literal["ready", "loading", "failed"]
STATES: Final[tuple[State, ...]] = ("ready", "loading", "failed")


class Known(NamedTuple):
    """A tokenizer, configured or offered.

    Attributes:
        name: of the served model.
        digest: empty where it is configured.
        failure: why it cannot be loaded.
        vocabulary: ids are below it; 0 while it is not loaded.
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
    """Finds the tokenizer of a request. Thread-safe; no method but :meth:`wait` takes longer than a look at the disk.

    Args:
        paths: served model name to the folder, or the hub's name, of its tokenizer.
        offered: where those lie that engines have offered; None: none are taken.
        loader: closed with this.
        clock: monotonic seconds.
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
        """Held while an offered tokenizer is loaded: each may take what memory the sidecar leaves."""
        self._threads = ThreadPoolExecutor(LOADERS, "load-tokenizer")
        self._configured = {name: _Entry(name, "", path, clock()) for name, path in paths.items()}
        self._offered: dict[str, _Entry] = {}
        self._begun = [begun for entry in self._configured.values() if (begun := self._begin(entry)) is not None]

    @property
    def names(self) -> list[str]:
        """The names that the operator has configured."""
        return sorted(self._configured)

    def get(self, name: str, digest: str = "") -> ServedModel:
        """Return a served model.

        Raises:
            UnknownServedModel: it is neither configured nor offered. TokenizerLoading: its tokenizer will be there.
            TokenizerFailed: that cannot be loaded.
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
        """Return why token ids of a model cannot be read; None where they can."""
        try:
            self.get(name, digest)
        except UnreadPrompt as error:
            return error
        return None

    def known(self) -> list[Known]:
        """Return all that are known, those configured first, then the latest used."""
        with self._lock:
            offered = sorted(self._offered.values(), key=lambda entry: -entry.used_at)
            return [
                Known(e.name, e.digest, e.state, e.failure, 0 if e.model is None else e.model.vocabulary)
                for e in (*self._configured.values(), *offered)
            ]

    def count(self, state: str) -> int:
        """Return how many are in a state."""
        return sum(known.state == state for known in self.known())

    def wait(self, timeout: float) -> None:
        """Wait until those that are configured are loaded or have failed, at most ``timeout`` seconds."""
        if wait(self._begun, timeout).not_done:
            log.warning("some tokenizers of LPC_SERVED_MODELS are still being loaded: until then their prompts are not read")

    def close(self) -> None:
        """Load nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._loader.close()

    # With the lock held.

    def _find(self, name: str, digest: str) -> _Entry | None:
        entry = self._offered.get(digest)
        if entry is None and self.offered is not None and (folder := self.offered.find(digest)) is not None:
            if sum(other.state == "loading" for other in self._offered.values()) >= MAX_LOADING:
                raise TokenizerLoading("other tokenizers are being loaded: try again in a minute")
            entry = self._offered[digest] = _Entry(name, digest, str(folder), self._clock())
            for old in list(self._unused_first())[: max(len(self._offered) - MAX_KNOWN, 0)]:
                del self._offered[old.digest]
            self._begin(entry)
        return entry

    def _drop_unused(self) -> None:
        """Drop the offered tokenizers unused longest, as far as they are more than may be held."""
        held = [(e, e.model.vocabulary) for e in self._unused_first() if e.model is not None]
        tokens = sum(vocabulary for _, vocabulary in held)
        for n, (old, vocabulary) in enumerate(held[:-1]):
            if len(held) - n > MAX_LOADED or tokens > MAX_LOADED_TOKENS:
                del self._offered[old.digest]
                tokens -= vocabulary

    def _unused_first(self) -> Iterator[_Entry]:
        yield from sorted((e for e in self._offered.values() if e.state != "loading"), key=lambda entry: entry.used_at)

    def _absent(self, name: str, digest: str) -> UnreadPrompt:
        if self.offered is not None and self.offered.receives(digest):
            return TokenizerLoading(f"the tokenizer of served model {name[:100]} is being received: try again in some seconds")
        known = ", ".join(self.names) or "none"
        return UnknownServedModel(
            f"no tokenizer is configured for the served model {name[:100]!r} (configured: {known}), and none that was offered "
            "is at hand: let its engine's plug-in offer one, or set served_models / LPC_SERVED_MODELS in the sidecar"
        )

    def _begin(self, entry: _Entry) -> Future[None] | None:
        with suppress(RuntimeError):  # closed
            return self._threads.submit(self._load, entry)
        return None

    # In a thread of its own.

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
        except Exception as error:  # whatever it is, it must not be tried at every request
            failure = f"the tokenizer of served model {name} cannot be loaded from {entry.source}: {type(error).__name__}"
        with self._lock:
            entry.model, entry.failure = model, failure
            entry.failures += model is None
            wait_s = RETRY_S * 4 ** min(entry.failures - 1, 4) if entry.digest else RETRY_S
            entry.retry_at = self._clock() + wait_s
            self._drop_unused()
        if model is None:
            log.error("%s. Its prompts are not read. Tried again after %g s; or set LPC_SERVED_MODELS", failure, wait_s)
        elif model.markup is None:
            log.warning("served model %s has no usable chat template: its prompts count as one user turn", name)
        if model is not None:
            log.info("prompts of served model %s are read (%s)", name, origin)
