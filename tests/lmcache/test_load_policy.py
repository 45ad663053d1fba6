"""The load policy in a real node with a slow store behind it: loads until it has measured, then lets the engine compute."""

import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from testing.lmcache_stack import CHUNK_BYTES, Coordinator, Engine, Node
from tests.eventually import until
from tests.lmcache.conftest import Collector
from tests.lmcache.test_mp_mode import text

pytestmark = pytest.mark.supports(engine="LMCache", tier="MP mode", what="loads or computes by what both take")

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
                        found.append((reason, int(values.get("hit_tokens", {}).get("intValue", 0))))
        return found


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory, lmcache_version: str) -> Iterator[Slow]:
    if lmcache_version.startswith("0.5.6"):
        pytest.skip("this LMCache has no load policy")
    folder = tmp_path_factory.mktemp("slow")
    options = ["--kv-load-policy", "lpc_apps.lmcache.load_policy:LoadOrRecompute", "--enable-tracing"]
    with Collector(folder) as collector, Coordinator(folder, learned=False) as coordinator:
        options += ["--otlp-endpoint", f"http://127.0.0.1:{collector.port}"]
        memory = 12 * CHUNK_BYTES
        with Node(folder, coordinator.url, memory=memory, disk_bytes_per_s=CHUNK_BYTES, options=options) as node:
            with Engine(folder, node, blocks=120, longest=1600) as engine:
                yield Slow(collector, node, engine)


def test_a_node_whose_store_is_slower_than_prefill_stops_to_load(slow: Slow) -> None:
    prompts = [text(1000 + at, 600) for at in range(PROMPTS)]
    first = [slow.engine.complete(prompt) for prompt in prompts]
    again = [slow.engine.complete(prompt) for prompt in prompts]
    last = [slow.engine.complete(prompt) for prompt in prompts]
    assert first == again == last
    until(lambda: len(slow.ends()) == 3 * PROMPTS)
    declined = [reason == "load_policy_recompute" for reason, _ in slow.ends()]
    loads = [tokens > 0 for _, tokens in slow.ends()]
    assert sum(loads) >= 16, "all is loaded until 16 loads are measured"
    assert not any(declined[: PROMPTS + 16])
    assert sum(declined[-PROMPTS:]) >= PROMPTS - 2
    assert "loads all, as without a load policy" not in slow.node.log
