"""The client in Go against a real sidecar, and its values against Python's. `make test-go` builds it; else skipped."""

import asyncio
import contextlib
import json
import os
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from lpc.model.curve import INTERVALS, KNOTS, retain_seconds, value_at, values
from lpc.v1 import predictor_pb2 as pb
from testing.processes import free_port
from tests.eventually import eventually, patiently
from tests.integration.test_returns import LONG, SHORT, sidecar

PROGRAM = os.environ.get("LPC_TEST_GO")
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="built by `make test-go`"),
    pytest.mark.supports(
        engine="any, by gRPC",
        tier="its own",
        what="the client in Go: retain seconds by reuse group, a sidecar that goes and comes",
    ),
]


class Program:
    """lpc-retain, a line at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def do(self, op: str, **line: object) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **line}).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await asyncio.wait_for(self._process.stdout.readline(), patiently()))
        return answer

    async def until(self, so: Callable[[dict[str, Any]], bool]) -> None:
        for _ in range(600):
            if so(answer := await self.do("state")):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"still {answer}")


@contextlib.asynccontextmanager
async def program(port: int) -> AsyncIterator[Program]:
    process = await asyncio.create_subprocess_exec(
        *(str(PROGRAM), "-address", f"127.0.0.1:{port}"), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield Program(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), patiently()) == 0


async def turn(go: Program, name: str, length: int) -> dict[str, Any]:
    """One turn of a conversation, whose end waits for the answer."""
    await go.do("admit", id=name, conversation=name, prompt="x" * length)
    await asyncio.sleep(0.5)
    return await go.do("end", id=name)


async def test_conversations_that_return_are_retained_longer_than_others(tiny_models: Path) -> None:
    async with sidecar(tiny_models, refit_s=0.05) as running, program(running.addresses.port or 0) as go:
        await running.traffic(5)

        async def grouped() -> bool:
            return bool((await running.stub.GetModelInfo(pb.GetModelInfoRequest())).reuse_curves.curves)

        await eventually(grouped)
        await go.until(lambda state: bool(state["Connected"]))
        before = await turn(go, "short", SHORT)
        assert before["Answered"] and before["Seconds"] == 0.0, "there is no price yet"

        async def longer() -> bool:
            """A group that is new has no curve until the sidecar publishes the next curves."""
            await turn(go, "short", SHORT)
            await go.do("evicted", id="short", age=0.0)  # the price of room: its value to conversations that do not return
            long, short = await turn(go, "another long", LONG), await turn(go, "another short", SHORT)
            return bool(long["Seconds"] > short["Seconds"] > 0)

        await eventually(longer)


async def test_a_sidecar_that_goes_leaves_no_answers_and_one_that_comes_back_is_asked_again(tiny_models: Path) -> None:
    port = free_port()
    async with program(port) as go:
        assert not (await turn(go, "before", LONG))["Answered"]
        for number in range(2):
            async with sidecar(tiny_models, port=port):
                await go.until(lambda state: bool(state["Connected"]))
                assert (await turn(go, f"with {number}", LONG))["Answered"]
            await go.until(lambda state: not state["Connected"])
            assert not (await turn(go, f"after {number}", LONG))["Answered"]


async def test_its_values_and_retain_seconds_are_those_of_the_client_in_python() -> None:
    rng = random.Random(1)
    async with program(free_port()) as go:
        for _ in range(100):
            hazards = [rng.random() ** rng.choice([1, 4, 12]) for _ in range(INTERVALS)]
            table, age = values(hazards), rng.choice([0.0, 14_400.0, 40_000.0, rng.uniform(0, 14_400)])
            price = rng.choice([0.0, 1.0, 1e-9, rng.choice(table) * rng.uniform(0.9, 1.1)])
            answer = await go.do("values", hazards=hazards, age=age, price=price)
            assert len(answer["Values"]) == len(KNOTS) + 1
            # Hazards are single-precision in Go, as on the wire.
            assert answer["Values"] == pytest.approx([*table, value_at(table, age)], rel=1e-5, abs=1e-12)
            assert answer["Seconds"] == retain_seconds(table, price)
