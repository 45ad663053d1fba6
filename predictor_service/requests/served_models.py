"""Tokenizers of the models that engines serve: configured by the operator by name, or offered by engines by digest.

Each is loaded once, in the background, so that no request waits for it. Until it is loaded, and if loading fails, requests for
it fail at once. A failed load of a configured tokenizer is repeated after RETRY_S. A configured tokenizer takes precedence over
an offered one (`predictor_service.requests.offered`).
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from predictor_service.errors import TokenizerFailed, TokenizerLoading, UnknownServedModel, UnreadPrompt, UnreadTemplate
from predictor_service.requests.loading import LoaderClosed, TokenizerError, TokenizerLoader
from predictor_service.requests.offered import RETRY_S, Known, OfferedTokenizers, State
from predictor_service.requests.served_model import ServedModel

log = logging.getLogger(__name__)

LOADERS: Final = 2
"""Configured tokenizers that are loaded concurrently, so that one that hangs does not block the next."""
MAX_LISTED: Final = 8
"""Configured names in an error message."""

STATES: Final[tuple[State, ...]] = ("ready", "loading", "failed")


@dataclass(eq=False, slots=True)
class _Entry:
    name: str
    source: str
    model: ServedModel | None = None
    failure: str = ""
    retry_at: float = 0.0

    @property
    def state(self) -> State:
        return "ready" if self.model is not None else "failed" if self.failure else "loading"


class ServedModels:
    """Finds the tokenizer of a request. Thread-safe; except :meth:`wait` no method blocks.

    Attributes:
        offered: the tokenizers that engines have offered.

    Args:
        paths: folder or hub name of the configured tokenizers, by served model.
        loader: loads tokenizers; closed by :meth:`close`.
        clock: monotonic, seconds.
    """

    def __init__(
        self, paths: Mapping[str, str], loader: TokenizerLoader | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._loader = loader or TokenizerLoader()
        self.offered = OfferedTokenizers(self._loader, clock)
        self._clock = clock
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(LOADERS, "load-tokenizer")
        self._configured = {name: _Entry(name, path) for name, path in paths.items()}
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
        entry = self._configured.get(name)
        if entry is None:
            model = self.offered.get(name, digest)
            if model is None:
                raise self._unknown(name)
            return model
        with self._lock:
            if entry.model is not None:
                return entry.model
            if not entry.failure:
                raise TokenizerLoading(f"the tokenizer of served model {name} is being loaded: try again in some seconds")
            failure = entry.failure
            if self._clock() >= entry.retry_at:
                entry.failure = ""
                self._begin(entry)
        raise TokenizerFailed(failure)

    def look(self, client: str, name: str, digest: str) -> UnreadPrompt | None:
        """Return why token ids of a model cannot be read; None: they can. UnknownServedModel: it may be sent (again).

        Args:
            client: who offers the tokenizer.
        """
        if name not in self._configured and self.offered.needs(client, name, digest):
            return self._unknown(name)
        try:
            model = self.get(name, digest)
        except UnreadPrompt as error:
            return error
        return UnreadTemplate(model.unread) if model.unread else None

    def known(self, client: str = "") -> list[Known]:
        """Return all known tokenizers: the configured ones, then the offered ones. ``client``: whose names are returned."""
        with self._lock:
            configured = [
                Known(e.name, "", e.state, *(e.failure, 0) if e.model is None else (e.model.unread, e.model.vocabulary))
                for e in self._configured.values()
            ]
        return configured + self.offered.known(client)

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
        self.offered.close()
        self._loader.close()

    def _unknown(self, name: str) -> UnknownServedModel:
        names = self.names
        known = ", ".join(listed[:100] for listed in names[:MAX_LISTED]) or "none"
        if len(names) > MAX_LISTED:
            known += f" and {len(names) - MAX_LISTED} more"
        return UnknownServedModel(
            f"no tokenizer is configured for the served model {name[:100]!r} (configured: {known}), and none has been offered: "
            "let its engine's plug-in offer one, or set served_models / LPC_SERVED_MODELS in the sidecar"
        )

    def _begin(self, entry: _Entry) -> Future[None] | None:
        with suppress(RuntimeError):  # closed
            return self._threads.submit(self._load, entry)
        return None

    def _load(self, entry: _Entry) -> None:
        model, failure, name = None, "", entry.name
        failed = f"the tokenizer of served model {name} cannot be loaded from {entry.source[:256]}"
        try:
            loaded = self._loader.load(entry.source, offered=False)
            model = ServedModel(name, loaded.backend, loaded.markup, loaded.lengths)
        except LoaderClosed:
            return
        except TokenizerError as error:
            failure = f"{failed}: {error}"
        except Exception as error:  # record any failure, so that not every request repeats the load
            failure = f"{failed}: {type(error).__name__}"
        with self._lock:
            entry.model, entry.failure = model, failure
            entry.retry_at = self._clock() + RETRY_S
        if model is None:
            log.error("%s. Its prompts cannot be read. Tried again after %g s; or set LPC_SERVED_MODELS", failure, RETRY_S)
            return
        if model.unread:
            log.warning("prompts of served model %s are read in part: %s", name, model.unread)
            return
        if model.markup is None:
            log.warning("served model %s has no usable chat template: its prompts count as one user turn", name)
        log.info("prompts of served model %s can be read (tokenizer from %s)", name, entry.source)
