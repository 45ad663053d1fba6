"""Tokenizers of the models that engines serve: configured by the operator by name, or offered by engines by digest.

Each is loaded once, in the background, so that no request waits for it. Until it is loaded, and if loading fails, requests for
it fail at once. A failed load of a configured tokenizer is repeated after RETRY_S; an offered one is accepted again then.
Offered tokenizers are stored in memory only: engines send them again to a restarted sidecar. A configured one takes precedence.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from predictor_service.errors import TokenizerFailed, TokenizerLoading, UnknownServedModel, UnreadPrompt
from predictor_service.requests.loading import TokenizerError, TokenizerLoader
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
MAX_LOADING: Final = 4
"""Offered tokenizers that are being received or loaded."""
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
    """Finds the tokenizer of a request. Thread-safe; except :meth:`wait` no method blocks.

    Args:
        paths: folder or hub name of the configured tokenizers, by served model.
        loader: loads tokenizers; closed by :meth:`close`.
        clock: monotonic, seconds.
    """

    def __init__(
        self, paths: Mapping[str, str], loader: TokenizerLoader | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
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
            entry = self._configured.get(name) or self._offered.get(digest)
            if entry is None:
                raise self._unknown(name)
            entry.used_at = self._clock()
            if entry.model is not None:
                return entry.model
            if not entry.failure:
                raise TokenizerLoading(f"the tokenizer of served model {name[:100]} is being loaded: try again in some seconds")
            failure = entry.failure
            if entry.used_at >= entry.retry_at and not entry.digest:
                entry.failure = ""
                self._begin(entry)
        raise TokenizerFailed(failure)

    def look(self, name: str, digest: str) -> UnreadPrompt | None:
        """Return why token ids of a model cannot be read; None: they can. UnknownServedModel: it may be sent (again)."""
        try:
            self.get(name, digest)
        except UnreadPrompt as error:
            with self._lock:
                entry = None if name in self._configured else self._offered.get(digest)
                if isinstance(error, TokenizerFailed) and entry is not None and self._clock() >= entry.retry_at:
                    return self._unknown(name)
            return error
        return None

    @property
    def has_room(self) -> bool:
        """Whether another offered tokenizer may be received."""
        with self._lock:
            return sum(entry.state == "loading" for entry in self._offered.values()) < MAX_LOADING

    def expect(self, name: str, digest: str) -> None:
        """Note that a tokenizer, unknown or failed, is being received. :meth:`received` or :meth:`give_up` follows."""
        with self._lock:
            known = self._offered.get(digest)
            failures = 0 if known is None else known.failures
            self._offered[digest] = _Entry(name, digest, "", self._clock(), failures=failures)
            for old in self._least_recent_first()[: max(len(self._offered) - MAX_KNOWN, 0)]:
                del self._offered[old.digest]

    def give_up(self, digest: str) -> None:
        """Note that an expected tokenizer was not received."""
        with self._lock:
            self._offered.pop(digest, None)

    def received(self, digest: str, folder: Path) -> None:
        """Load a received tokenizer from a folder, in the background, and delete the folder."""
        with self._lock:
            entry = self._offered[digest]
            entry.source = str(folder)
            if self._begin(entry) is None:
                shutil.rmtree(folder, ignore_errors=True)

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

    # The lock must be held in the methods below, except `_load`.

    def _drop_unused(self) -> None:
        """Drop the least recently used offered tokenizers above MAX_LOADED and MAX_LOADED_TOKENS."""
        loaded = [(e, e.model.vocabulary) for e in self._least_recent_first() if e.model is not None]
        tokens = sum(vocabulary for _, vocabulary in loaded)
        for n, (old, vocabulary) in enumerate(loaded[:-1]):
            if len(loaded) - n > MAX_LOADED or tokens > MAX_LOADED_TOKENS:
                del self._offered[old.digest]
                tokens -= vocabulary

    def _least_recent_first(self) -> list[_Entry]:
        return sorted((e for e in self._offered.values() if e.state != "loading"), key=lambda entry: entry.used_at)

    def _unknown(self, name: str) -> UnknownServedModel:
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
        name, origin = entry.name[:100], "its engine" if entry.digest else entry.source
        try:
            if entry.digest:
                with self._one_offered:
                    loaded = self._loader.load(entry.source, offered=True)
            else:
                loaded = self._loader.load(entry.source, offered=False)
            model = ServedModel(name, loaded.backend, loaded.markup, loaded.lengths)
        except TokenizerError as error:
            failure = f"the tokenizer of served model {name} cannot be loaded from {origin}: {error}"
        except Exception as error:  # record any failure, so that not every request repeats the load
            failure = f"the tokenizer of served model {name} cannot be loaded from {origin}: {type(error).__name__}"
        finally:
            if entry.digest:
                shutil.rmtree(entry.source, ignore_errors=True)
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
            log.info("prompts of served model %s can be read (tokenizer from %s)", name, origin)
