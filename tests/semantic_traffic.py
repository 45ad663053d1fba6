"""Adversarial traffic against the bound of the semantic tier, through the whole cache on a real Redis."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from response_cache.keys.canonical import CacheRequest
from response_cache.semantic.gate import Gate
from response_cache.service.outcomes import CacheHit
from response_cache.store.answers import Answer
from response_cache.store.scopes import ScopeSettings
from tests.response_cache import Caches as OneSidecar
from tests.response_cache import GivenVectors, answer, asked

Ending = Literal["text", "tool_calls", "length", "content_filter", "error", "empty", "aborted", "never"]
"""How the engine's new answer ends; "never": the client does not store it."""
KEPT_EVERY = 25
"""Lookups between two exchanges of evidence."""
NEAR = np.array([1.0, 0.0, 0.0], np.float32)
REWORDED = np.array([0.998, 0.0632, 0.0], np.float32)


@dataclass
class Outcome:
    """``bound``: the highest bound in a hit."""

    served: int = 0
    wrong: int = 0
    bound: float = 0.0


class Caches(OneSidecar):
    """The caches of a sidecar, with vectors that make each rewording a near neighbour of its question."""

    def __init__(self, url: str, folder: Path, count: int, seed: int = 0, **settings: object) -> None:
        vectors = {f"question {i}": NEAR for i in range(count)}
        super().__init__(
            *(url, folder, {"faq": ScopeSettings.model_validate({"mode": "serve", **settings})}),
            embedder=GivenVectors(vectors, REWORDED / np.linalg.norm(REWORDED)),
            make_gate=lambda scope: Gate(scope.bound, draw=random.Random(seed)),
        )


def question(i: int, *, reworded: bool = False, tenant: str = "") -> CacheRequest:
    """Return the i-th question, in a partition of its own."""
    text = f"please question {i} thanks" if reworded else f"question {i}"
    return asked(f"context {i}", "Yes.", text, tenant=tenant)


def ended(ending: Ending, text: str) -> Answer:
    """Return an engine's answer with this ending."""
    if ending == "text":
        return answer(text)
    if ending == "error":
        return Answer(body=b'{"error": {"message": "overloaded"}}')
    if ending in ("empty", "aborted"):
        return Answer()
    call = {"id": "1", "type": "function", "function": {"name": "refund", "arguments": "{}"}}
    message = {"content": text, **({"tool_calls": [call]} if ending == "tool_calls" else {})}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": ending}]}
    return Answer(body=json.dumps(body).encode(), finish_reason=ending)


async def fill(caches: Caches, count: int, client: str = "gateway", tenant: str = "") -> None:
    """Store an answer to each question."""
    for i in range(count):
        await caches.cache.store(client, question(i, tenant=tenant), answer(f"answer {i}"))
    await caches.semantic.sync(0.0)


async def drive(
    caches: Caches,
    wrong: Callable[[int], bool],
    ending: Ending,
    lookups: range,
    client: str = "gateway",
    tenant: str = "",
) -> Outcome:
    """Look up rewordings. If ``wrong``, the engine's own answer has this ``ending``; otherwise it equals the cached one.

    An ending other than "text" has the cached answer's text, so that only the ending shows that the answer is another.
    """
    outcome = Outcome()
    for i in lookups:
        request = question(i, reworded=True, tenant=tenant)
        found = await caches.cache.lookup(client, request)
        if isinstance(found, CacheHit):
            outcome.served += 1
            outcome.wrong += wrong(i)
            outcome.bound = max(outcome.bound, found.error_bound)
            continue
        how = ending if wrong(i) else "text"
        if how != "never":
            text = f"another answer {i}" if wrong(i) and how == "text" else f"answer {i}"
            fields = {"flight": found.flight, "candidate": found.candidate, "aborted": how == "aborted"}
            await caches.cache.store(client, request, ended(how, text), **fields)  # type: ignore[arg-type]
        if i % KEPT_EVERY == 0:
            await caches.semantic.sync(float(i))
    return outcome
