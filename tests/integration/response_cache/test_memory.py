"""The memory of an entry in Redis, by which operators choose its size (docs/how-to/response-caches.md)."""

from pathlib import Path
from typing import Any

import numpy as np

from response_cache.store import layout
from response_cache.store.scopes import ScopeSettings
from testing.processes import RedisServer
from tests.response_cache import Caches, GivenVectors, answer, asked, in_turn

ENTRIES = 1000
DIMENSIONS = 384
ANSWER_BYTES = 2048
PROSE = (
    "the cache keeps blocks of finished requests and gives them up when room is needed for others which are asked "
    "for more often while a conversation that goes on is read by its user whose next question comes in a minute or "
    "never"
)
WORDS = PROSE.split()


def text_of(rng: np.random.Generator, size: int) -> str:
    """Return prose of this many bytes, which compresses no better than real prose: its words are in random order."""
    words: list[str] = []
    while sum(map(len, words)) + len(words) < size:
        words.append(f"{WORDS[rng.integers(len(WORDS))]}{rng.integers(1000) if rng.random() < 0.3 else ''}")
    return " ".join(words)[:size]


def used(server: RedisServer) -> int:
    with server.client() as client:
        memory: Any = client.info("memory")
        return int(memory["used_memory"])


async def itself(client: Any) -> Any:
    return client


async def test_an_entry_with_an_answer_of_2_kb_takes_at_most_4500_bytes(redis_server: RedisServer, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((ENTRIES, DIMENSIONS)) * 0.02 + 0.05
    vectors = np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)
    questions = [f"{text_of(rng, 60)} {number}" for number in range(ENTRIES)]
    answers = [answer(text_of(rng, ANSWER_BYTES)) for _ in range(ENTRIES)]
    given = GivenVectors(dict(zip(questions, vectors, strict=True)))
    scopes = {"faq": ScopeSettings(mode="serve", max_entries=10_000_000)}
    caches = Caches(redis_server.url, tmp_path, scopes, embedder=given)
    before = used(redis_server)

    async def stored(number: int) -> None:
        await caches.cache.store("client", asked(questions[number]), answers[number])

    await in_turn(ENTRIES, stored)
    await caches.close()  # what connections hold is not of the entries
    assert (used(redis_server) - before) / ENTRIES <= 4500
    client: Any = await caches.redis.ask(itself)
    scope = caches.store.namer.scope("client", "faq")
    assert await client.memory_usage(layout.key(scope, "v", given.encoder()), samples=0) / ENTRIES <= 1.1 * 1024
    names = caches.store.namer.names("client", asked(questions[0]))
    entry = await client.memory_usage(layout.key(scope, "e", layout.text(names.exact)))
    assert entry / len(answers[0].body) <= 1.35
    await caches.close()
