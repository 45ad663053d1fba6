"""Announces waiting requests to LMCache's coordinator, because vLLM asks LMCache about a request only when it serves it.

`POST /lpc/waiting` of our controller there, from a thread of its own: no request waits for it. The coordinator drops
requests that are not repeated, so that an engine that ends, or a message that is lost, keeps nothing.
"""

import logging
import threading
import uuid
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from eviction_client.coordinator import Coordinator

logger = logging.getLogger(__name__)

ANNOUNCED: Final = 16
"""Requests announced at a time, those that came first: a prompt of 100,000 tokens is 0.7 MB on the wire, once."""
TOKENS_AT_ONCE: Final = 1_000_000
"""Tokens of one message; a longer prompt is not announced."""
GATHER_S: Final = 0.2
"""Between two messages: requests that are served within it are never announced."""
AGAIN_S: Final = 10.0
"""After which those that still wait are sent again, without tokens. The coordinator waits three times as long."""


class Prompt(NamedTuple):
    """What LMCache knows a prompt by."""

    tokens: Sequence[int]
    salt: str


class Announcer:
    """Keeps in LMCache what waiting requests will load. See :class:`eviction_client.keep.Keeper`.

    Args:
        url: of the :class:`Coordinator`.
        model: the name that LMCache knows the model by: what vLLM was started with.

    Attributes:
        sent, failed: messages.
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
        """Requests whose prompts the coordinator has."""
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lpc-announcer", daemon=True)
        self._thread.start()

    def wait(self, request: Hashable, blocks: Iterable[Prompt]) -> None:
        """Announce a request. Returns at once. ``blocks``: its prompt, whose tokens do not change any more."""
        for prompt in blocks:
            if len(prompt.tokens) <= TOKENS_AT_ONCE:
                with self._lock:
                    self._waiting[str(request)] = prompt
                self._changed.set()

    def served(self, request: Hashable) -> None:
        """Note that a request does not wait any more."""
        with self._lock:
            self._waiting.pop(str(request), None)
        self._changed.set()

    def close(self) -> None:
        """Send nothing more; waits for nothing."""
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
                    logger.warning("learned prefix cache: LMCache's coordinator did not take the waiting requests: %s", name)

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
                    self._changed.set()  # the others come with the next message
                    break
                new = {"token_ids": list(prompt.tokens), "cache_salt": prompt.salt}
            requests.append({"request_id": name, **new})
        self._coordinator.post("/lpc/waiting", {"engine": self._engine, "model_name": self._model, "requests": requests})
        self._known = {request["request_id"] for request in requests}
        self.sent += 1
