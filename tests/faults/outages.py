"""Sidecar and Redis die under an engine's load, again and again: no call fails, every block gets a class, all comes back.

The load is the real client of an engine (`Plugin`, `PredictorClient`, `RedisStore`) without an engine: a thread that admits
and finishes requests as a scheduler does.
"""

import contextlib
import hashlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from eviction_client.plugin import Plugin
from eviction_client.settings import ClientSettings
from eviction_client.stores import BlockHash
from eviction_client.stores.namespace import Namespace
from eviction_client.stores.redis import RedisStore
from eviction_client.transport.client import PredictorClient
from lpc.wire.redis_connection import Connection
from lpc_apps.tiny_llama import build
from testing import Unavailable
from testing.processes import RedisServer, Sidecar
from tests.eventually import patiently

SERVED_MODEL: Final = "llama"
NAMESPACE: Final = Namespace("sha256_cbor", "0", 16, SERVED_MODEL)
RUNNING: Final = 16
"""Requests that run at a time."""
REQUEST_S: Final = 1.0
"""How long a request runs."""
BACK_S: Final = 60.0
"""Longest time after a restart until predictions, or the store, must be back."""


def until(condition: Callable[[], object], seconds: float = BACK_S) -> bool:
    """Wait for a condition; return whether it came true in time."""
    deadline = time.monotonic() + patiently(seconds)
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def prompts() -> list[list[int]]:
    """Return token ids of conversations of one to five user turns, in the vocabulary of `lpc_apps.tiny_llama`."""
    user, assistant, end, first_byte = 2, 3, 5, 6
    rng = random.Random(0)
    found = []
    for number in range(200):
        ids: list[int] = []
        for turn in range(1 + number % 5):
            words = [first_byte + rng.randrange(94) for _ in range(rng.randrange(10, 60))]
            ids += [assistant, *words[:10], end] if turn else []
            ids += [user, *words, end]
        found.append([*ids, assistant])
    return found


class Engine:
    """An engine's client under load, in a thread of its own.

    Attributes:
        asked: requests that the plug-in was given.
        finished: requests that ended with a class for each of their blocks.
        errors: exceptions that a call raised, by type.
    """

    def __init__(self, address: str, redis_url: str) -> None:
        settings = ClientSettings()
        self.predictor = PredictorClient(address, served_model=SERVED_MODEL)
        self.store = RedisStore(Connection(redis_url), NAMESPACE)
        self.plugin = Plugin(
            settings, capacity=2000, block_tokens=NAMESPACE.block_size, predictor=self.predictor, store=self.store
        )
        self.asked = self.finished = 0
        self.errors: dict[str, int] = {}
        self._prompts = prompts()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine")
        self._thread.start()

    @property
    def predicted(self) -> int:
        """Requests whose group came from a prediction."""
        return self.plugin.ended["prediction"]

    @property
    def written(self) -> int:
        """Blocks that Redis has acknowledged."""
        return self.store.written

    def stop(self) -> None:
        """End the load, once; then the client."""
        self._stop.set()
        self._thread.join()
        with self._kept("settle"):
            self.plugin.settle()
            self.store.flush()

    def close(self) -> None:
        """Let go of everything."""
        self.stop()
        self.plugin.close()

    def figures(self) -> dict[str, Any]:
        """Return what became of the requests and blocks."""
        predictor = self.predictor.counters
        return {
            "requests": self.finished,
            "by_prediction": self.predicted,
            "by_fallback": self.plugin.ended["unanswered"],
            "errors": sum(self.errors.values()) + self.plugin.failures,
            "requests_unaccounted": self.asked - predictor.ended - self.predictor.waiting,
            "blocks_dropped": self.store.dropped,
        }

    @contextlib.contextmanager
    def _kept(self, call: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            name = f"{call}: {type(error).__name__}"
            self.errors[name] = self.errors.get(name, 0) + 1

    def _run(self) -> None:
        running: deque[tuple[int, float, list[BlockHash]]] = deque()
        number = 0
        while not self._stop.is_set():
            now = time.monotonic()
            while running and (running[0][1] <= now or self._stop.is_set()):
                name, _, blocks = running.popleft()
                with self._kept("finished"):
                    ended = self.plugin.finished(name, completed=True, blocks=blocks, prompt_blocks=len(blocks))
                    self.finished += ended.spans[-1].end == len(blocks)
            if len(running) < RUNNING:
                ids = self._prompts[number % len(self._prompts)]
                with self._kept("admitted"):
                    self.asked += 1
                    self.plugin.admitted(number, ids, session=f"c{number % 50}")
                blocks = _blocks(number % 50, 4 + number % 16)
                with self._kept("started"):
                    self.plugin.started(number, blocks)
                running.append((number, now + REQUEST_S, blocks))
                number += 1
            time.sleep(REQUEST_S / RUNNING)


def _blocks(conversation: int, count: int) -> list[BlockHash]:
    return [BlockHash(hashlib.sha256(f"{conversation}/{i}".encode()).digest()) for i in range(count)]


def restarts(folder: Path, models: Path, model: str, *, rounds: int) -> dict[str, Any]:
    """Kill (-9) sidecar and Redis ``rounds`` times under load, in either order, and start them again.

    Raises:
        Unavailable: one of them does not start.
    """
    rng = random.Random(0)
    served = {SERVED_MODEL: str(build(folder / "llama"))}
    with (
        Sidecar(folder, models, model, served_models=served) as sidecar,
        RedisServer(folder / "redis") as redis,
        contextlib.closing(Engine(f"unix://{sidecar.socket}", redis.url)) as engine,
    ):
        servers = [sidecar, redis]
        if not until(lambda: engine.predicted and engine.written):
            raise Unavailable("the first prediction or the first block in Redis did not come within a minute")
        predictions_back = store_back = 0
        for _ in range(rounds):
            rng.shuffle(servers)
            for server in servers:
                server.kill()
                time.sleep(rng.uniform(0, 0.5))
            # As long as nothing answers, requests end all the same.
            before = engine.finished
            until(lambda before=before: engine.finished > before + RUNNING)  # type: ignore[misc]
            rng.shuffle(servers)
            for server in servers:
                server.start()
            predicted, written = engine.predicted, engine.written
            store_back += until(lambda written=written: engine.written > written)  # type: ignore[misc]
            predictions_back += until(lambda predicted=predicted: engine.predicted > predicted)  # type: ignore[misc]
        engine.stop()
        return engine.figures() | {"predictions_back": predictions_back, "store_back": store_back}
