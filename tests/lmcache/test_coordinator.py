"""LMCache's real coordinator with the controller, and a stand-in for a node over real HTTP."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.lmcache.coordinator import REFUSED, find_incompatibility
from testing.lmcache_stack import Coordinator
from testing.processes import free_port
from tests.eventually import until
from tests.integration.lmcache.lmcache_node import NodeServer, serving

MIB = 1 << 20
CHUNK = 256
TOKENS = {seed: [seed * 10_000 + i for i in range(2 * CHUNK)] for seed in range(1, 8)}


class Reporter:
    """A node's calls to the coordinator: registration and numbered batches of events."""

    def __init__(self, coordinator: Coordinator, address: str) -> None:
        self._coordinator = coordinator
        self._seq = 0
        self._address = address
        self.registered = self.register()

    def register(self) -> Any:
        host, _, port = self._address.rpartition(":")
        body = {"instance_id": "node-a", "ip": host, "http_port": int(port), "p2p_advertised_url": "", "mq_port": 0}
        return self._coordinator.ask("/instances", body)

    def report(
        self,
        kind: str,
        tier: str,
        seeds: list[int] = [],  # noqa: B006
        *,
        capacity: int = 0,
        token: int | None = None,
        dropped: int = 0,
    ) -> None:
        self._seq += 1
        entries = [entry for seed in seeds for entry in self.entries_of(seed, tokens=kind == "store")]
        for entry in entries if token is not None else ():
            entry["token_ids"] = [token]
        batch = {
            "instance_id": "node-a",
            "incarnation": 1,
            "seq": self._seq,
            "event_type": kind,
            "tier": tier,
            "backend": "" if kind == "access" else "dram" if tier == "l1" else "fs",
            "entries": entries,
            "shared": False,
            "ts": time.time() + 3600.0,  # its clock is an hour ahead
            "capacity_bytes": capacity,
            "capacity_revision": 1 if capacity else 0,
        }
        if dropped:
            batch["dropped_events"] = dropped
        assert self._coordinator.ask("/events", {"batches": [batch]}) == {"applied": 1, "duplicates": 0, "stale": 0}

    def entries_of(self, seed: int, *, tokens: bool) -> list[dict[str, Any]]:
        from lpc_apps.lmcache.events import KeyChain

        return [
            {
                "key": {
                    "chunk_hash_hex": hash_.hex(),
                    "model_name": "llama",
                    "kv_rank": 0x01000100,
                    "object_group_id": 0,
                    "cache_salt": "",
                },
                "size_bytes": MIB if tokens else 0,
                "token_ids": TOKENS[seed][index * CHUNK : (index + 1) * CHUNK] if tokens else [],
                "token_offset": index * CHUNK if tokens else -1,
            }
            for index, hash_ in enumerate(KeyChain().hashes(TOKENS[seed], CHUNK))
        ]


def coordinator(folder: Path, *options: str) -> Coordinator:
    made = Coordinator(
        folder,
        learned=True,
        options=options,
        predictor_address=f"127.0.0.1:{free_port()}",  # nothing listens
        rule="lru",
    )
    nobody = f"http://127.0.0.1:{free_port()}"
    made.environment.update(http_proxy=nobody, HTTP_PROXY=nobody, no_proxy="")  # the pod's, for others
    return made


@pytest.fixture
async def node() -> AsyncIterator[tuple[NodeServer, str]]:
    server = NodeServer()
    async with serving(server.app) as address:
        yield server, address


@pytest.mark.refuses(engine="LMCache", tier="MP mode", what="its in-process mode, in favour of MP mode")
def test_in_process_mode_is_refused_for_the_installed_release(lmcache_version: str) -> None:
    assert find_incompatibility(lmcache_version) is None
    assert find_incompatibility(lmcache_version, "LMCacheConnectorV1") == REFUSED


