"""What the response caches cost: an exact lookup beside a bare GET, a semantic one beside the embedding, a restart, memory."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypedDict, cast

import numpy as np
import redis.asyncio
from numpy.typing import NDArray

from benchmarks.processes import RedisServer
from benchmarks.responses_partitions import Crossed, crossed
from benchmarks.responses_setup import TIMEOUT_S, BenchCaches, GivenVectors, OpenGate, answer_of, in_turn, question_of
from lpc.model.conversation import UserTurns
from lpc.model.inference import Model
from lpc.model.session import InferenceSettings
from lpc.responses import layout
from lpc.responses.scopes import ScopeSettings
from lpc.wire.redis_connection import Connection
from predictor_service.responses.outcomes import Hit

LOOKUPS: Final = 4000
TURNS: Final = 40
DIMENSIONS: Final = 384
ANSWER_BYTES: Final = 2048
REDISVL_BYTES: Final = 7511
"""RedisVL 0.28.0 on Redis 8.2.3 takes so many for an entry with an answer of 2 KB, measured."""
PROSE: Final = (
    "the cache keeps blocks of finished requests and gives them up when room is needed for others which are asked "
    "for more often while a conversation that goes on is read by its user whose next question comes in a minute or "
    "never"
)
WORDS: Final = PROSE.split()


class Rows(TypedDict):
    """Microseconds, ratios and bytes; see :func:`rows`."""

    exact_lookup_p50_us: float
    bare_get_p50_us: float
    held_get_p50_us: float
    exact_lookup_p50_ratio: float
    embedding_p50_us: float | None
    beyond_embedding_p50_us: float
    beyond_embedding_ratio: float | None
    restart_entries: int
    restart_s: float
    bare_hscan_s: float
    restart_ratio: float
    bytes_per_entry: float
    bytes_per_entry_of_redisvl: float
    bytes_per_vector: float
    answer_bytes_ratio: float
    partitions: Crossed


async def p50_us(work: Callable[[int], Awaitable[object]], times: int) -> float:
    """Return the median of so many runs, microseconds."""
    taken = []
    for number in range(times):
        began = time.perf_counter_ns()
        await work(number)
        taken.append((time.perf_counter_ns() - began) / 1000)
    return statistics.median(taken)


def text_of(rng: np.random.Generator, size: int) -> str:
    """Return prose of so many bytes, which compresses as prose does, or worse: its words come in no order."""
    words: list[str] = []
    while sum(map(len, words)) + len(words) < size:
        words.append(f"{WORDS[rng.integers(len(WORDS))]}{rng.integers(1000) if rng.random() < 0.3 else ''}")
    return " ".join(words)[:size]


def vectors_of(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Return unit vectors that lie in a cone, as a sentence encoder's do: [count, DIMENSIONS]."""
    vectors = rng.standard_normal((count, DIMENSIONS)) * 0.02 + 0.05
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


