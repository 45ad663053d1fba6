"""Who judges in a scope whether two answers say the same, how often it errs, and when: never while a request waits."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lpc.responses.scopes import ScopeSettings
from lpc.responses.semantic.evidence_file import EvidenceError, read_evidence, read_judge_error
from lpc.responses.semantic.gate import Gate
from lpc.responses.semantic.same_answer import ByEmbedding
from lpc.responses.semantic.threshold import UNERRING
from lpc.wire.redis_reach import RedisFailed
from predictor_service.responses.embedding import Embedder

log = logging.getLogger(__name__)

AT_ONCE: Final = 4
"""Pairs that are judged at the same time."""
WAITING: Final = 256
"""Pairs that wait for it, at most: their texts are in memory. What comes beyond is not judged."""
PATIENCE_S: Final = 10.0
"""Longest time that a judge waits for a vector."""

Texts: TypeAlias = tuple[str, str, str, str]
"""Question and answer, and the other question and answer."""

Learn: TypeAlias = Callable[[bool | None], Awaitable[None]]
"""Called with what a judge said. May raise RedisFailed."""


class Judge(Protocol):
    """Says whether two answers to two questions say the same; what it cannot tell is False. None: it could not be asked."""

    async def __call__(self, question: str, answer: str, other_question: str, other_answer: str) -> bool | None:
        """Judge the answers."""


class Rules(NamedTuple):
    """By which a scope's semantic tier goes.

    Attributes:
        gate: shut, unless evidence from before opens it.
        judge: makes its labels, where the caller does not. None: nothing but equal texts are the same, which is said at once.
        judged_by: names the judge: labels of one that errs are kept apart.
    """

    gate: Gate
    judge: Judge | None = None
    judged_by: str = ""


def rules_of(embedder: Embedder, judges: Mapping[ScopeSettings, Judge], settings: ScopeSettings) -> Rules:
    """Return the rules of a scope's tier; one whose judge was not measured with this encoder is judged by equal texts.

    Args:
        embedder: of the model in service.
        judges: the models that judge, by scope's settings.
        settings: of the scope.
    """
    judge: Judge | None = None
    judged_by, error, start = "", UNERRING, None

    async def both(a: str, b: str) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        one, other = await embedder.vector_in_time(a, PATIENCE_S), await embedder.vector_in_time(b, PATIENCE_S)
        return None if one is None or other is None else (one, other)

    try:
        if settings.judge != "text":
            error = read_judge_error(settings.evidence, settings.judge, settings.judge_model, embedder.encoder())
            judge = ByEmbedding(both) if settings.judge == "embedding" else judges[settings]
            judged_by = sha256(f"{settings.judge}:{settings.judge_model}".encode()).hexdigest()[:8]
        if settings.evidence is not None:
            start = read_evidence(settings.evidence, embedder.encoder())
    except EvidenceError as failure:
        log.error("%s; until then the scope starts without it", failure)
    gate = Gate(settings.bound, 1 - settings.level, error, serves=settings.semantic == "serve", start=start)
    return Rules(gate, judge, judged_by)


class Judging:
    """Judges pairs in the background, a few at a time. Lives on one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def later(self, judge: Judge, texts: Texts, learn: Learn) -> None:
        """Have a pair judged, and call ``learn`` with the verdict; at once with None if too many wait."""
        if len(self._tasks) >= WAITING:
            await learn(None)
            return
        task = asyncio.get_running_loop().create_task(self._judge(judge, texts, learn))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Leave unjudged what was not judged so far."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _judge(self, judge: Judge, texts: Texts, learn: Learn) -> None:
        async with self._at_once:
            try:
                said = await judge(*texts)
            except Exception as error:
                # Its message may quote the texts.
                log.error("a judge of answers failed: %s", type(error).__name__)
                said = None
        with contextlib.suppress(RedisFailed):
            await learn(said)
