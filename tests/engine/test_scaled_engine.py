"""Engines without a model in scaled time: they count hits as vLLM does, and benchmark `fleet` runs on them."""

import asyncio
import io
import json
import socket
import subprocess
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import zmq
import zmq.asyncio

from testing.bare_scheduler import BLOCK
from testing.scaled_api import Api, Job, word_id, words_of
from testing.scaled_engine import ScaledEngine, made

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"
BLOCKS = 16


async def answer(engine: ScaledEngine, messages: list[dict[str, str]], reply: int) -> tuple[Job, str]:
    """Return a request that has ended, and its reply."""
    job = engine.admit(words_of(messages), reply)
    words = []
    while (word := await job.words.get()) is not None:
        words.append(word)
    return job, " ".join(words)


def conversation(name: str, turns: int) -> list[list[str]]:
    return [[f"{name}.{turn}.{place}" for place in range(30)] for turn in range(turns)]


async def serve(schedule: str) -> tuple[list[int], list[list[int]]]:
    """Serve two conversations whose turns alternate; return the cached tokens and the prompts."""
    engine = ScaledEngine(made(BLOCKS, schedule, 64), 1e6, 1e-6)
    serving = asyncio.create_task(engine.serve())
    chats: dict[str, list[dict[str, str]]] = {"a": [], "b": []}
    cached, prompts = [], []
    for turn in range(4):
        for name, messages in chats.items():
            messages.append({"role": "user", "content": " ".join(conversation(name, 4)[turn])})
            prompts.append([word_id(word) for word in words_of(messages)])
            job, reply = await answer(engine, messages, 20)
            assert len(reply.split()) == 20
            messages.append({"role": "assistant", "content": reply})
            cached.append(job.cached)
    assert not engine.jobs and not engine._due
    serving.cancel()
    return cached, prompts


def _following(prompt: list[int], request: Any) -> int:
    return prompt[request.num_tokens]


@pytest.mark.parametrize("schedule", ["stock", "learned"])
async def test_cached_tokens_are_those_of_the_scheduler_alone(schedule: str) -> None:
    cached, prompts = await serve(schedule)
    alone = made(BLOCKS, schedule, 64)
    replies = iter(prompts[2:] + [[0] * 999] * 2)
    for number, prompt in enumerate(prompts):
        # The conversation's next prompt repeats the reply.
        alone.next_token = partial(_following, next(replies))
        alone.add(str(number), prompt, 20)
        while alone.scheduler.has_unfinished_requests():
            alone.step()
    assert cached == list(alone.outcome.hits.values())
    assert cached[2] == (len(prompts[0]) + 19) // BLOCK * BLOCK  # the prompt and its reply but for the last word
    assert cached[-1] < max(cached)  # the cache is too small for both


async def test_a_client_that_leaves_takes_its_request_out() -> None:
    engine = ScaledEngine(made(BLOCKS, "stock", 64), 1e6, 1e-6)
    serving = asyncio.create_task(engine.serve())
    gone = engine.admit(["a"] * 40, 300)
    await gone.words.get()
    engine.drop(gone)
    _, reply = await answer(engine, [{"role": "user", "content": "a"}], 3)
    assert len(reply.split()) == 3 and not engine.jobs
    assert not engine.scheduler.has_unfinished_requests()
    serving.cancel()


def archive(path: Path, sessions: int) -> None:
    """Write recorded sessions with two shared blocks of 64 tokens at their beginning."""
    with tarfile.open(path, "w:gz") as packed:
        for number in range(sessions):
            blocks = [1, 2, *(1000 * (number + 1) + place for place in range(40))]
            calls = [
                {"t": 2.0 * turn, "in": 64 * (8 + 4 * turn), "out": 40, "hash_ids": blocks[: 8 + 4 * turn], "api_time": 1.0}
                for turn in range(5)
            ]
            content = json.dumps({"id": f"s{number}", "block_size": 64, "hash_id_scope": "global", "requests": calls}).encode()
            entry = tarfile.TarInfo(f"{number}.json")
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))


def figures(folder: Path, *options: str) -> list[dict[str, Any]]:
    """Return the rows of a small run of benchmark `fleet`."""
    archive(folder / "agents.tar.gz", 30)
    command = [PYTHON, "-m", "benchmarks", "fleet", "--archive", folder / "agents.tar.gz", "--engines", "2"]
    command += ["--sessions", "20", "--requests", "100", "--capacity", "100k", "--scale", "16", "--time-scale", "0.05"]
    finished = subprocess.run(
        [*command, *options, "--output", folder / "figures.json"], cwd=ROOT, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    rows: list[dict[str, Any]] = json.loads((folder / "figures.json").read_text())["rows"]
    for row in rows:
        assert row["failed"] == 0 and row["requests"] == 75
    return rows


@pytest.mark.timeout(600)
def test_the_benchmark_runs_with_all_routers_of_this_project(tmp_path: Path) -> None:
    rows = figures(tmp_path)
    assert [row["router"] for row in rows] == ["hash", "cost", "cost+queue"]
    for row in rows:
        # Nothing is evicted, so only the new words of a prompt, the first prompts, and parts of blocks are missed.
        assert 0.5 < row["hit_rate"] < 0.9
        assert row["stayed"] == 1.0


@pytest.mark.timeout(600)
def test_two_gateways_keep_sessions_without_a_name_at_their_engines_if_they_have_a_redis(tmp_path: Path) -> None:
    rows = figures(tmp_path, "--gateways", "2", "--routers", "cost", "--unnamed")
    assert [(row["router"], row["gateways"], row["redis"]) for row in rows] == [("cost", 2, False), ("cost", 2, True)]
    assert rows[1]["stayed"] >= max(rows[0]["stayed"], 0.95)


async def test_the_rendered_prompt_is_the_one_that_the_engine_computes() -> None:
    messages = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]
    app = Api(ScaledEngine(made(BLOCKS, "stock", 64), 1e6, 1e-6), "engine", BLOCKS * BLOCK)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://engine") as http:
        answer = (await http.post("/v1/chat/completions/render", json={"messages": messages})).json()
        assert answer["token_ids"] == [word_id(word) for word in words_of(messages)]
        assert (await http.post("/tokenize", json={"messages": messages})).json()["tokens"] == answer["token_ids"]


async def test_an_engine_publishes_the_blocks_that_it_stores() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    engine = ScaledEngine(made(BLOCKS, "stock", 64, port), 1e6, 1e-6)
    serving = asyncio.create_task(engine.serve())
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as events:
        events.subscribe(b"")
        events.connect(f"tcp://127.0.0.1:{port}")
        for number in range(200):  # a subscription takes a moment
            words = [f"{number}.{place}" for place in range(BLOCK)]
            await answer(engine, [{"role": "user", "content": " ".join(words)}], 3)
            if await events.poll(100):
                break
        else:
            raise AssertionError("no event came")
        stored = msgspec.msgpack.decode((await events.recv_multipart())[-1])
        assert "BlockStored" in str(stored) and str(word_id("<user>")) in str(stored)
    serving.cancel()
