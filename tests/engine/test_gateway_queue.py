"""`lpc gateway` before one real, stock vLLM whose cache is smaller than what its sessions need: with and without the queue."""

import itertools
import os
import random
import string
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from lpc_apps.tiny_llama import build
from testing.processes import free_port
from tests.engine.test_serve import ROOT, Sidecar, VllmServer
from tests.eventually import patiently, until

BLOCKS, BLOCK = 320, 32
SESSIONS, TURNS, WORDS = 24, 8, 120
"""Each turn adds so many letters, each a token: all sessions together need more than twice the cache's 10,240 tokens."""


class Stack:
    """A stock engine; :meth:`gateway` starts a gateway before it."""

    def __init__(self, folder: Path) -> None:
        wide = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 8}
        model = build(folder / "tiny", weights=True, layers=4, shape=wide)
        options = ("--num-gpu-blocks-override", str(BLOCKS), "--max-num-seqs", "4", "--enable-prompt-tokens-details")
        self.folder = folder
        self.gateways: list[subprocess.Popen[bytes]] = []
        self.engine = VllmServer(folder, model, options=options)
        try:
            self.engine.wait()
        except BaseException:
            self.stop()
            raise

    def gateway(self, queue: str) -> str:
        """Start a gateway, and return its address. It asks for the cache's size within a second."""
        port, log = free_port(), self.folder / f"gateway-{queue}.log"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LPC_")},
            "LPC_PORT": str(port),
            "LPC_METRICS_PORT": "",
            "LPC_GATEWAY_ENGINES": f"http://127.0.0.1:{self.engine.port}",
            "LPC_GATEWAY_CACHE": "false",
            "LPC_GATEWAY_QUEUE": queue,
        }
        with log.open("wb") as file:
            command = [str(Sidecar(self.folder).python), "-m", "lpc_cli", "gateway"]
            self.gateways.append(subprocess.Popen(command, env=environment, stdout=file, stderr=file, cwd=ROOT))
        assert until(lambda: "listening on" in log.read_text(), 60)
        return f"http://127.0.0.1:{port}/v1"

    def stop(self) -> None:
        for one in self.gateways:
            one.terminate()
            one.wait(patiently())
        self.engine.stop()


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    made = Stack(tmp_path)
    yield made
    made.stop()


def hits(url: str, seed: int, *, stream: bool) -> float:
    """Return the share of the prompt tokens that were cached, of sessions that ask on as soon as they are answered."""

    def session(number: int) -> tuple[int, int]:
        client = openai.OpenAI(base_url=url, api_key="none", timeout=patiently(300), max_retries=0)
        rng = random.Random(1000 * seed + number)
        messages: list[dict[str, str]] = []
        cached = prompt = 0
        for turn in range(TURNS):
            messages.append({"role": "user", "content": "".join(rng.choices(string.ascii_letters, k=WORDS))})
            common = {"model": "tiny", "messages": messages, "max_tokens": 4, "temperature": 0}
            header = {"x-session-id": f"{seed}-{number}"}
            text = ""
            if stream:
                asked = {**common, "stream": True, "stream_options": {"include_usage": True}}
                for chunk in client.chat.completions.create(**asked, extra_headers=header):  # type: ignore[call-overload]
                    text += "".join(choice.delta.content or "" for choice in chunk.choices)
                    usage = chunk.usage
            else:
                answer = client.chat.completions.create(**common, extra_headers=header)  # type: ignore[call-overload]
                text, usage = answer.choices[0].message.content or "", answer.usage
            messages.append({"role": "assistant", "content": text})
            if turn >= TURNS // 2:  # the first turns fit into the cache
                prompt += usage.prompt_tokens
                cached += usage.prompt_tokens_details.cached_tokens or 0
        return cached, prompt

    with ThreadPoolExecutor(SESSIONS) as threads:
        cached, prompt = map(sum, zip(*threads.map(session, itertools.islice(itertools.count(), SESSIONS)), strict=True))
    print(f"stream {stream}, seed {seed}: {cached / prompt:.1%} of {prompt} tokens cached")
    return cached / prompt


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stream", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_sessions_beyond_the_cache_hit_more_with_the_gateways_queue(stack: Stack, stream: bool) -> None:
    off, on = stack.gateway("off"), stack.gateway("warm-first")
    without = hits(off, 1, stream=stream)
    assert hits(on, 2, stream=stream) > without + 0.2
