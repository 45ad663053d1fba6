"""vLLM, LMCache's node and coordinator, sidecar and Redis, all real, started once for these tests.

Collected only by `make test-lmcache`.
"""

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from testing.lmcache_stack import CHUNK_BYTES, MODEL, Coordinator, Engine, Node, environment, program
from testing.processes import RedisServer, Server, Sidecar, free_port
from tests.eventually import patiently
from tests.tuned import command

if "LPC_TEST_LMCACHE" not in os.environ:
    collect_ignore_glob = ["test_*.py"]

CHUNKS = 240
"""Capacity of memory. The controller deletes above 168, the node evicts above 192. The difference holds what the engine stores
until the coordinator gets the report."""


class Stack(NamedTuple):
    """The running processes."""

    sidecar: Sidecar
    redis: RedisServer
    coordinator: Coordinator
    node: Node
    engine: Engine
    spans: Path
    """Spans of the node, as a collector writes them; empty: this LMCache has no token trace."""


class Collector(Server):
    """`collector.py` as a process."""

    def __init__(self, folder: Path) -> None:
        self.port, self.file = free_port(), folder / "spans.jsonl"
        script = Path(__file__).with_name("collector.py")
        super().__init__(folder / "collector.log", [program(), str(script), str(self.port), str(self.file)], environment())

    def _serves(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=patiently(1)):
            return True
        return False


@pytest.fixture(scope="session")
def lmcache_version() -> str:
    """LMCache's release in its environment."""
    script = "import importlib.metadata as m; print(m.version('lmcache'))"
    return subprocess.run([program(), "-c", script], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(autouse=True)
def _record_version(record_property: Callable[[str, object], None], lmcache_version: str) -> None:
    record_property("version", lmcache_version)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, lmcache_version: str) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("lmcache")
    models = Path(os.environ.get("LPC_TEST_MODELS", "models")).absolute()
    with ExitStack() as running:
        redis = running.enter_context(RedisServer(folder / "redis"))
        sidecar = running.enter_context(Sidecar(folder, models, "default", command=command(refit_s=5), redis_url=redis.url))
        coordinator = running.enter_context(
            Coordinator(
                folder,
                learned=True,
                predictor_address=sidecar.address,
                served_model=MODEL,
                lmcache_tokenizer=folder / "model",
            )
        )
        spans, options = Path(), list[str]()
        if not lmcache_version.startswith("0.5.6"):
            collector = running.enter_context(Collector(folder))
            spans = collector.file
            options = ["--enable-token-trace", "--otlp-endpoint", f"http://127.0.0.1:{collector.port}"]
        node = running.enter_context(
            Node(
                folder,
                coordinator.url,
                memory=CHUNKS * CHUNK_BYTES,
                disk_bytes_per_s=CHUNK_BYTES / 0.005,
                options=options,
            )
        )
        engine = running.enter_context(
            Engine(
                folder,
                node,
                plug_in=True,
                predictor_address=sidecar.address,
            )
        )
        yield Stack(sidecar, redis, coordinator, node, engine, spans)
