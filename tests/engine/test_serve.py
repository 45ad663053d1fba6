"""`vllm serve`, twice, with one sidecar and one Redis: metrics, pooled times, and outages under load."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from eviction_client.policy.rules import RULES
from lpc_apps.tiny_llama import build
from testing.processes import RedisServer, free_port
from tests.eventually import patiently, until

pytestmark = pytest.mark.supports(
    engine="vLLM", tier="GPU pool", what="`vllm serve`, two engines with sidecar and Redis, outages"
)
ROOT = Path(__file__).resolve().parents[2]
SCHEDULER = "eviction_client.engines.vllm.LearnedScheduler"
SECRET = "the password is swordfish"


class Sidecar:
    """Start the real sidecar, in the project's own environment, with the tests' tiny model and no tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.python = ROOT / ".venv" / "bin" / "python"
        self.models = folder / "artifacts"
        program = (
            "import sys; from pathlib import Path; from tests.tiny_model import build_tiny_artifact as b; b(Path(sys.argv[1]))"
        )
        subprocess.run([self.python, "-c", program, str(self.models)], check=True, cwd=ROOT)
        self.port = free_port()
        self.log = folder / "sidecar.log"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LPC_")},
            "LPC_PORT": str(self.port),
            "LPC_MODELS": str(self.models),
            "LPC_METRICS_PORT": "",
            "LPC_UNIX_SOCKET": "",
            "LPC_STATE": str(folder),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        model = "tiny"
        command = [self.python, "-m", "lpc_cli", "serve", "--model", model]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self.environment, stderr=log, stdout=log, cwd=ROOT)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait()


class VllmServer:
    """`vllm serve`, with the plug-in if settings are given, otherwise stock. ``options``: of the command, the last ones."""

    def __init__(
        self, folder: Path, model: Path, *, scheduler: str = SCHEDULER, options: Sequence[str] = (), **settings: str
    ) -> None:
        self.port = free_port()
        self.log = folder / f"vllm-{self.port}.log"
        command = [str(Path(sys.executable).parent / "vllm"), "serve", str(model), "--served-model-name", "tiny"]
        if settings:
            command += ["--scheduler-cls", scheduler]
        command += ["--enforce-eager", "--port", str(self.port)]
        command += ["--block-size", "32", "--num-gpu-blocks-override", "160", "--max-model-len", "2048"]
        command += ["--kv-cache-memory-bytes", str(2**28), "--max-num-seqs", "8", *options]
        # One thread: with more, two engines on two cores mostly wait for each other's threads.
        threads = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        path = {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
        environment = {**os.environ, **threads, **path, "VLLM_LOGGING_LEVEL": "INFO", **settings}
        environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, stderr=log, stdout=log, start_new_session=True)

    def wait(self) -> None:
        for _ in range(900):
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=patiently())
                return
            time.sleep(0.5)
        raise AssertionError(self.log.read_text()[-3000:])

    def metrics(self) -> dict[tuple[str, str], float]:
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=patiently()).read().decode()
        found: dict[tuple[str, str], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                own = [value for name, value in sample.labels.items() if name not in ("engine", "model_name")]
                found[sample.name, ",".join(own)] = sample.value
        return found

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", timeout=patiently(), max_retries=0)

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it may have died; stop the others anyway
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(patiently())
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


class Fleet:
    def __init__(self, folder: Path) -> None:
        model = build(folder / "tiny", weights=True)
        (folder / "redis").mkdir()
        self.redis = RedisServer(folder / "redis")
        self.redis.start()
        self.sidecar = Sidecar(folder)
        self.sidecar.start()
        settings = {"LPC_PREDICTOR_ADDRESS": f"127.0.0.1:{self.sidecar.port}", "LPC_REDIS_URL": self.redis.url}
        self.folder, self.model = folder, model
        self.engines = [VllmServer(folder, model, **settings) for _ in range(2)]
        try:
            for engine in self.engines:
                engine.wait()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for engine in self.engines:
            engine.stop()
        self.sidecar.signal(signal.SIGCONT)
        self.sidecar.signal(signal.SIGKILL)
        self.redis.kill()

    def chats(self, label: str, count: int = 24, turns: int = 3, reply: int = 160, stock: Sequence[VllmServer] = ()) -> int:
        """Run multi-turn chats on both engines at once; all requests must succeed. Return their number. ``reply``: tokens."""
        engines = stock or self.engines

        def chat(number: int) -> int:
            client = engines[number % 2].client()
            messages: list[dict[str, str]] = [{"role": "system", "content": "Answer briefly. " + SECRET}]
            for turn in range(turns):
                messages.append({"role": "user", "content": f"{label} {number} {turn}: " + "what then? " * 8})
                answer = client.chat.completions.create(
                    model="tiny",
                    messages=messages,
                    max_tokens=reply,
                    temperature=0,
                    extra_body={"ignore_eos": True, "vllm_xargs": {"lpc_retain_seconds": 0}},
                )
                messages.append({"role": "assistant", "content": answer.choices[0].message.content or "-"})
            return turns

        with ThreadPoolExecutor(6) as threads:
            return sum(threads.map(chat, range(count)))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("fleet"))
    yield made
    made.stop()


def predicted(engine: VllmServer) -> float:
    """Return the number of requests whose blocks got a prediction's class."""
    return engine.metrics().get(("lpc_requests_ended_total", "prediction"), 0.0)


def asked(engine: VllmServer) -> float:
    """Return the number of requests that have an answer or will get none."""
    return sum(count for (name, _), count in engine.metrics().items() if name == "lpc_predictions_total")