@pytest.mark.supports(engine="LMCache", tier="MP mode", what="its coordinator takes our controller: events, deletions")
async def test_chunks_are_deleted_from_memory_in_lru_order(tmp_path: Path, node: tuple[NodeServer, str]) -> None:
    server, address = node
    running = coordinator(tmp_path)
    await asyncio.to_thread(running.start)
    try:
        reporter = await asyncio.to_thread(Reporter, running, address)
        await asyncio.to_thread(reporter.report, "config", "l1", capacity=10 * MIB)
        await asyncio.to_thread(reporter.report, "store", "l1", [7], token=-1)  # malformed ids do not affect other events
        await asyncio.to_thread(reporter.report, "delete", "l1", [7])
        for seed in (1, 2, 3, 4):
            await asyncio.to_thread(reporter.report, "store", "l1", [seed])
            await asyncio.to_thread(reporter.report, "store", "l2", [seed])
            await asyncio.to_thread(reporter.report, "access", "l1", [seed])
            await asyncio.sleep(0.05)
        await asyncio.to_thread(until, lambda: server.deleted)
        gone = {entry["chunk_hash_hex"] for body in server.deleted for entry in body["keys"]}
        first = {entry["key"]["chunk_hash_hex"] for entry in reporter.entries_of(1, tokens=False)}
        assert server.deleted[0]["tier"] == "l1"
        assert gone == first

        def memory() -> tuple[int, int, str]:
            (row,) = [row for row in running.status["tiers"] if row["tier"] == "l1"]
            return row["used_bytes"], row["deleted_bytes"], row["rule"]

        await asyncio.to_thread(until, lambda: memory() == (6 * MIB, 2 * MIB, "lru"))
        status = await asyncio.to_thread(lambda: running.status)
        assert status["failures"] == {"tick": 0, "delete": 0, "refit": 0}
        assert "lpc_lmcache_deleted_bytes_total" in await asyncio.to_thread(running.ask, "/lpc/metrics")
        assert str(TOKENS[2][:3])[1:-1] not in running.log
    finally:
        await asyncio.to_thread(running.kill)


async def test_events_that_a_node_has_lost_empty_the_view_of_it(
    tmp_path: Path, node: tuple[NodeServer, str], lmcache_version: str
) -> None:
    """LMCache 0.5.7 reports how many it has lost in all."""
    if lmcache_version.startswith("0.5.6"):
        pytest.skip("this LMCache does not report lost events")
    _, address = node
    running = coordinator(tmp_path)
    await asyncio.to_thread(running.start)

    def used() -> list[int]:
        return [row["used_bytes"] for row in running.status["tiers"]]

    try:
        reporter = await asyncio.to_thread(Reporter, running, address)
        await asyncio.to_thread(reporter.report, "config", "l1", capacity=100 * MIB)
        await asyncio.to_thread(reporter.report, "store", "l1", [1, 2])
        await asyncio.to_thread(until, lambda: sum(used()) == 4 * MIB)
        await asyncio.to_thread(reporter.report, "store", "l1", [3], dropped=5)
        await asyncio.to_thread(until, lambda: sum(used()) == 2 * MIB)
        await asyncio.to_thread(reporter.report, "store", "l1", [4], dropped=5)  # no more since then
        await asyncio.to_thread(until, lambda: sum(used()) == 4 * MIB)
        status = await asyncio.to_thread(lambda: running.status)
        assert status["lost_events"] == 5 and status["failures"] == {"tick": 0, "delete": 0, "refit": 0}
        assert "lpc_lmcache_lost_events_total 5.0" in await asyncio.to_thread(running.ask, "/lpc/metrics")
    finally:
        await asyncio.to_thread(running.kill)


async def test_a_node_that_timed_out_is_controlled_again_after_it_registers(
    tmp_path: Path, node: tuple[NodeServer, str]
) -> None:
    server, address = node
    running = coordinator(tmp_path, "--instance-timeout", "1", "--health-check-interval", "0.2")
    await asyncio.to_thread(running.start)

    def tiers() -> list[tuple[str, int, int]]:
        return [(row["tier"], row["capacity_bytes"], row["used_bytes"]) for row in running.status["tiers"]]

    try:
        reporter = await asyncio.to_thread(Reporter, running, address)
        await asyncio.to_thread(reporter.report, "config", "l1", capacity=10 * MIB)
        await asyncio.to_thread(until, lambda: ("l1", 10 * MIB, 0) in tiers())
        await asyncio.to_thread(until, lambda: not tiers())
        await asyncio.to_thread(reporter.register)
        await asyncio.to_thread(reporter.report, "config", "l1", capacity=10 * MIB)
        for seed in (1, 2, 3, 4):
            await asyncio.to_thread(reporter.report, "store", "l1", [seed])
            await asyncio.to_thread(reporter.report, "store", "l2", [seed])
        await asyncio.to_thread(until, lambda: server.deleted)
        assert running.status["failures"] == {"tick": 0, "delete": 0, "refit": 0}
    finally:
        await asyncio.to_thread(running.kill)
