"""SGLang's cache without a model in scaled time counts hits as SGLang does, in SGLang's order, and loses no request."""

import asyncio

import pytest

from testing.scaled_api import Job, word_id, words_of
from testing.scaled_sglang import ScaledSglang
from testing.sglang_cache import Cache

TOKENS = 256


async def answer(engine: ScaledSglang, messages: list[dict[str, str]], reply: int) -> tuple[Job, str]:
    """Return a request that has ended, and its reply."""
    job = engine.admit(words_of(messages), reply)
    return job, " ".join(await words_from(job))


async def words_from(job: Job) -> list[str]:
    words = []
    while (word := await job.words.get()) is not None:
        words.append(word)
    return words


def text(name: str, words: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": " ".join(f"{name}{place}" for place in range(words))}]


@pytest.mark.parametrize("schedule", ["fcfs", "lpm"])
async def test_cached_tokens_are_those_of_the_cache_alone(schedule: str) -> None:
    engine, alone = ScaledSglang(TOKENS, schedule, 1e6, 1e-6), Cache(TOKENS, policy="lru")
    serving = asyncio.create_task(engine.serve())
    chats: dict[str, list[dict[str, str]]] = {"a": [], "b": []}
    found, expected = [], []
    for turn in range(5):
        for name, messages in chats.items():
            messages += text(f"{name}.{turn}.", 30)
            job, reply = await answer(engine, messages, 10)
            found.append(job.cached)
            expected.append(alone.serve(job.name, job.ids, [word_id(word) for word in reply.split()]))
            assert len(reply.split()) == 10
            messages.append({"role": "assistant", "content": reply})
    assert found == expected
    assert found[2] > 30 and found[-1] < max(found)  # the cache is too small for both
    assert engine.reset() and (await answer(engine, chats["b"], 1))[0].cached == 0
    serving.cancel()


@pytest.mark.parametrize(("schedule", "order"), [("fcfs", ["cold", "warm"]), ("lpm", ["warm", "cold"])])
async def test_those_that_wait_start_in_sglangs_order(schedule: str, order: list[str]) -> None:
    engine = ScaledSglang(TOKENS, schedule, 1e6, 1e-6)
    serving = asyncio.create_task(engine.serve())
    await answer(engine, text("warm", 40), 1)
    ended: list[str] = []

    async def ask(name: str) -> None:
        await answer(engine, text(name, 40), 1)
        ended.append(name)

    await asyncio.gather(ask("cold"), ask("warm"))
    assert ended == order
    serving.cancel()


async def test_requests_wait_for_room_and_leave_at_any_time() -> None:
    engine = ScaledSglang(TOKENS, "lpm", 1e5, 1e-3)
    serving = asyncio.create_task(engine.serve())
    jobs = [engine.admit(words_of(text(f"{number}.", 60)), 20 + number) for number in range(12)]
    await jobs[0].words.get()
    for number in (0, 5, 11):
        engine.drop(jobs[number])
    assert not engine.reset()
    for number, job in enumerate(jobs):
        if number not in (0, 5, 11):
            assert len(await words_from(job)) == 20 + number
    while engine.jobs or not engine.reset():
        await asyncio.sleep(0.001)
    assert engine.cache.pool.available_size() == TOKENS
    serving.cancel()


async def test_nothing_is_forgotten_while_a_request_that_has_left_is_in_prefill() -> None:
    engine = ScaledSglang(TOKENS, "lpm", 100.0, 1e-6)
    serving = asyncio.create_task(engine.serve())
    job = engine.admit(words_of(text("a", 60)), 20)
    await asyncio.sleep(0)
    engine.drop(job)
    assert not engine.jobs and not engine.reset()
    while not engine.reset():
        await asyncio.sleep(0.01)
    assert engine.cache.pool.available_size() == TOKENS
    serving.cancel()
