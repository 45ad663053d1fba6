"""`lpc gateway` before two real vLLM: one loses its engine core, which answers 500 then, or is killed, during requests."""

import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import psutil  # type: ignore[import-untyped]
import pytest

from lpc_apps.tiny_llama import build
from testing.processes import free_port
from tests.engine.test_serve import ROOT, Sidecar, VllmServer
from tests.eventually import patiently, until

WORDS = 200
THREADS = 12


class Pair:
    """Two stock engines and a gateway without caches."""

    def __init__(self, folder: Path) -> None:
        model = build(folder / "tiny", weights=True)
        self.engines = [VllmServer(folder, model) for _ in range(2)]
        self.port, self.metrics_port = free_port(), free_port()
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LPC_")},
            "LPC_PORT": str(self.port),
            "LPC_METRICS_PORT": str(self.metrics_port),
            "LPC_GATEWAY_ENGINES": ",".join(f"http://127.0.0.1:{engine.port}" for engine in self.engines),
            "LPC_GATEWAY_CACHE": "false",
        }
        for engine in self.engines:
            engine.wait()
        with (folder / "gateway.log").open("wb") as log:
            command = [str(Sidecar(folder).python), "-m", "lpc_cli", "gateway"]
            self.gateway = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=ROOT)
        assert until(lambda: "listening on" in (folder / "gateway.log").read_text(), 60)

    def ask(self, number: int) -> tuple[int, int]:
        """Return the status and the number of tokens of an answer."""
        body = {"model": "tiny", "prompt": f"conversation {number}", "max_tokens": WORDS, "ignore_eos": True}
        answer = httpx2.post(f"http://127.0.0.1:{self.port}/v1/completions", json=body, timeout=patiently(120), trust_env=False)
        found = answer.json()
        return answer.status_code, found["usage"]["completion_tokens"] if answer.status_code == 200 else 0

    def running(self, engine: VllmServer) -> float:
        return engine.metrics()["vllm:num_requests_running", ""]

    def up(self, engine: VllmServer) -> bool:
        text = httpx2.get(f"http://127.0.0.1:{self.metrics_port}/metrics", trust_env=False).text
        return f'lpc_gateway_engine_up{{engine="127.0.0.1:{engine.port}"}} 1.0' in text

    def stop(self) -> None:
        self.gateway.terminate()
        self.gateway.wait(patiently())
        for engine in self.engines:
            engine.stop()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.stop()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", ["its core", pytest.param("all of it", marks=pytest.mark.nightly)])
def test_no_client_sees_that_an_engine_dies_while_it_computes_answers(pair: Pair, what: str) -> None:
    dying = pair.engines[0]
    enough = threading.Event()

    def ask_on(first: int) -> list[tuple[int, int]]:
        numbers = itertools.count(first, THREADS)
        return [pair.ask(next(numbers)) for _ in itertools.takewhile(lambda _: not enough.is_set(), itertools.count())]

    with ThreadPoolExecutor(THREADS) as threads:
        asking = [threads.submit(ask_on, first) for first in range(THREADS)]
        try:
            assert until(lambda: pair.running(dying) >= 2, 120)
            children = psutil.Process(dying.process.pid).children(recursive=True)
            (core,) = [process.pid for process in children if "EngineCore" in " ".join(process.cmdline())]
            os.kill(core if what == "its core" else dying.process.pid, signal.SIGKILL)
            assert until(lambda: not pair.up(dying), 60)
        finally:
            enough.set()
        answers = [answer for one in asking for answer in one.result()]
    assert len(answers) >= THREADS and set(answers) == {(200, WORDS)}
    assert pair.up(pair.engines[1])
    assert [pair.ask(number) for number in range(4)] == [(200, WORDS)] * 4
