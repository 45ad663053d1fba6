"""Announces waiting requests to LMCache's coordinator, because vLLM looks a request up in LMCache only when it serves it.

A background thread sends `POST /lpc/waiting` to our controller there, so no request waits. The coordinator drops requests that
are not repeated, so that the end of an engine or a lost message leaves nothing behind.
"""

import logging
import threading
import uuid
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from eviction_client.coordinator import Coordinator

logger = logging.getLogger(__name__)

ANNOUNCED: Final = 16
"""Number of requests announced at a time, the oldest. A prompt of 100,000 tokens takes 0.7 MB on the wire, once."""
TOKENS_AT_ONCE: Final = 1_000_000
"""Tokens of one message. Longer prompts are not announced."""
GATHER_S: Final = 0.2
"""Pause before a message. Requests served within it are never announced."""
AGAIN_S: Final = 10.0
"""Pause before requests that still wait are sent again, without tokens. The coordinator waits three times as long."""


class Prompt(NamedTuple):
    """A prompt as LMCache identifies it."""

    tokens: Sequence[int]
    salt: str


class Announcer:
    """Keeps in LMCache what waiting requests will load. See :class:`eviction_client.keep.Keeper`.

    Args:
        url: of the :class:`Coordinator`.
        model: name of the model in LMCache: the name that vLLM was started with.

    Attributes:
        sent, failed: number of messages.
    """

    def __init__(self, url: str, model: str) -> None:
        self.sent = 0
        self.failed = 0
        self._coordinator = Coordinator(url)
        self._model = model
        self._engine = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._waiting: dict[str, Prompt] = {}
        self._known: set[str] = set()
        """Requests whose prompts were sent."""
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lpc-announcer", daemon=True)
        self._thread.start()

    def wait(self, request: Hashable, blocks: Iterable[Prompt]) -> None:
        """Announce a request. Returns at once. ``blocks``: its prompt; the tokens must not change."""
        for prompt in blocks:
            if len(prompt.tokens) <= TOKENS_AT_ONCE:
                with self._lock:
                    self._waiting[str(request)] = prompt
                self._changed.set()

    def served(self, request: Hashable) -> None:
        """Withdraw a request."""
        with self._lock:
            self._waiting.pop(str(request), None)
        self._changed.set()

    def close(self) -> None:
        """Stop sending. Returns at once."""
        self._closed.set()
        self._changed.set()

    def _run(self) -> None:
        while True:
            self._changed.wait(AGAIN_S if self._known else None)
            if self._closed.wait(GATHER_S):
                return
            self._changed.clear()
            try:
                self._send()
            except Exception as error:
                self._known.clear()
                self.failed += 1
                if self.failed == 1:
                    name = type(error).__name__
                    logger.warning("learned prefix cache: cannot announce waiting requests to LMCache's coordinator: %s", name)

    def _send(self) -> None:
        with self._lock:
            waiting = dict(list(self._waiting.items())[:ANNOUNCED])
        if not waiting and not self._known:
            return
        requests: list[dict[str, Any]] = []
        tokens = 0
        for name, prompt in waiting.items():
            new: dict[str, Any] = {}
            if name not in self._known:
                tokens += len(prompt.tokens)
                if tokens > TOKENS_AT_ONCE:
                    self._changed.set()  # the next message has the others
                    break
                new = {"token_ids": list(prompt.tokens), "cache_salt": prompt.salt}
            requests.append({"request_id": name, **new})
        self._coordinator.post("/lpc/waiting", {"engine": self._engine, "model_name": self._model, "requests": requests})
        self._known = {request["request_id"] for request in requests}
        self.sent += 1
