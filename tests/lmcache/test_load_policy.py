"""The load policy in a real node with a slow store behind it: loads until it has measured, then lets the engine compute."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from eviction_client.policy.loading import MEASURED_LOADS
from testing.lmcache_stack import CHUNK_BYTES, Coordinator, Engine, Node, environment, program
from tests.eventually import patiently, until
from tests.lmcache.conftest import Collector
from tests.lmcache.test_mp_mode import text

pytestmark = pytest.mark.supports(engine="LMCache", tier="MP mode", what="loads or computes by what both take")

MOST_PASSES = 10
PROMPTS = 20
"""Prompts of two chunks and more: more than the node's memory and the engine hold."""


class Slow(NamedTuple):
    """The processes."""

    collector: Collector
    node: Node
    engine: Engine

    def ends(self) -> list[tuple[str, int]]:
        """Return why each look-up ended early, and its tokens to load."""
        if not self.collector.file.exists():
            return []
        found = []
        for line in self.collector.file.read_text().splitlines():
            for resource in json.loads(line)["resourceSpans"]:
                for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
                    values = {one["key"]: one["value"] for one in span.get("attributes", [])}
                    if span["name"] == "mp.lookup_prefetch":
                        reason = values.get("early_exit_reason", {}).get("stringValue", "")
                        found.append((reason, int(values["hit_tokens"]["stringValue"])))
        return found


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory, lmcache_version: str) -> Iterator[Slow]:
    if lmcache_version.startswith("0.5.6"):
        pytest.skip("this LMCache has no load policy")
    folder = tmp_path_factory.mktemp("slow")
    options = ["--kv-load-policy", "lpc_apps.lmcache.load_policy:LoadOrRecompute", "--enable-tracing"]
    with ExitStack() as running:
        collector = running.enter_context(Collector(folder))
        coordinator = running.enter_context(Coordinator(folder, learned=False))
        options += ["--otlp-endpoint", f"http://127.0.0.1:{collector.port}"]
        node = running.enter_context(
            Node(folder, coordinator.url, memory=32 * CHUNK_BYTES, disk_bytes_per_s=2 * CHUNK_BYTES, options=options)
        )
        yield Slow(collector, node, running.enter_context(Engine(folder, node, blocks=120, longest=1600)))


def test_a_node_whose_store_is_slower_than_prefill_stops_to_load(slow: Slow) -> None:
    prompts = [text(1000 + at, 600) for at in range(PROMPTS)]
    first = [slow.engine.complete(prompt) for prompt in prompts]
    for passes in range(2, MOST_PASSES):
        assert [slow.engine.complete(prompt) for prompt in prompts] == first
        until(lambda passes=passes: len(slow.ends()) == passes * PROMPTS)  # type: ignore[misc]
        declined = [reason == "load_policy_recompute" for reason, _ in slow.ends()]
        if sum(declined[-PROMPTS:]) >= PROMPTS - 2:
            break
    else:
        pytest.fail(f"loads after {MOST_PASSES} passes: {slow.ends()[-PROMPTS:]}")
    loads = [tokens > 0 for _, tokens in slow.ends()]
    assert sum(loads[: declined.index(True)]) >= MEASURED_LOADS, "all is loaded until loads are measured"
    assert "loads all, as without a load policy" not in slow.node.log


BARE = """
import json, time
from lmcache.v1.mp_observability.event import Event, EventType
from lmcache.v1.mp_observability.event_bus import EventBusConfig, init_event_bus
from lmcache.v1.multiprocess.kv_load_policy import KVLoadContext, create_kv_load_policy

HINT = "lmcache.hint.engine_computed_tokens"

def answers(policy):
    asked = [None, {"lmcache.skip_load": True}, *({HINT: hint} for hint in ("abc", None, -5, True, 1 << 70, 2.5))]
    return [policy.should_load(KVLoadContext("r", "m", 256, 1024, each)) for each in asked]

bus = init_event_bus(EventBusConfig(enabled=True))
bus.start()
name = "lpc_apps.lmcache.load_policy:LoadOrRecompute"
policy = create_kv_load_policy(name, {})
found = [(policy.loads is not None, answers(policy))]
bus.publish(Event(event_type=EventType.MP_LOOKUP_PREFETCH_END, session_id="r", metadata={"prompt_tokens": "private"}))
while policy.loads is not None:
    time.sleep(0.01)
found.append((False, answers(policy)))
init_event_bus(EventBusConfig(enabled=False))
policy = create_kv_load_policy(name, {})
found.append((policy.loads is not None, answers(policy)))
init_event_bus(EventBusConfig(enabled=True))
policy = create_kv_load_policy(name, {})
odd = [policy.should_load(KVLoadContext("r", "m", 256, 1024, each)) for each in (["lmcache.skip_load"], {}, None)]
found.append((policy.loads is not None, odd))
print(json.dumps(found))
"""


def test_odd_hints_are_ignored_and_after_a_failure_or_without_events_all_is_loaded(lmcache_version: str) -> None:
    if lmcache_version.startswith("0.5.6"):
        pytest.skip("this LMCache has no load policy")
    done = subprocess.run([program(), "-c", BARE], env=environment(), capture_output=True, text=True, timeout=patiently(120))
    assert done.returncode == 0, done.stderr
    loads = [True, False, *[True] * 6]
    assert json.loads(done.stdout.splitlines()[-1]) == [[True, loads], [False, loads], [False, loads], [False, [True] * 3]]
    assert "as without a load policy: KeyError" in done.stderr
    assert "as without a load policy: AttributeError" in done.stderr
    assert "private" not in done.stderr
    assert "remove --disable-observability" in done.stderr
