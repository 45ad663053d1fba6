"""vLLM with the tiny model and LMCache in MP mode on this machine's CPU: engine, node and coordinator, each a process.

LMCache has its own environment (`make lmcache`); LPC_TEST_LMCACHE names another, with another release. On a CPU,
``lmcache.mp.mp_transfer_mode`` must make the node copy, as on GPUs: only then do events have token ids. Behind memory is
LMCache's own mock of a remote store, which holds bytes in RAM and delays transfers.
"""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from lpc_apps.tiny_llama import BLOCK, build
from testing import Unavailable
from testing.processes import Server, free_port

ENVIRONMENT: Final = Path(os.environ.get("LPC_TEST_LMCACHE") or ".venv-lmcache")
MODEL: Final = "tiny"
NODE: Final = "node-a"
CHUNK_TOKENS: Final = 256
CHUNK_BYTES: Final = CHUNK_TOKENS * 2 * 2 * 2 * 32 * 4
"""Bytes per chunk of the tiny model: two layers, keys and values, two heads of 32, 4 bytes each: 256 KiB."""


def program(name: str = "python") -> str:
    """Return a program of LMCache's environment. Raises Unavailable if the environment does not exist."""
    path = ENVIRONMENT / "bin" / name
    if not path.exists():
        raise Unavailable(f"{path} is missing: build LMCache's environment with `make lmcache`")
    return str(path.absolute())


def environment(**settings: object) -> dict[str, str]:
    """Return the environment of these processes: none of the user's settings, one thread, no usage statistics."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LPC_", "LMCACHE_", "VLLM_"))}
    root = str(Path(__file__).parents[1])
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(filter(None, (root, kept.get("PYTHONPATH")))),
        "OMP_NUM_THREADS": "1",
        "DO_NOT_TRACK": "1",
        "LMCACHE_TRACK_USAGE": "false",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        **{f"LPC_{name.upper()}": str(value) for name, value in settings.items()},
    }


class HttpServer(Server):
    """A process that serves HTTP on loopback. ``healthy``: path that answers when it is ready."""

    healthy: ClassVar[str] = "/health"

    def __init__(self, port: int, log: Path, command: Sequence[str], variables: dict[str, str]) -> None:
        self.port = port
        super().__init__(log, command, variables)

    @property
    def url(self) -> str:
        """Of its root."""
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, body: object = None, method: str | None = None, headers: dict[str, str] | None = None) -> Any:
        """Return the JSON at a path; None if the server does not answer. Raises urllib.error.HTTPError for an error status."""
        data = None if body is None else json.dumps(body).encode()
        told = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(f"{self.url}{path}", data, told, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                text = answer.read()
        except urllib.error.HTTPError:
            raise
        except OSError:
            return None
        try:
            return json.loads(text)
        except ValueError:
            return text.decode()

    def _serves(self) -> bool:
        try:
            return self.ask(self.healthy) is not None
        except urllib.error.HTTPError:
            return False


class Coordinator(HttpServer):
    """LMCache's coordinator. ``learned``: with our controller. ``settings``: LPC_ variables."""

    healthy = "/healthz"

    def __init__(self, folder: Path, *, learned: bool, options: Sequence[str] = (), **settings: object) -> None:
        port = free_port()
        start = [program(), "-m", "lpc_cli", "lmcache", "coordinator"] if learned else [program("lmcache"), "coordinator"]
        command = [*start, "--host", "127.0.0.1", "--port", str(port), "--disable-metrics", *options]
        super().__init__(port, folder / "coordinator.log", command, environment(**settings))

    @property
    def status(self) -> dict[str, Any]:
        """Return the status of our controller. Raises Unavailable if it does not answer."""
        found = self.ask("/lpc/status")
        if not isinstance(found, dict):
            raise Unavailable("LMCache's coordinator does not answer")
        return found


class Node(HttpServer):
    """LMCache's node: memory, and a mock of a remote store behind it.

    Args:
        memory: capacity, bytes.
        disk_bytes_per_s: throughput of the store behind it.
        options: further options of ``lmcache server``.
    """

    healthy = "/healthcheck"

    def __init__(
        self, folder: Path, coordinator: str, *, memory: int, disk_bytes_per_s: float, options: Sequence[str] = ()
    ) -> None:
        port = free_port()
        self.mq_port = free_port()
        disk = {"type": "mock", "max_size_gb": 4, "mock_bandwidth_gb": disk_bytes_per_s / 2**30}
        command = [
            *(program("lmcache"), "server", "--host", "127.0.0.1", "--port", str(self.mq_port)),
            *("--http-host", "127.0.0.1", "--http-port", str(port), "--instance-id", NODE),
            *("--l1-size-gb", str(memory / 2**30), "--l1-init-size-gb", "1", "--no-l1-use-lazy"),
            *("--eviction-policy", "LRU", "--chunk-size", str(CHUNK_TOKENS), "--disable-metrics"),
            *("--l2-adapter", json.dumps(disk), "--l2-prefetch-policy", "retain"),
            *("--coordinator-url", coordinator, "--coordinator-advertise-ip", "127.0.0.1"),
            *("--coordinator-event-reporting", "--coordinator-event-flush-interval", "0.2"),
            *("--coordinator-heartbeat-interval", "1"),
            *options,
        ]
        super().__init__(port, folder / "node.log", command, environment())


class Engine(HttpServer):
    """``vllm serve`` with LMCache's connector and the tiny model.

    Args:
        blocks: capacity of its own cache.
        longest: most tokens of a request.
        plug_in: use our scheduler.
        connector: further configuration of LMCache's connector.
        options: further options of ``vllm serve``.
        settings: LPC_ variables.
    """

    family = True

    def __init__(
        self,
        folder: Path,
        node: Node,
        *,
        blocks: int = 220,
        longest: int = 6656,
        plug_in: bool = False,
        connector: Mapping[str, Any] | None = None,
        options: Sequence[str] = (),
        **settings: object,
    ) -> None:
        port = free_port()
        model = build(folder / "model")
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 32_768}))
        transfer = {
            "kv_connector": "LMCacheMPConnector",
            "kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "lmcache.mp.host": "tcp://127.0.0.1",
                "lmcache.mp.port": node.mq_port,
                "lmcache.mp.mp_transfer_mode": "lmcache_driven",
                **(connector or {}),
            },
        }
        command = [
            *(program(), "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--port", str(port)),
            *("--host", "127.0.0.1", "--served-model-name", MODEL, "--dtype", "float32", "--enforce-eager"),
            *("--load-format", "dummy", "--block-size", str(BLOCK), "--num-gpu-blocks-override", str(blocks)),
            *("--kv-cache-memory-bytes", str(2**28), "--max-model-len", str(longest), "--disable-log-stats"),
            *("--kv-transfer-config", json.dumps(transfer)),
            *(("--scheduler-cls", "eviction_client.engines.vllm.LearnedScheduler") if plug_in else ()),
            *options,
        ]
        super().__init__(port, folder / "engine.log", command, environment(**settings))

    def complete(self, prompt: str, tokens: int = 8, **arguments: object) -> str:
        """Return the tiny model's completion. ``arguments``: further ones of the request. Raises Unavailable on failure."""
        body: dict[str, object] = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        if arguments:
            body["vllm_xargs"] = arguments
        answer = self.ask("/v1/completions", body)
        if not isinstance(answer, dict):
            raise Unavailable("the engine does not answer")
        return str(answer["choices"][0]["text"])
