"""`lpc gateway` before real vLLM, with sidecar and Redis, each in its own process, called by OpenAI's client."""

import gzip
import itertools
import json
import os
import secrets
import socket
import subprocess
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from lpc_apps.tiny_llama import build
from testing.processes import RedisServer, free_port
from tests.engine.test_serve import ROOT, Sidecar, VllmServer
from tests.eventually import patiently, until

STOPS = {"stop_token_ids": list(range(0, 262, 2)), "min_tokens": 8}
"""Stop tokens: random weights never end a reply."""


class Stack:
    def __init__(self, folder: Path) -> None:
        self.caches = RedisServer(folder / "cache-redis").start()
        (folder / "keys").write_text(f"names: {secrets.token_hex(32)}\nk1: {secrets.token_hex(32)}\n")
        self.sidecar = Sidecar(folder)
        self.sidecar.environment |= {
            "LPC_CACHE_REDIS_URL": self.caches.url,
            "LPC_CACHE_GATEWAYS": "anonymous",
            "LPC_CACHE_KEYS": str(folder / "keys"),
            "LPC_CACHE_REDIS_TIMEOUT_S": "1",
        }
        self.sidecar.start()
        address = f"127.0.0.1:{self.sidecar.port}"
        self.engine = VllmServer(folder, build(folder / "tiny", weights=True), LPC_PREDICTOR_ADDRESS=address)
        self.port, self.metrics_port = free_port(), free_port()
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LPC_")},
            "LPC_PORT": str(self.port),
            "LPC_METRICS_PORT": str(self.metrics_port),
            "LPC_GATEWAY_ENGINES": f"http://127.0.0.1:{self.engine.port}",
            "LPC_GATEWAY_CACHE_ANONYMOUS": "true",
            # long, for busy machines
            "LPC_GATEWAY_LOOKUP_TIMEOUT_S": "10",
            "LPC_PREDICTOR_ADDRESS": address,
        }
        self.log = folder / "gateway.log"
        command = [self.sidecar.python, "-m", "lpc_cli", "gateway"]
        with self.log.open("wb") as log:
            self.gateway = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=ROOT)
        self.engine.wait()
        assert until(lambda: "listening on" in self.log.read_text(), 60)
        assert until(lambda: "listening on" in self.sidecar.log.read_text(), 60)

    def metric(self, line: str) -> float:
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=patiently()).read().decode()
        return next((float(row.rpartition(" ")[2]) for row in text.splitlines() if row.startswith(line + " ")), 0.0)

    def stop(self) -> None:
        self.gateway.terminate()
        self.gateway.wait(patiently())
        self.engine.stop()
        self.sidecar.signal(9)
        self.caches.kill()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(tmp_path_factory.mktemp("gateway"))
    yield made
    made.stop()


def said(client: openai.OpenAI, text: str, **options: Any) -> tuple[str, str | None]:
    """Return the answer's text and the cache's status."""
    asked: Any = {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 256,
        "temperature": 0,
        "extra_body": STOPS,
        **options,
    }
    raw = client.chat.completions.with_raw_response.create(**asked)
    answer, cache = raw.parse(), raw.headers.get("x-lpc-cache")
    if not options.get("stream"):
        assert answer.choices[0].finish_reason == "stop"
        return answer.choices[0].message.content or "", cache
    chunks = [chunk for chunk in answer if chunk.choices]
    assert chunks[-1].choices[0].finish_reason == "stop"
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks), cache


def fates(stack: Stack) -> dict[str, float]:
    """Return the number of the plug-in's predictions by result."""
    return {fate: count for (name, fate), count in stack.engine.metrics().items() if name == "lpc_predictions_total"}


