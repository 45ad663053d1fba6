"""Repair before real vLLM: traffic with planted causes hits as much, with and without it, as `lpc why --repair` replays."""

import json
import os
import random
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.tiny_llama import CHAT_TEMPLATE, build
from testing.processes import free_port
from tests.engine.test_serve import ROOT, VllmServer
from tests.eventually import patiently, until

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="Repair of prompts by the gateway, hits as replayed")
PYTHON = ROOT / ".venv" / "bin" / "python"
TEMPLATE = "{% for tool in tools or [] %}<|system|>tool {{ tool | tojson }}<|end|>{% endfor %}" + CHAT_TEMPLATE
CONVERSATIONS, TURNS = 4, 4
WORDS = ["river", "stone", "maple", "copper", "signal", "garden", "window", "planet", "engine", "harbor", "cotton", "silver"]
RULES = "tool-order,move-time,move-id"


class Engine(VllmServer):
    """Stock `vllm serve` with room for all prompts."""

    def __init__(self, folder: Path) -> None:
        model = build(folder / "tiny", weights=True)
        config = model / "tokenizer_config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": TEMPLATE}))
        super().__init__(
            folder,
            model,
            options=("--num-gpu-blocks-override", "2500", "--max-model-len", "8192", "--enable-prompt-tokens-details"),
        )


class Gateway:
    """`lpc gateway` before an engine, in a process of its own."""

    def __init__(self, folder: Path, engine: VllmServer, **settings: str) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        self.log = folder / f"gateway-{self.port}.log"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LPC_")},
            "LPC_PORT": str(self.port),
            "LPC_METRICS_PORT": str(self.metrics_port),
            "LPC_GATEWAY_ENGINES": f"http://127.0.0.1:{engine.port}",
            "LPC_GATEWAY_CACHE": "false",
            "PYTHONPATH": str(ROOT),
            **settings,
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [PYTHON, "-m", "lpc_cli", "gateway"], env=environment, stdout=log, stderr=log, cwd=ROOT
            )
        assert until(lambda: "listening on" in self.log.read_text(), 60)

    def ask(self, body: Any) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        return json.loads(urllib.request.urlopen(request, timeout=patiently(240)).read())

    def metric(self, line: str) -> float:
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=patiently()).read().decode()
        return next((float(row.rpartition(" ")[2]) for row in text.splitlines() if row.startswith(line + " ")), 0.0)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(patiently())


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    made = Engine(tmp_path_factory.mktemp("repair"))
    try:
        made.wait()
        yield made
    finally:
        made.stop()


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


def relayed(gateway: Gateway, *, planted: bool, salt: str) -> tuple[float, list[dict[str, Any]]]:
    """Send conversations as a relay does that plants causes; return the share of cached tokens, and the log.

    ``salt``: of the cache, so that no run hits what another one has computed.
    """
    rng, noise = random.Random(1), random.Random(2)
    system = words(rng, 500)
    tools = [
        {"type": "function", "function": {"name": name, "description": words(rng, 30), "parameters": {"type": "object"}}}
        for name in ("calendar", "mail", "search")
    ]
    histories: list[list[dict[str, Any]]] = [[] for _ in range(CONVERSATIONS)]
    tokens = cached = 0
    log = []
    for turn in range(TURNS):
        for number, history in enumerate(histories):
            history.append({"role": "user", "content": words(rng, 60)})
            at = TURNS * number + turn
            relay = f"Current time: 2026-11-30T11:{at:02}:01Z\nRequest ID: {noise.getrandbits(64):016x}\n" if planted else ""
            body = {
                "model": "tiny",
                "messages": [{"role": "system", "content": relay + system}, *history],
                "tools": noise.sample(tools, len(tools)) if planted else tools,
            }
            answer = gateway.ask({**body, "tool_choice": "none", "max_tokens": 16, "temperature": 0, "cache_salt": salt})
            reply = {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
            log.append({"time": 1.7e9 + len(log), **body, "messages": list(body["messages"]), "response": reply})
            history.append(reply)
            tokens += answer["usage"]["prompt_tokens"]
            cached += (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0
    return cached / tokens, log


@pytest.mark.timeout(900)
def test_vllm_hits_as_much_as_the_replay_with_and_without_repair(engine: VllmServer, tmp_path: Path) -> None:
    plain, repairing = Gateway(tmp_path, engine), Gateway(tmp_path, engine, LPC_GATEWAY_REPAIR=RULES)
    try:
        without_cause, _ = relayed(plain, planted=False, salt="clean")
        before, log = relayed(plain, planted=True, salt="planted")
        after, _ = relayed(repairing, planted=True, salt="repaired")
        counted = [
            repairing.metric(f'lpc_gateway_repair_prompt_tokens_total{{found="{found}",group="repaired"}}')
            for found in ("cached", "computed")
        ]
    finally:
        plain.stop()
        repairing.stop()
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in log))
    command = [PYTHON, "-m", "lpc_cli", "why", tmp_path / "log.jsonl", "--repair", "--engine", "vllm", "--json"]
    found = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    repair = json.loads(found.stdout)["repair"]
    measured = {"clean": without_cause, "planted": before, "repaired": after}
    replayed = {"planted": repair["hit_rate"], "repaired": repair["hit_rate_repaired"]}
    print(f"measured {measured}, replayed {replayed}")
    assert repair["settings"] == f"LPC_GATEWAY_REPAIR={RULES}"
    assert abs(before - replayed["planted"]) < 0.02 and abs(after - replayed["repaired"]) < 0.02, (measured, replayed)
    assert after > before + 0.3
    assert counted[0] / sum(counted) == pytest.approx(after, abs=0.001)
