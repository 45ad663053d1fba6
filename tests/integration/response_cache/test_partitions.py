"""No answer reaches another client, context or tenant: generated conversations in which the same words recur.

Each answer says whose it is and what it was given to, so that a wrong one is known. Every text of a turn is one of a few (most
of all "continue"), so that what tells conversations apart is what stands around it: client, scope, tenant, model, parameters,
tools and history. The semantic tier is made as blind and as eager as can be: all questions have the same vector, and every
candidate that no veto stops is served.
"""

import random
from pathlib import Path
from typing import Final, TypedDict

import numpy as np

from response_cache.keys.canonical import CacheRequest
from response_cache.service.outcomes import CacheHit
from response_cache.store.scopes import ScopeSettings
from testing.processes import RedisServer
from tests.response_cache import Caches, GivenVectors, answer, in_turn

TEXTS: Final = ("continue", "Continue.", "go on", "yes", "no", "why?", "thank you", "and then", "shorter please", "is it safe")
WEIGHTS: Final = (910, 60, 120, 90, 90, 60, 50, 40, 30, 20)
"""Of ShareGPT's turns: "continue" 910 times."""
CLIENTS: Final = ("alice", "bob", "gateway")
REQUESTS_PER_CONVERSATION: Final = 3
KEPT_EVERY: Final = 50
"""Conversations between two looks for what was stored."""


class Crossed(TypedDict):
    """``hits``: by tier; ``crossed``: those among them that passed from one client, partition or request to another."""

    conversations: int
    lookups: int
    hits: dict[str, int]
    crossed: int


def _conversation(rng: random.Random) -> tuple[str, list[CacheRequest]]:
    """Return a client and the requests of one conversation of its."""
    client = rng.choice(CLIENTS)
    common = {
        "model": rng.choice(("m", "m:lora")),
        "parameters": {"temperature": 0, "max_tokens": rng.choice((16, 17))},
        "tools": rng.choice(([], [{"type": "function", "function": {"name": "f"}}])),
        "scope": rng.choice(("faq", "other")),
        "tenant": rng.choice(("", "t1", "t2")) if client == "gateway" else "",
    }
    messages: list[dict[str, str]] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": rng.choice(("Be brief.", "Be kind."))})
    asked = []
    for _ in range(rng.randint(1, REQUESTS_PER_CONVERSATION)):
        messages.append({"role": "user", "content": rng.choices(TEXTS, WEIGHTS)[0]})
        asked.append(CacheRequest(messages=tuple(messages), **common))  # type: ignore[arg-type]
        messages.append({"role": "assistant", "content": rng.choice(TEXTS)})
    return client, asked


def _around(client: str, asked: CacheRequest) -> str:
    """Return everything but the last turn's text, as it is: not by the code under test."""
    messages = [*asked.messages[:-1], {"role": "user"}]
    fields = (asked.model, asked.parameters, asked.tools, asked.scope, asked.tenant)
    return repr((client, messages, *fields))


async def crossed(url: str, folder: Path, conversations: int, seed: int = 0) -> Crossed:
    """Return how often an answer crossed. ``url``: of an empty Redis."""
    rng = random.Random(seed)
    scopes = {name: ScopeSettings(mode="serve", max_entries=10_000_000) for name in ("faq", "other")}
    vector = np.full(8, 8**-0.5, np.float32)
    caches = Caches(url, folder, scopes, embedder=GivenVectors({}, vector))
    found: Crossed = {"conversations": conversations, "lookups": 0, "hits": {}, "crossed": 0}
    made = [_conversation(rng) for _ in range(conversations)]

    async def hold(number: int) -> None:
        client, requests = made[number]
        for asked in requests:
            found["lookups"] += 1
            outcome = await caches.cache.lookup(client, asked, wait_s=1.0)
            here = _around(client, asked)
            if isinstance(outcome, CacheHit):
                found["hits"][outcome.source] = found["hits"].get(outcome.source, 0) + 1
                around, _, last = outcome.answer.text().partition("\n")
                same_text = last == asked.last_turn
                found["crossed"] += around != here or (outcome.source == "exact" and not same_text)
            else:
                await caches.cache.store(client, asked, answer(f"{here}\n{asked.last_turn}"), flight=outcome.flight)
        if number % KEPT_EVERY == 0:
            await caches.semantic.sync(0.0)

    await in_turn(conversations, hold)
    await caches.close()
    return found


async def test_no_answer_reaches_another_client_context_or_tenant(redis_server: RedisServer, tmp_path: Path) -> None:
    found = await crossed(redis_server.url, tmp_path, conversations=400, seed=1)
    assert found["crossed"] == 0
    assert set(found["hits"]) == {"exact", "normalised", "semantic"}, "a tier that never hits shows nothing"
