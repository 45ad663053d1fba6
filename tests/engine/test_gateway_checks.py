"""Hit checks of `lpc gateway` before real vLLM: true hits are equal, and blocks of an adapter's former weights are found."""

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lpc_apps.tiny_llama import build
from tests.engine.test_repair import Gateway
from tests.engine.test_serve import VllmServer
from tests.eventually import patiently, until

EVERY = {"LPC_GATEWAY_CHECK_SHARE": "1"}
PROMPT = "Once upon a time there was a block that nobody had computed. " * 12


def adapter(folder: Path, seed: int) -> Path:
    """Write an adapter with random weights, in place of the one that is there."""
    folder.mkdir(exist_ok=True)
    layers = json.loads((folder.parent / "tiny" / "config.json").read_text())
    wide, rank = layers["hidden_size"], 8
    random = torch.Generator().manual_seed(seed)
    weights = {
        f"base_model.model.model.layers.{layer}.self_attn.{name}_proj.lora_{side}.weight": torch.randn(
            (rank, wide) if side == "A" else (wide, rank), generator=random
        )
        for layer in range(layers["num_hidden_layers"])
        for name in ("k", "v")
        for side in ("A", "B")
    }
    save_file(weights, str(folder / "adapter_model.safetensors"))
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["k_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("checks")
    return made


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[VllmServer]:
    model = build(folder / "tiny", weights=True)
    settings = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "LPC_HINTS_SHARE": "0.1", "LPC_RULE": "lru"}
    options = ("--enable-prompt-tokens-details", "--enable-lora", "--max-lora-rank", "8", "--max-loras", "1")
    made = VllmServer(folder, model, options=options, **settings)
    try:
        made.wait()
        yield made
    finally:
        made.stop()


def load(engine: VllmServer, path: Path, **more: Any) -> None:
    body = json.dumps({"lora_name": "mine", "lora_path": str(path), **more}).encode()
    address = f"http://127.0.0.1:{engine.port}/v1/load_lora_adapter"
    urllib.request.urlopen(urllib.request.Request(address, body, {"content-type": "application/json"}), timeout=patiently())


def outcomes(gateway: Gateway) -> dict[str, float]:
    """Return the results of checks so far, and the reasons of requests that were not checked."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{gateway.metrics_port}/metrics", timeout=patiently()).read().decode()
    rows = re.findall(r'(?m)^lpc_gateway_checks(?:_skipped)?_total\{.*(?:result|reason)="(\w+)"\} (\S+)$', text)
    return {name: float(number) for name, number in rows if float(number)}


def after(gateway: Gateway, requests: int) -> dict[str, float]:
    """Wait until so many requests have an outcome, and return the outcomes."""
    until(lambda: sum(outcomes(gateway).values()) >= requests)
    return outcomes(gateway)


def ask(gateway: Gateway, text: str, model: str = "tiny", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = gateway.ask(
        {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 40, **more}
    )
    return found


def cached(answer: dict[str, Any]) -> int:
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


@pytest.mark.parametrize("kind", ["vllm", "any"])
def test_true_hits_are_equal_and_what_was_computed_for_them_is_evicted_first(
    folder: Path, engine: VllmServer, kind: str
) -> None:
    gateway = Gateway(folder, engine, **EVERY, LPC_GATEWAY_ENGINE_KIND=kind)
    try:
        text = f"{kind} {PROMPT}"
        ask(gateway, text)
        whole = cached(ask(gateway, text, n=2, temperature=1))
        assert whole > 700
        assert after(gateway, 2) == {"no_hit": 1, "equal": 1}
        # The cache has 159 blocks. The prompt and its answers take 30, what was computed for the check 24, each of these 24.
        for number in range(5):
            ask(gateway, f"{number} {kind} {PROMPT}", max_tokens=1)
        left = cached(ask(gateway, text))
        # Without the hint the prompt's own blocks go first: they were used before those of the check.
        assert (left == whole) == (kind == "vllm")
    finally:
        gateway.stop()
    assert "cannot be checked" not in gateway.log.read_text()


def test_streams_and_token_ids_are_checked_too(folder: Path, engine: VllmServer) -> None:
    gateway = Gateway(folder, engine, **EVERY)
    try:
        body = {"model": "tiny", "prompt": [20 + number % 200 for number in range(300)], "max_tokens": 2, "stream": True}
        address = f"http://127.0.0.1:{gateway.port}/v1/completions"
        request = urllib.request.Request(address, json.dumps(body).encode(), {"content-type": "application/json"})
        assert b"[DONE]" in urllib.request.urlopen(request, timeout=patiently()).read()
        # The stream does not say whether it hits. What it has computed is cached, so the check hits that.
        assert after(gateway, 1) == {"equal": 1}
    finally:
        gateway.stop()


def test_blocks_of_an_adapters_former_weights_are_found(folder: Path, engine: VllmServer) -> None:
    path = adapter(folder / "adapter", 1)
    load(engine, path)
    gateway = Gateway(folder, engine, **EVERY)
    try:
        ask(gateway, PROMPT, "mine")
        adapter(path, 2)
        load(engine, path, load_inplace=True)
        ask(gateway, PROMPT, "mine")
        assert after(gateway, 2) == {"no_hit": 1, "adapter": 1}
    finally:
        gateway.stop()
    log = gateway.log.read_text()
    assert "otherwise from its cache than computed: adapter" in log
    assert PROMPT[:20] not in log
