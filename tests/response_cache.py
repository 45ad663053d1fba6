"""A response cache on a real Redis, without a sidecar around it; and what is asked of it."""

import json
from pathlib import Path
from typing import Any

from lpc.responses.answers import Answer
from lpc.responses.canonical import Asked, Namer
from lpc.responses.counters import Counters
from lpc.responses.flights import Flights
from lpc.responses.scopes import Scopes, ScopeSettings
from lpc.responses.shared_evidence import SharedEvidence
from lpc.responses.store import Store
from lpc.responses.vectors import Vectors
from lpc.wire.redis_connection import Connection
from lpc.wire.redis_reach import RedisReach
from predictor_service.metrics import Metrics
from predictor_service.responses.cache import ResponseCache
from predictor_service.responses.judging import Rules
from predictor_service.responses.keys import Keys
from predictor_service.responses.metrics import CacheMetrics
from predictor_service.responses.semantic import Nothing, Semantic
from predictor_service.responses.similar import SimilarQuestions
from predictor_service.responses.tally import Tally
from predictor_service.responses.upkeep import Upkeep
from tests.bare_caches import GivenVectors, OpenGate

NAMES = "11" * 32
KEY = "22" * 32
KEY_LINES = f"names: {NAMES}\nk1: {KEY}\n"


class Clock:
    """Seconds since the epoch, set by hand."""

    def __init__(self, now: float = 1_790_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Caches:
    """One sidecar's response caches, on a Redis at ``url``. A normalised tier is open from the start."""

    def __init__(
        self,
        url: str,
        folder: Path,
        scopes: dict[str, ScopeSettings] | None = None,
        *,
        key_lines: str = KEY_LINES,
        timeout_s: float = 5.0,
        cluster: bool = False,
        flight_s: float = 60.0,
        client_scopes: int = 100,
        semantic: Semantic | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or Clock()
        path = folder / "keys"
        path.write_text(key_lines)
        self.keys = Keys(path)
        self.key_file = path
        self.scopes = Scopes(scopes or {})
        self.redis = RedisReach(
            Connection(url, cluster=cluster, timeout_s=timeout_s, settings="LPC_CACHE_REDIS"), "of the response caches"
        )
        self.store = Store(self.redis, Namer(self.keys.ring.names))
        self.counters = Counters(self.redis)
        self.tally = Tally(self.counters)
        self.metrics = CacheMetrics(Metrics(), self.scopes.labels)
        self.semantic = semantic or Nothing()
        if any(scope.serves_normalised for scope in (scopes or {}).values()):
            self.semantic = SimilarQuestions(
                *(
                    self.keys,
                    self.store,
                    Vectors(self.redis, str),
                    SharedEvidence(self.redis, self.store.namer),
                    GivenVectors({}),
                ),
                *(lambda *_: Rules(OpenGate()), self.clock),
            )
        self.cache = ResponseCache(
            *(self.keys, self.store, Flights(self.redis, flight_s), self.tally, self.scopes, self.semantic, self.metrics),
            max_entry_bytes=64 * 1024,
            client_scopes=client_scopes,
            clock=self.clock,
        )
        self.upkeep = Upkeep(
            *(self.keys, self.store, self.counters, self.tally, self.scopes, self.semantic, self.metrics, self.clock)
        )

    async def close(self) -> None:
        await self.redis.close()


def asked(*turns: str, scope: str = "faq", **fields: Any) -> Asked:
    """Return a request; turns alternate between user and assistant."""
    roles = ("user", "assistant")
    messages = tuple({"role": roles[n % 2], "content": text} for n, text in enumerate(turns))
    parameters = {"temperature": 0, **fields.pop("parameters", {})}
    return Asked(**{"model": "m", "parameters": parameters, "messages": messages, "scope": scope, **fields})


def answer(text: str = "It is.", **fields: Any) -> Answer:
    """Return an engine's answer."""
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
    whole = {
        "body": json.dumps(body).encode(),
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "finish_reason": "stop",
        "engine_s": 0.5,
    }
    return Answer(**{**whole, **fields})
