"""Judging of whether two answers are the same, in the background: the judge of a scope and its measured error."""

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
"""Pairs that are judged concurrently."""
WAITING: Final = 256
"""Most pairs in memory; further pairs are not judged."""
PATIENCE_S: Final = 10.0
"""Longest time that a judge waits for a vector, in seconds."""

Texts: TypeAlias = tuple[str, str, str, str]
"""Question and answer, other question and answer."""

Learn: TypeAlias = Callable[[bool | None], Awaitable[None]]
"""Called with the verdict. May raise RedisFailed."""


class Judge(Protocol):
    """Returns whether two answers are the same; False if it is not sure, None if it failed."""

    async def __call__(self, question: str, answer: str, other_question: str, other_answer: str) -> bool | None:
        """Return the verdict."""


class Rules(NamedTuple):
    """Gate and judge of one tenant in a scope.

    Attributes:
        gate: a new gate, open only if the scope's file of evidence permits it.
        judge: the judge, or None to compare texts at once.
        judged_by: id of a judge that errs, whose labels are stored separately.
    """

    gate: Gate
    judge: Judge | None = None
    judged_by: str = ""


def rules_of(embedder: Embedder, judges: Mapping[ScopeSettings, Judge], settings: ScopeSettings) -> Rules:
    """Return the rules of a scope. If its judge was not measured with this encoder, texts are compared.

    Args:
        embedder: computes vectors by the model in service.
        judges: models that judge, by settings of their scope.
        settings: settings of the scope.
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
        log.error("%s; the scope starts without it", failure)
    gate = Gate(settings.bound, 1 - settings.level, error, serves=settings.semantic == "serve", start=start)
    return Rules(gate, judge, judged_by)


class Judging:
    """Judges pairs in the background, a few at a time. Lives on one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def later(self, judge: Judge, texts: Texts, learn: Learn) -> None:
        """Judge a pair in the background, and call ``learn`` with the verdict; with None if too many pairs wait."""
        if len(self._tasks) >= WAITING:
            await learn(None)
            return
        task = asyncio.get_running_loop().create_task(self._judge(judge, texts, learn))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel what is not judged yet."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _judge(self, judge: Judge, texts: Texts, learn: Learn) -> None:
        async with self._at_once:
            try:
                same = await judge(*texts)
            except Exception as error:
                # Its message may quote the texts.
                log.error("a judge of answers failed: %s", type(error).__name__)
                same = None
        with contextlib.suppress(RedisFailed):
            await learn(same)
