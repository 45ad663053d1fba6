"""More sidecars help: those that start later get their share of an engine that is there already, and nothing is lost."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

from eviction_client.transport.client import PredictorClient
from lpc.model.features import ModelInput
from lpc.model.inference import Model
from lpc.model.session import InferenceSettings
from predictor_service.server import Parts, running
from testing.processes import free_port
from tests.chat_templates import STYLES, tokenizer_of
from tests.dockerfile import ROOT
from tests.eventually import eventually
from tests.tuned import tuned

BATCH_S = 0.1
BATCH_ITEMS = 4


class SlowModel(Model):
    """The tiny model, at 40 predictions a second. ``answered``: conversations so far."""

    answered = 0

    def run(self, batch: Sequence[ModelInput]) -> list[float]:
        """As Model.run, after a while."""
        time.sleep(BATCH_S)
        self.answered += len(batch)
        return super().run(batch)


@contextlib.asynccontextmanager
async def sidecar(models: Path, served: Path, host: str, port: int, **settings: object) -> AsyncIterator[SlowModel]:
    """A sidecar that answers 40 conversations a second; yields its model."""
    values = {
        "models": models,
        "model": "tiny",
        "host": host,
        "port": port,
        "unix_socket": None,
        "metrics_port": None,
        "threads": 1,
        "max_batch_items": BATCH_ITEMS,
        "served_models": {"m": str(served)},
        "drain_timeout_s": 0.2,
    }
    made: list[SlowModel] = []

    def load(folder: Path, settings: InferenceSettings) -> Model:
        made.append(SlowModel(folder, settings))
        return made[-1]

    async with running(*tuned({**values, **settings}, Parts(load=load))):
        yield made[-1]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """The folder of a served model's tokenizer, and the ids of a prompt."""
    folder = tmp_path_factory.mktemp("served")
    tokenizer = tokenizer_of(STYLES["chatml"])
    tokenizer.save_pretrained(folder)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello world"}], tokenize=False, add_generation_prompt=True
    )
    return folder, list(tokenizer(text, add_special_tokens=False)["input_ids"])


class Engine:
    """Asks at a steady rate, whatever becomes of it, in the event loop that the sidecars run in."""

    def __init__(self, client: PredictorClient, ids: list[int]) -> None:
        self.client = client
        self._ids = ids
        self.asked = 0

    async def ask(self, per_second: float, seconds: float) -> None:
        """Ask for so long."""
        end = time.monotonic() + seconds
        began, asked = time.monotonic(), 0
        while (now := time.monotonic()) < end:
            while asked < (now - began) * per_second:
                self.client.ask(self.asked, token_ids=self._ids)
                self.asked += 1
                asked += 1
            await asyncio.sleep(0.01)

    async def settle(self) -> None:
        """Wait until every request has its fate."""
        await eventually(lambda: not self.client.waiting)


@pytest.mark.nightly
async def test_the_autoscaler_sees_the_overload_before_a_request_is_refused(
    tiny_models: Path, served: tuple[Path, list[int]]
) -> None:
    """By the seconds of work that wait; of items there are few at a slow sidecar, of whatever number it refuses."""
    folder, ids = served
    port, metrics = free_port(), free_port()
    hpa = yaml.safe_load((ROOT / "deploy/base/hpa.yaml").read_text())["spec"]["metrics"][0]["pods"]
    client = PredictorClient(f"127.0.0.1:{port}", served_model="m", timeout_s=4.0)
    seen = [0.0]

    async def look() -> None:
        while not client.counters.refused:
            page = await asyncio.to_thread(lambda: urlopen(f"http://127.0.0.1:{metrics}/metrics").read().decode())
            seen.append(float(page.partition(f"\n{hpa['metric']['name']} ")[2].split()[0]))
            await asyncio.sleep(0.1)

    try:
        async with sidecar(tiny_models, folder, "127.0.0.1", port, metrics_port=metrics):
            looking = asyncio.create_task(look())
            engine = Engine(client, ids)
            while not looking.done():
                await engine.ask(80, 0.5)
            await looking
    finally:
        client.close()
    assert max(seen) > float(hpa["target"]["averageValue"])