@pytest.mark.timeout(600)
def test_an_answer_of_vllm_is_served_from_the_cache_as_stream_and_as_body(stack: Stack) -> None:
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{stack.port}/v1", api_key="none", timeout=patiently(120), max_retries=0)
    assert [model.id for model in client.models.list()] == ["tiny"]
    for stores, (question, form) in enumerate((("a body", {}), ("a stream", {"stream": True})), 1):
        text, cache = said(client, question, **form)
        assert cache == "miss" and text
        assert until(lambda stores=stores: stack.metric('lpc_gateway_stores_total{result="stored"}') == stores)
        asked = stack.engine.metrics()["vllm:request_success_total", "stop"]
        assert said(client, question, **form) == (text, "exact")
        if not form:  # a body serves a stream, too
            assert said(client, question, stream=True) == (text, "exact")
        assert stack.engine.metrics()["vllm:request_success_total", "stop"] == asked
    assert until(lambda: sum(fates(stack).values()) == 2)
    assert fates(stack)["answered"] + fates(stack)["forgotten"] == 2

    def answered() -> bool:
        """On a busy machine short requests may end before their predictions arrive: ask further questions then."""
        return fates(stack)["answered"] >= 1 or not said(client, f"question {next(further)}")

    further = itertools.count()
    assert until(answered)
    with pytest.raises(openai.NotFoundError):
        said(client, "x", model="absent")
    text = stack.log.read_text() + stack.sidecar.log.read_text()
    assert "swordfish" not in text and text.count('"level": "ERROR"') == 0


@pytest.mark.timeout(600)
def test_without_sidecar_and_redis_the_gateway_is_a_proxy(stack: Stack) -> None:
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{stack.port}/v1", api_key="none", timeout=patiently(120), max_retries=0)
    stack.caches.kill()
    text, cache = said(client, "body")
    assert cache is None and text
    stack.sidecar.signal(9)
    assert said(client, "body", stream=True) == (text, None)


@pytest.mark.timeout(600)
def test_a_tenant_reuses_no_prefix_of_another_however_its_body_is_written(stack: Stack) -> None:
    """In vLLM a hit on another tenant's blocks would show how that tenant's prompt begins."""
    prompt = "the secret of the first tenant, which the second one guesses " * 8
    plain = json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0, "session_id": "s"}).encode()
    written = [
        ({}, plain),
        ({"content-encoding": "gzip"}, gzip.compress(plain)),
        ({"content-encoding": "deflate"}, zlib.compress(plain)),
        ({"content-encoding": "br"}, plain),
        ({}, plain[:-1] + b', "x": ' + b"[" * 101 + b"]" * 101 + b"}"),
        ({}, plain[:-1] + b', "x": ' + b"1" * 5000 + b"}"),
        ({}, plain[:-1] + b', "x": NaN}'),
        ({}, plain[:-1] + b', "cache_salt": "a", "cache_salt": "b"}'),
        ({}, json.dumps(json.loads(plain)).encode("utf-16")),
    ]

    def hits(tenant: str, headers: dict[str, str], body: bytes) -> tuple[int, float]:
        """Return the status of the answer, and the tokens that hit."""
        before = stack.engine.metrics()["vllm:prefix_cache_hits_total", ""]
        fields = {
            "content-type": "application/json",
            "x-forwarded-user": tenant,
            "cache-control": "no-store, no-cache",
            **headers,
        }
        request = urllib.request.Request(f"http://127.0.0.1:{stack.port}/v1/completions", body, fields)
        try:
            status = urllib.request.urlopen(request, timeout=patiently(120)).status
        except urllib.error.HTTPError as error:
            status = error.code
        return status, stack.engine.metrics()["vllm:prefix_cache_hits_total", ""] - before

    assert hits("first", {}, plain)[0] == 200
    assert hits("first", {}, plain)[1] > 100  # it hits its own
    for number, (headers, body) in enumerate(written):
        status, hit = hits(f"guesser {number}", headers, body)
        assert (status, hit) == (200 if number < 3 else status, 0) and (number < 3 or status in (400, 415)), (number, status)
    with socket.create_connection(("127.0.0.1", stack.port), 60) as half:
        half.sendall(b"POST /v1/completions HTTP/1.1\r\n")
        assert hits("first", {}, plain)[0] == 200
