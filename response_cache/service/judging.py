"""Judging of whether two answers are the same by their vectors, in the background."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from lpc.wire.redis_reach import RedisFailed
from response_cache.semantic.evidence import Tier
from response_cache.semantic.evidence_file import EvidenceError, read_evidence, read_judge_error
from response_cache.semantic.gate import Gate
from response_cache.semantic.same_answer import equal_text, same_by_embedding
from response_cache.semantic.set_gate import SetGate
from response_cache.semantic.threshold import UNERRING
from response_cache.service.embedding import Embedder
from response_cache.store.scopes import ScopeSettings

log = logging.getLogger(__name__)

AT_ONCE: Final = 4
"""Pairs that are judged concurrently."""
WAITING: Final = 256
"""Most pairs in memory; further pairs are not judged."""
PATIENCE_S: Final = 10.0
"""Longest time that a judge waits for a vector, in seconds."""

Learn: TypeAlias = Callable[[bool | None], Awaitable[None]]
"""Called with the verdict; None if the judge failed. May raise RedisFailed."""


class Rules(NamedTuple):
    """Gate and judge of one tenant in a scope.

    Attributes:
        gate: a new gate, open only if the scope's file of evidence permits it.
        judged_by: "embedding", whose labels are stored separately because it errs; empty to compare texts.
    """

    gate: Gate
    judged_by: str = ""


def rules_of(embedder: Embedder, settings: ScopeSettings, tier: Tier) -> Rules:
    """Return the rules of a scope's tier. Texts are compared if there is no encoder, or the judge was not measured with it."""
    judged_by, error, start = "", UNERRING, None
    try:
        if settings.judge == "embedding" and settings.semantic != "off":
            error = read_judge_error(settings.evidence, embedder.encoder())
            judged_by = settings.judge
        if settings.evidence is not None and tier == "semantic" and settings.similarity is None:
            start = read_evidence(settings.evidence, embedder.encoder())
    except EvidenceError as failure:
        log.error("%s; the scope starts without it", failure)
    serves = settings.mode_of(tier) == "serve"
    if tier == "semantic" and settings.similarity is not None:
        return Rules(SetGate(settings.similarity, settings.bound, 1 - settings.level, error, serves=serves), judged_by)
    return Rules(Gate(settings.bound, 1 - settings.level, error, serves=serves, start=start), judged_by)


class Judging:
    """Judges pairs in the background, a few at a time. Lives on one event loop."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def later(self, answer: str, other: str, learn: Learn) -> None:
        """Judge a pair in the background, and call ``learn`` with the verdict; with None if too many pairs wait."""
        if len(self._tasks) >= WAITING:
            await learn(None)
            return
        task = asyncio.get_running_loop().create_task(self._judge(answer, other, learn))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel what is not judged yet."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _judge(self, answer: str, other: str, learn: Learn) -> None:
        async with self._at_once:
            try:
                same = await self._same(answer, other)
            except Exception as error:
                # Its message may quote the texts.
                log.error("a judge of answers failed: %s", type(error).__name__)
                same = None
        with contextlib.suppress(RedisFailed):
            await learn(same)

    async def _same(self, answer: str, other: str) -> bool | None:
        """Return the verdict; False if a text is too long for the encoder, None if the model is busy."""
        if equal_text(answer, other):
            return True
        try:
            one = await self._embedder.vector_in_time(answer, PATIENCE_S)
            two = await self._embedder.vector_in_time(other, PATIENCE_S)
        except TimeoutError:
            return None
        return one is not None and two is not None and same_by_embedding(answer, other, float(np.dot(one, two)))