@pytest.mark.timeout(400)
def test_the_first_prediction_works_with_the_tokenizer_that_the_engines_offer(fleet: Fleet) -> None:
    for engine in fleet.engines:
        assert until(lambda engine=engine: engine.metrics().get(("lpc_tokenizer_state", "ready")) == 1, 120)
    for number in range(10):  # on a busy machine an answer may come after the request's end
        fleet.chats(f"first {number}", count=2, turns=1)
        assert until(lambda number=number: all(asked(engine) == number + 1 for engine in fleet.engines))
        if all(engine.metrics()["lpc_predictions_total", "answered"] for engine in fleet.engines):
            break
    for engine in fleet.engines:
        assert engine.metrics()["lpc_predictions_total", "answered"] > 0
        assert engine.metrics()["lpc_predictions_unread_total", ""] == 0
    # Both engines have the same tokenizer, so only one uploads it.
    assert fleet.sidecar.log.read_text().count("prompts of served model tiny can be read (tokenizer") == 1


@pytest.mark.timeout(400)
def test_two_engines_hit_and_export_metrics(fleet: Fleet) -> None:
    rounds = 0
    before = {engine: asked(engine) for engine in fleet.engines}
    # On a busy machine the sidecar may answer many requests too late.
    while not rounds or (rounds < 10 and not all(predicted(engine) for engine in fleet.engines)):
        rounds += 1
        fleet.chats(f"round {rounds}", count=8)
        time.sleep(2)  # metrics are written once a second
    for engine in fleet.engines:
        assert until(lambda engine=engine: asked(engine) == before[engine] + 12 * rounds)
        metrics = engine.metrics()
        print({label: count for (name, label), count in metrics.items() if name == "lpc_predictions_total"})
        assert predicted(engine) > 0
        assert metrics["vllm:prefix_cache_hits_total", ""] > 0
        assert metrics["lpc_failures_total", ""] == 0
        assert metrics["lpc_predictor_connected", ""] == 1
        assert metrics["lpc_store_healthy", ""] == 1
        assert sum(metrics["lpc_rule", rule] for rule in RULES) == 1.0


def test_the_plug_in_logs_to_vllms_log(fleet: Fleet) -> None:
    for engine in fleet.engines:
        lines = [line for line in engine.log.read_text().splitlines() if "learned prefix cache: on" in line]
        assert len(lines) == 1
        assert re.search(r"\(EngineCore.* INFO .*: on, pooling: fleet; .*check passed in \d+ ms; rule auto", lines[0])


@pytest.fixture
def drifted(fleet: Fleet) -> Iterator[VllmServer]:
    """Start the plug-in in a vLLM whose queue evicts in an unknown order."""
    address = f"127.0.0.1:{fleet.sidecar.port}"
    server = VllmServer(
        fleet.folder, fleet.model, scheduler="tests.engine.drifted.LearnedScheduler", LPC_PREDICTOR_ADDRESS=address
    )
    server.wait()
    yield server
    server.stop()


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_vllm_that_fails_the_check_serves_with_stock_lru_and_logs_it_once(fleet: Fleet, drifted: VllmServer) -> None:
    assert fleet.chats("drifted", count=4, reply=8, stock=[drifted, drifted]) == 12
    lines = [line for line in drifted.log.read_text().splitlines() if "learned prefix cache" in line]
    assert len(lines) == 1
    assert re.search(r"ERROR .* does not work in this vLLM .* evicts blocks in the order .* Stock LRU instead", lines[0])
    assert until(lambda: drifted.metrics().get(("lpc_stock_fallback", "")) == 1.0)
    assert all(engine.metrics()["lpc_stock_fallback", ""] == 0.0 for engine in fleet.engines)


@pytest.mark.timeout(400)
def test_both_engines_use_one_namespace_and_redis_and_logs_contain_no_text(fleet: Fleet) -> None:
    client = fleet.redis.client()

    def pooled() -> int:
        return sum(map(client.zcard, client.keys("lpc:*:claims")))

    for number, engine in enumerate(fleet.engines):
        before = pooled()
        fleet.chats(f"pooled {number}", count=4, stock=[engine, engine])
        assert until(lambda before=before: pooled() > before)
    assert len({key.split(b"{")[1].split(b":")[0] for key in client.keys("lpc:*:claims")}) == 1
    everything = b"".join(client.dump(key) or b"" for key in client.keys("*")) + b"".join(client.keys("*"))
    assert b"swordfish" not in everything
    assert "swordfish" not in fleet.sidecar.log.read_text()
    assert not any("swordfish" in engine.log.read_text() for engine in fleet.engines)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_outages_fail_no_request_and_predictions_come_back(fleet: Fleet) -> None:
    fleet.sidecar.signal(signal.SIGSTOP)
    fleet.chats("sidecar silent")
    fleet.sidecar.signal(signal.SIGCONT)
    fleet.sidecar.signal(signal.SIGKILL)
    fleet.chats("sidecar killed")
    fleet.redis.freeze()
    fleet.chats("Redis silent too")
    fleet.redis.thaw()
    fleet.redis.kill()
    fleet.chats("both killed")
    fleet.redis.start()
    fleet.sidecar.start()
    assert until(lambda: all(engine.metrics()["lpc_predictor_connected", ""] for engine in fleet.engines), 60)
    before = sum(map(predicted, fleet.engines))
    rounds = 0
    while rounds < 10 and sum(map(predicted, fleet.engines)) <= before:
        rounds += 1
        fleet.chats(f"back {rounds}")
        time.sleep(2)
    assert sum(map(predicted, fleet.engines)) > before
    assert until(lambda: all(engine.metrics()["lpc_store_healthy", ""] for engine in fleet.engines), 60)
    assert all(engine.metrics()["lpc_failures_total", ""] == 0 for engine in fleet.engines)
