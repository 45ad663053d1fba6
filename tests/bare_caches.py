"""Response caches without a sidecar around them: the same parts, on a real Redis, with vectors, gate and judge as given."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lpc.responses.answers import Answer
from lpc.responses.canonical import Asked, Namer
from lpc.responses.counters import Counters
from lpc.responses.flights import Flights
from lpc.responses.scopes import Scopes, ScopeSettings
from lpc.responses.semantic.gate import Decision, Gate
from lpc.responses.semantic.levels import LEVELS
from lpc.responses.semantic.threshold import Threshold
from lpc.responses.shared_evidence import SharedEvidence
from lpc.responses.store import Store
from lpc.responses.vectors import Vectors
from lpc.wire.redis_connection import Connection
from lpc.wire.redis_reach import RedisReach
from predictor_service.metrics import Metrics
from predictor_service.responses.cache import ResponseCache
from predictor_service.responses.judging import Judge, Rules
from predictor_service.responses.keys import Keys
from predictor_service.responses.metrics import CacheMetrics
from predictor_service.responses.semantic import Nothing, Semantic
from predictor_service.responses.similar import SimilarQuestions
from predictor_service.responses.tally import Tally

KEY_FILE: Final = f"names: {'11' * 32}\nk1: {'22' * 32}\n"
TIMEOUT_S: Final = 10.0
"""A loaded machine is no reason to give up."""
ENCODER: Final = "given"


class GivenVectors:
    """Gives the vectors that it was given: what a lookup costs beyond the embedding is what is measured.

    ``vectors``: by question; ``otherwise``: of any other.
    """

    def __init__(self, vectors: Mapping[str, NDArray[np.float32]], otherwise: NDArray[np.float32] | None = None) -> None:
        self._vectors = vectors
        self._otherwise = otherwise

    def encoder(self) -> str:
        """Return what these vectors have in common."""
        return ENCODER

    async def vector(self, question: str, patience_s: float = 0.0) -> NDArray[np.float32] | None:
        """Return a question's vector."""
        del patience_s
        return self._vectors.get(question, self._otherwise)


class OpenGate(Gate):
    """Serves every candidate: so that whatever is found where it must not be is seen."""

    def decide(self, similarity: float, question: bytes) -> Decision:
        """Serve."""
        del similarity, question
        self.threshold = Threshold(level=LEVELS - 1, similarity=-1.0, bound=0.05, estimate=0.0, labels=1e6, share=1.0)
        return Decision.SERVE


async def different(question: str, answer: str, other_question: str, other_answer: str) -> bool:
    """Judge without looking."""
    del question, answer, other_question, other_answer
    return False


class BareCaches:
    """The caches of one sidecar, without the sidecar.

    Args:
        url: of Redis.
        folder: for the key file.
        scopes: by name.
        embedder: None: no semantic tier.
        make_gate: of a scope.
        judge: compares answers.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        scopes: Mapping[str, ScopeSettings],
        *,
        embedder: GivenVectors | None = None,
        make_gate: Callable[[ScopeSettings], Gate] = lambda _: Gate(),
        judge: Judge = different,
        clock: Callable[[], float] = time.time,
    ) -> None:
        path = folder / "keys"
        path.write_text(KEY_FILE)
        keys = Keys(path)
        self.keys = keys
        self.redis = RedisReach(Connection(url, timeout_s=TIMEOUT_S), "of the test")
        encoder = str if embedder is None else embedder.encoder
        self.store = Store(self.redis, Namer(keys.ring.names), encoder)
        self.vectors = Vectors(self.redis, encoder)
        counters, evidence = Counters(self.redis), SharedEvidence(self.redis, self.store.namer, encoder)
        named = Scopes(scopes)
        self.semantic: Semantic = Nothing()
        self.similar: SimilarQuestions | None = None
        if embedder is not None:
            self.semantic = self.similar = SimilarQuestions(
                keys, self.store, self.vectors, evidence, embedder, lambda scope, _: Rules(make_gate(scope), judge), clock
            )
        self.cache = ResponseCache(
            *(keys, self.store, Flights(self.redis, 60.0), Tally(counters), named, self.semantic),
            CacheMetrics(Metrics(), named.labels),
            max_entry_bytes=2**20,
            client_scopes=10_000,
            clock=clock,
        )

    async def close(self) -> None:
        """Let go of the connection."""
        await self.redis.close()


def question_of(text: str, *, scope: str = "faq", **fields: object) -> Asked:
    """Return a request of one turn."""
    messages = ({"role": "user", "content": text},)
    return Asked("m", {"temperature": 0}, messages, scope=scope, **fields)  # type: ignore[arg-type]


def answer_of(text: str) -> Answer:
    """Return an engine's answer in one body."""
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
    }
    return Answer(body=json.dumps(body).encode(), prompt_tokens=20, completion_tokens=400, finish_reason="stop", engine_s=2.0)


async def in_turn(count: int, work: Callable[[int], Awaitable[object]], at_once: int = 64) -> None:
    """Do numbered work, so many at a time."""
    left = iter(range(count))

    async def worker() -> None:
        for number in left:
            await work(number)

    await asyncio.gather(*(worker() for _ in range(at_once)))