async def test_connections_that_are_ended_for_their_age_lose_nothing(tiny_models: Path, served: tuple[Path, list[int]]) -> None:
    folder, ids = served
    port = free_port()
    client = PredictorClient(f"127.0.0.1:{port}", served_model="m", timeout_s=20.0)
    try:
        async with sidecar(tiny_models, folder, "127.0.0.1", port, connection_age_s=0.5):
            engine = Engine(client, ids)

            async def read() -> bool:
                await engine.ask(10, 0.2)
                await engine.settle()
                return client.counters.answered > 0

            await eventually(read)  # the tokenizer is loaded
            asked, answered = engine.asked, client.counters.answered
            await engine.ask(20, 2.0)
            await engine.settle()
            assert client.counters.answered - answered == engine.asked - asked > 0
    finally:
        client.close()


ENGINE = """
import json, sys, threading, time
from eviction_client.transport.client import PredictorClient
address, per_second, ids = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])
options = (("grpc.dns_min_time_between_resolutions_ms", 100),)
client = PredictorClient(address, served_model="m", timeout_s=4.0, options=options)
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
began, asked = time.monotonic(), 0
while not stop.wait(0.01):
    while asked < (time.monotonic() - began) * per_second:
        client.ask(asked, token_ids=ids)
        asked += 1
while client.waiting:
    time.sleep(0.01)
counters = client.counters
print(json.dumps({"asked": asked} | {name: getattr(counters, name) for name in ("answered", "late", "failed", "refused")}))
client.close()
"""


@contextlib.contextmanager
def engine(hosts: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """An engine's client in a process of its own, that finds addresses of names in a file of its own."""
    inside = 'mount --bind "$0" /etc/hosts && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", inside, str(hosts), sys.executable, "-c", ENGINE, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def may_have_own_hosts() -> bool:
    return subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0


@pytest.mark.nightly
@pytest.mark.skipif(not may_have_own_hosts(), reason="a file of hosts of one's own takes user namespaces")
async def test_a_second_sidecar_that_starts_under_overload_gets_its_share_and_no_request_fails(
    tiny_models: Path, served: tuple[Path, list[int]], tmp_path: Path
) -> None:
    folder, ids = served
    port = free_port()
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 sidecars.test\n")
    address = f"dns:///sidecars.test:{port}"
    async with contextlib.AsyncExitStack() as stack:
        first_stack = await stack.enter_async_context(contextlib.AsyncExitStack())
        first = await first_stack.enter_async_context(sidecar(tiny_models, folder, "127.0.0.1", port, connection_age_s=1.0))
        process = stack.enter_context(engine(hosts, address, "60", json.dumps(ids)))  # one sidecar answers 40
        await eventually(lambda: first.answered > 6 * 40)
        second = await stack.enter_async_context(sidecar(tiny_models, folder, "127.0.0.2", port, connection_age_s=1.0))
        hosts.write_text("127.0.0.1 sidecars.test\n127.0.0.2 sidecars.test\n")
        await eventually(lambda: second.answered > 5 * 30)
        before = first.answered, second.answered
        await eventually(lambda: first.answered + second.answered > sum(before) + 5 * 60)
        shares = first.answered - before[0], second.answered - before[1]
        assert min(shares) > 0.4 * sum(shares), shares
        # The first one goes, as Kubernetes lets it go: out of the name, then down.
        hosts.write_text("127.0.0.2 sidecars.test\n")
        await asyncio.sleep(2)
        await first_stack.aclose()
        gone = second.answered
        await eventually(lambda: second.answered > gone + 40)
        output, _ = await asyncio.to_thread(process.communicate, "")
    fates = json.loads(output)
    assert fates["failed"] == 0
    assert fates["refused"] > 0  # it was too much for one
    assert fates["asked"] == fates["answered"] + fates["refused"] + fates["late"]
    assert fates["late"] <= 0.05 * fates["asked"]