async def exact(url: str, folder: Path, lookups: int = LOOKUPS) -> dict[str, float]:
    """Return the medians of an exact lookup of a 2 KB answer, and of two bare GETs of the same value.

    One GET is what anybody would write: redis-py's asynchronous client with its defaults, on its own pool. The other one is on
    the connection that the caches hold, which spares that pool; it has no time-out, no generations and nothing to open.
    """
    caches = BenchCaches(url, folder, {"faq": ScopeSettings()})
    rng = np.random.default_rng(0)
    asked = question_of(text_of(rng, 200))
    await caches.cache.store("bench", asked, answer_of(text_of(rng, ANSWER_BYTES)))
    names = caches.store.namer.names("bench", asked)
    key = layout.key(names.scope, "e", layout.text(names.exact))
    held = Connection(url, timeout_s=TIMEOUT_S).make_async_connection()

    async def looked_up(number: int) -> None:
        del number
        assert isinstance(await caches.cache.lookup("bench", asked), Hit)

    async def got(number: int) -> None:
        del number
        assert await client.get(key)

    async def got_held(number: int) -> None:
        del number
        await held.send_command("GET", key)
        assert await held.read_response()

    sides = (got, got_held, looked_up)
    async with redis.asyncio.Redis.from_url(url) as client:
        # In turns, so that what else runs on the machine meets all.
        turns = [[await p50_us(side, lookups // TURNS) for side in sides] for _ in range(TURNS)]
    await held.disconnect()
    await caches.close()
    bare, bare_held, lookup = (statistics.median(column) for column in zip(*turns, strict=True))
    return {
        "exact_lookup_p50_us": lookup,
        "bare_get_p50_us": bare,
        "held_get_p50_us": bare_held,
        "exact_lookup_p50_ratio": lookup / bare,
    }


async def semantic(url: str, folder: Path, entries: int = 10_000, lookups: int = 300) -> float:
    """Return the median, in microseconds, of a semantic hit among so many entries of one partition, without the embedding."""
    rng = np.random.default_rng(1)
    vectors = vectors_of(rng, entries)
    questions = [f"{text_of(rng, 60)} {letters(n)}" for n in range(entries)]
    known = dict(zip(questions, vectors, strict=True))
    known |= {f"{question} then": vectors[n] for n, question in enumerate(questions[:lookups])}
    scopes = {"faq": ScopeSettings(mode="serve")}
    caches = BenchCaches(url, folder, scopes, embedder=GivenVectors(known), make_gate=lambda _: OpenGate())
    assert caches.similar is not None

    async def stored(number: int) -> None:
        await caches.cache.store("bench", question_of(questions[number], language="en"), answer_of(text_of(rng, 500)))

    await in_turn(entries, stored)
    await caches.similar.keep(0.0)
    hits = 0

    async def looked_up(number: int) -> None:
        nonlocal hits
        outcome = await caches.cache.lookup("bench", question_of(f"{questions[number]} then", language="en"))
        hits += isinstance(outcome, Hit)

    median = await p50_us(looked_up, lookups)
    await caches.close()
    assert hits > lookups // 2, f"{hits} hits of {lookups}"
    return median


async def restart(url: str, folder: Path, entries: int) -> dict[str, float]:
    """Return how long it takes until all vectors of a scope are found again, and a bare HSCAN of the same hash."""
    rng = np.random.default_rng(2)
    vectors = vectors_of(rng, entries)
    questions = [f"question {letters(n)}" for n in range(entries)]
    given = GivenVectors(dict(zip(questions, vectors, strict=True)))
    scopes = {"faq": ScopeSettings(mode="serve", max_entries=10_000_000)}
    caches = BenchCaches(url, folder, scopes, embedder=given)

    async def stored(number: int) -> None:
        await caches.cache.store("bench", question_of(questions[number], language="en"), answer_of("Yes."))

    await in_turn(entries, stored)
    await caches.close()
    scans, restarts = [], []
    key = layout.key(caches.store.namer.scope("bench", "faq"), "v", given.encoder())
    for _ in range(3):
        fresh = BenchCaches(url, folder, scopes, embedder=given)
        client: Any = await fresh.redis.ask(_itself)
        began, cursor, fields = time.perf_counter(), 0, 0
        while True:
            cursor, found = await client.hscan(key, cursor, count=1000)
            fields += len(found)
            if not cursor:
                break
        scans.append(time.perf_counter() - began)
        assert fields == entries
        assert fresh.similar is not None
        await fresh.cache.lookup("bench", question_of(questions[0] + " ", language="en"), exact_only=True)
        asked = question_of("question that nobody asked", language="en")
        await fresh.cache.lookup("bench", asked)
        began = time.perf_counter()
        await fresh.similar.keep(0.0)
        restarts.append(time.perf_counter() - began)
        await fresh.close()
    took, bare = statistics.median(restarts), statistics.median(scans)
    return {"restart_entries": entries, "restart_s": took, "bare_hscan_s": bare, "restart_ratio": took / bare}


async def memory(server: RedisServer, folder: Path, entries: int = 5000) -> dict[str, float]:
    """Return what Redis takes for an entry with an answer of 2 KB (all keys), for its vector, and for the answer alone."""
    rng = np.random.default_rng(3)
    vectors = vectors_of(rng, entries)
    questions = [f"{text_of(rng, 60)} {letters(n)}" for n in range(entries)]
    answers = [text_of(rng, ANSWER_BYTES) for _ in range(entries)]
    given = GivenVectors(dict(zip(questions, vectors, strict=True)))
    scopes = {"faq": ScopeSettings(mode="serve", max_entries=10_000_000)}
    caches = BenchCaches(server.url, folder, scopes, embedder=given)
    before = _used(server)

    async def stored(number: int) -> None:
        await caches.cache.store("bench", question_of(questions[number], language="en"), answer_of(answers[number]))

    await in_turn(entries, stored)
    # What connections hold is not of the entries.
    await caches.close()
    after = _used(server)
    scope = caches.store.namer.scope("bench", "faq")
    client: Any = await caches.redis.ask(_itself)
    vectors_bytes = await client.memory_usage(layout.key(scope, "v", given.encoder()), samples=0)
    names = caches.store.namer.names("bench", question_of(questions[0], language="en"))
    entry = await client.memory_usage(layout.key(scope, "e", layout.text(names.exact)))
    await caches.close()
    return {
        "bytes_per_entry": (after - before) / entries,
        "bytes_per_entry_of_redisvl": (after - before) / entries / REDISVL_BYTES,
        "bytes_per_vector": vectors_bytes / entries,
        "answer_bytes_ratio": entry / len(answer_of(answers[0]).body),
    }


def embedding_p50_us(version: Path, times: int = 50) -> float:
    """Return the median of embedding one short question alone, one thread, microseconds. ``version``: a model's folder."""
    model = Model(version, InferenceSettings("cpu", 1))
    taken = []
    for n in range(times):
        began = time.perf_counter_ns()
        model.run_with_embeddings([model.encode(UserTurns((f"How do I reset the password of my account {n}?",), 1))])
        taken.append((time.perf_counter_ns() - began) / 1000)
    return statistics.median(taken)


def rows(folder: Path, version: Path | None = None, entries: int = 100_000) -> Rows:
    """Measure all rows on Redis servers of their own.

    Args:
        folder: for Redis and the key file.
        version: folder of the model whose embedding is compared with; None: without it.
        entries: of the restart, and conversations of which none may be given another's answer.
    """
    found: dict[str, Any] = {}
    for part in (exact, semantic, restart):
        with RedisServer(folder / part.__name__) as server:
            if part is restart:
                found |= asyncio.run(restart(server.url, folder, entries))
            elif part is exact:
                found |= asyncio.run(exact(server.url, folder))
            else:
                found["beyond_embedding_p50_us"] = asyncio.run(semantic(server.url, folder))
    with RedisServer(folder / "memory") as server:
        found |= asyncio.run(memory(server, folder))
    with RedisServer(folder / "partitions") as server:
        found["partitions"] = asyncio.run(crossed(server.url, folder, entries))
    found["embedding_p50_us"] = None if version is None else embedding_p50_us(version)
    found["beyond_embedding_ratio"] = None if version is None else found["beyond_embedding_p50_us"] / found["embedding_p50_us"]
    return cast("Rows", found)


def letters(number: int) -> str:
    """Return a number as letters: vetoes would tell numbers apart."""
    text = ""
    while True:
        number, rest = divmod(number, 26)
        text = chr(ord("a") + rest) + text
        if not number:
            return text


async def _itself(client: Any) -> Any:
    return client


def _used(server: RedisServer) -> int:
    with server.client() as client:
        memory: Any = client.info("memory")
        return int(memory["used_memory"])
