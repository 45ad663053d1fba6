"""Response caches on a real Redis without a sidecar, with given vectors and gates; and requests and answers for tests."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpc.wire.redis_connection import Connection
from lpc.wire.redis_reach import RedisReach
from predictor_service.metrics import Metrics
from response_cache.keys.canonical import CacheRequest, Namer
from response_cache.keys.sealing import Keys
from response_cache.semantic.evidence import LEVELS, Tier
from response_cache.semantic.gate import Decision, Gate
from response_cache.semantic.ranking import shipped
from response_cache.semantic.threshold import Threshold
from response_cache.service.cache import ResponseCache
from response_cache.service.embedding import Embedder
from response_cache.service.judging import Rules
from response_cache.service.metrics import CacheMetrics
from response_cache.service.opening import Opener
from response_cache.service.similar import SimilarQuestions
from response_cache.service.upkeep import Upkeep
from response_cache.store.answers import Answer
from response_cache.store.days import Days
from response_cache.store.flights import Flights
from response_cache.store.frequent import FrequentQuestions
from response_cache.store.pairs import QuestionPairs
from response_cache.store.scopes import Scopes, ScopeSettings
from response_cache.store.shared_evidence import SharedEvidence
from response_cache.store.store import Store
from response_cache.store.vectors import Vectors

NAMES = "11" * 32
KEY = "22" * 32
KEY_LINES = f"names: {NAMES}\nk1: {KEY}\n"


class Clock:
    """A manual clock, seconds since the epoch."""

    def __init__(self, now: float = 1_790_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class GivenVectors(Embedder):
    """Returns given vectors: ``vectors`` by question, ``otherwise`` for any other question."""

    def __init__(self, vectors: Mapping[str, NDArray[np.float32]], otherwise: NDArray[np.float32] | None = None) -> None:
        self._vectors = vectors
        self._otherwise = otherwise

    def encoder(self) -> str:
        """Return the id of these vectors."""
        return "given"

    async def vector(self, question: str, patience_s: float = 0.0) -> NDArray[np.float32] | None:
        """Return a question's vector."""
        del patience_s
        return self._vectors.get(question, self._otherwise)


class OpenGate(Gate):
    """Serves every candidate, so that a candidate that must not be found is noticed."""

    def decide(self, score: float, question: bytes) -> Decision:
        """Serve."""
        del score, question
        self.threshold = Threshold(level=LEVELS - 1, score=-1.0, bound=0.05, estimate=0.0, labels=1e6, share=1.0)
        return Decision.SERVE


class Caches:
    """The response caches of one sidecar, on a Redis at ``url``. Without ``make_gate``, gates serve every candidate."""

    def __init__(
        self,
        url: str,
        folder: Path,
        scopes: Mapping[str, ScopeSettings] | None = None,
        *,
        key_lines: str = KEY_LINES,
        timeout_s: float = 10.0,
        cluster: bool = False,
        flight_s: float = 60.0,
        client_scopes: int = 10_000,
        embedder: GivenVectors | None = None,
        make_gate: Callable[[ScopeSettings], Gate] = lambda _: OpenGate(),
        rules: Callable[[ScopeSettings, Tier], Rules] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.key_file = folder / "keys"
        self.key_file.write_text(key_lines)
        self.keys = Keys(self.key_file)
        self.scopes = Scopes(scopes or {})
        self.redis = RedisReach(
            Connection(url, cluster=cluster, timeout_s=timeout_s, settings="LPC_CACHE_REDIS"), "of the response caches"
        )
        embedder = embedder or GivenVectors({})
        self.store = Store(self.redis, Namer(self.keys.current.names), embedder.encoder)
        self.vectors = Vectors(self.redis, embedder.encoder)
        self.metrics = CacheMetrics(Metrics(), self.scopes.labels)
        evidence = SharedEvidence(self.redis, self.store.namer, embedder.encoder)
        opener = Opener(self.keys, self.metrics, self.clock)
        self.pairs = QuestionPairs(self.redis, self.keys, self.store.namer, self.clock)
        self.semantic = SimilarQuestions(
            store=self.store,
            opener=opener,
            vectors=self.vectors,
            evidence=evidence,
            embedder=embedder,
            rules=rules or (lambda scope, _tier: Rules(make_gate(scope))),
            ranking=shipped(),
            pairs=self.pairs,
        )
        self.days = Days(self.redis, self.clock)
        frequent = FrequentQuestions(self.redis, self.keys, self.store.namer, self.clock)
        self.cache = ResponseCache(
            store=self.store,
            opener=opener,
            flights=Flights(self.redis, flight_s),
            scopes=self.scopes,
            semantic=self.semantic,
            frequent=frequent,
            days=self.days,
            max_entry_bytes=64 * 1024,
            client_scopes=client_scopes,
        )
        parts = (self.keys, self.store, self.scopes, self.semantic, frequent, self.pairs, self.metrics, self.days)
        self.upkeep = Upkeep(*parts)

    async def close(self) -> None:
        await self.redis.close()


def asked(*turns: str, scope: str = "faq", **fields: Any) -> CacheRequest:
    """Return a request whose turns alternate between user and assistant."""
    roles = ("user", "assistant")
    messages = tuple({"role": roles[n % 2], "content": text} for n, text in enumerate(turns))
    parameters = {"temperature": 0, **fields.pop("parameters", {})}
    return CacheRequest(**{"model": "m", "parameters": parameters, "messages": messages, "scope": scope, **fields})


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


async def in_turn(count: int, work: Callable[[int], Awaitable[object]], at_once: int = 64) -> None:
    """Call ``work`` with each number below ``count``, ``at_once`` at a time."""
    left = iter(range(count))

    async def worker() -> None:
        for number in left:
            await work(number)

    await asyncio.gather(*(worker() for _ in range(at_once)))
