"""The client in Go against a real sidecar, and its order against a sorted list. `make test-go` builds it; else skipped."""

import asyncio
import contextlib
import json
import os
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from eviction_client.credit import CreditGrid
from eviction_client.guard import Guard
from eviction_client.stores.base import pooled
from lpc.bench.processes import free_port
from lpc.model.returns.credit import LIFETIMES
from tests.integration.test_returns import LONG, SHORT, sidecar

PROGRAM = os.environ.get("LPC_TEST_GO")
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="built by `make test-go`"),
    pytest.mark.supports(
        engine="any, by gRPC",
        tier="its own",
        what="the client in Go: learned credit under a guard, late answers, a sidecar that goes and comes",
    ),
]


class Program:
    """lpc-replay, a line at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def do(self, op: str, **line: object) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **line}).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await asyncio.wait_for(self._process.stdout.readline(), 30))
        return answer

    async def until(self, so: Callable[[dict[str, Any]], bool], op: str = "state", **line: object) -> dict[str, Any]:
        for _ in range(600):
            if so(answer := await self.do(op, **line)):
                return answer
            await asyncio.sleep(0.05)
        raise AssertionError(f"{op}: still {answer}")


@contextlib.asynccontextmanager
async def program(port: int, blocks: int = 100, *, guard: bool = False) -> AsyncIterator[Program]:
    process = await asyncio.create_subprocess_exec(
        *(str(PROGRAM), "-address", f"127.0.0.1:{port}", "-blocks", str(blocks), f"-guard={str(guard).lower()}"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Program(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 30) == 0


async def turn(go: Program, name: str, length: int, at: float) -> float:
    """One turn of a conversation, whose end waits for the answer; return the credit of its blocks."""
    chain = [f"{name}{n}" for n in range(2)]
    await go.do("admit", id=name, conversation=name, prompt="x" * length, blocks=chain)
    await asyncio.sleep(0.5)
    return float((await go.do("end", id=name, conversation=name, blocks=chain, at=at))["Credit"])


async def test_who_returns_stays_and_who_does_not_goes_first(tiny_models: Path) -> None:
    async with sidecar(tiny_models) as running, program(running.addresses.port or 0, blocks=1) as go:
        await running.traffic(4)
        await go.until(lambda state: state["Connected"])
        # A block that lives for 10 s, so that the lifetime is the one at which the traffic's two kinds are told apart.
        await go.do("admit", id="x", blocks=["x"])
        await go.do("end", id="x", blocks=["x"], at=1.0)
        assert (await go.do("evict", count=1, at=11.0))["Lifetime"] == 10.0
        long, short = await turn(go, "long", LONG, at=100.0), await turn(go, "short", SHORT, at=101.0)
        assert long > 0 > short
        assert (await go.do("evict", count=4, at=102.0))["Evicted"] == ["short1", "short0", "long1", "long0"]


async def test_a_sidecar_that_goes_leaves_lru_and_one_that_comes_back_is_asked_again(tiny_models: Path) -> None:
    port = free_port()
    async with program(port) as go:
        assert await turn(go, "before", LONG, at=10.0) == 0.0
        async with sidecar(tiny_models, port=port) as running:
            await running.traffic(4)
            await go.until(lambda state: state["Connected"])
            assert await turn(go, "with", LONG, at=20.0) != 0.0
        await go.until(lambda state: not state["Connected"])
        assert await turn(go, "after", LONG, at=30.0) == 0.0
        async with sidecar(tiny_models, port=port) as running:
            await running.traffic(4)
            await go.until(lambda state: state["Connected"])
            assert await turn(go, "again", LONG, at=40.0) != 0.0


async def test_an_answer_that_comes_after_the_end_is_laid_on_what_is_still_free(tiny_models: Path) -> None:
    async with sidecar(tiny_models) as running, program(running.addresses.port or 0) as go:
        await running.traffic(4)
        await go.until(lambda state: state["Connected"])
        laid = 0
        for number in range(20):  # the answer may be quicker than the end
            name = f"short {number}"
            await go.do("admit", id=name, conversation=name, prompt="x" * SHORT, blocks=[name])
            await go.do("end", id=name, conversation=name, blocks=[name], at=1000.0 + number)
        for _ in range(100):
            laid += (await go.do("step"))["Laid"]
            if laid:
                break
            await asyncio.sleep(0.05)
        assert laid > 0


async def test_the_credit_between_two_lifetimes_is_the_one_that_engines_in_python_take() -> None:
    rng = random.Random(1)
    lifetimes = LIFETIMES.tolist()
    grid = CreditGrid(lifetimes)
    async with program(free_port()) as go:
        for _ in range(100):
            table = [rng.uniform(-500, 500) for _ in lifetimes]
            lifetime = rng.choice([0.1, 1e6, *lifetimes[:3], rng.uniform(1, 20_000)])
            answer = await go.do("interpolate", lifetimes=lifetimes, credit=table, lifetime=lifetime)
            assert answer["Credit"] == pytest.approx(grid.table(table).at(lifetime), rel=1e-5, abs=1e-3)


async def test_its_guard_is_that_of_the_client_in_python() -> None:
    rng = random.Random(3)
    python = Guard()
    async with program(free_port()) as go:
        ours, theirs = list[int](), list[int]()
        for favour in (0, 2, 2, -3, 0, 3, -1, 1):
            for _ in range(700):
                ours.append(rng.randrange(8) + max(favour, 0))
                theirs.append(rng.randrange(8) + max(-favour, 0))
        trusted = [python.observe(credit, lru) for credit, lru in zip(ours, theirs, strict=True)]
        assert python.switches > 2
        assert (await go.do("guard", creditHits=ours, lruHits=theirs))["Trusted"] == trusted


async def test_while_the_guard_trusts_no_credit_the_order_is_least_recent_use(tiny_models: Path) -> None:
    async with sidecar(tiny_models) as running, program(running.addresses.port or 0, blocks=1, guard=True) as go:
        await running.traffic(4)
        await go.until(lambda state: state["Connected"])
        long, short = await turn(go, "long", LONG, at=100.0), await turn(go, "short", SHORT, at=101.0)
        assert long > short
        assert (await go.do("evict", count=4, at=102.0))["Evicted"] == ["long1", "long0", "short1", "short0"]


async def test_a_random_course_evicts_what_a_sorted_list_would() -> None:
    rng = random.Random(2)
    known: dict[str, tuple[str | None, float, int, int]] = {}  # owner, key, depth, freed
    freed = 0
    async with program(free_port(), blocks=60) as go:
        for now in range(1, 400):
            conversation, depth = f"c{rng.randrange(12)}", rng.randrange(1, 5)
            chain = ["system", *(f"{conversation}-{n}" for n in range(1, depth))]
            hits = 0
            while hits < len(chain) and chain[hits] in known:
                hits += 1
            assert (await go.do("admit", id="r", conversation=conversation, blocks=chain))["Hits"] == hits
            await go.do("end", id="r", conversation=conversation, blocks=chain, at=now, aborted=True)
            for n, block in enumerate(chain):
                freed += 1
                owner, key, *_ = known.get(block, (None, 0.0))
                known[block] = (*pooled(owner, key, conversation, float(now)), n, freed)
            if rng.random() < 0.4:
                order = sorted(known, key=lambda block: (known[block][1], -known[block][2], known[block][3]))
                count = rng.randrange(1, 6)
                assert (await go.do("evict", count=count, at=now))["Evicted"] == order[:count]
                for block in order[:count]:
                    del known[block]
