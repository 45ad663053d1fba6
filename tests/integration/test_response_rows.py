"""The rows of benchmark `responses` in small: each runs, counts what it says, and has the names that are promised."""

from pathlib import Path

from benchmarks import responses_gateway
from benchmarks.processes import RedisServer
from benchmarks.responses_rows import exact, memory, restart, semantic


async def test_an_exact_lookup_beside_bare_gets(redis_server: RedisServer, tmp_path: Path) -> None:
    found = await exact(redis_server.url, tmp_path, lookups=40)
    assert found["exact_lookup_p50_ratio"] == found["exact_lookup_p50_us"] / found["bare_get_p50_us"]
    assert found["held_get_p50_us"] > 0


async def test_a_semantic_lookup_hits_among_many(redis_server: RedisServer, tmp_path: Path) -> None:
    assert await semantic(redis_server.url, tmp_path, entries=200, lookups=20) > 0


async def test_a_restart_finds_all_vectors_that_a_bare_scan_finds(redis_server: RedisServer, tmp_path: Path) -> None:
    found = await restart(redis_server.url, tmp_path, 300)
    assert found["restart_entries"] == 300
    assert found["restart_ratio"] == found["restart_s"] / found["bare_hscan_s"]


async def test_an_entry_takes_less_than_redisvl_s(redis_server: RedisServer, tmp_path: Path) -> None:
    found = await memory(redis_server, tmp_path, entries=1000)
    assert found["bytes_per_entry_of_redisvl"] <= 0.6
    assert found["bytes_per_vector"] <= 1.1 * 1024
    assert found["answer_bytes_ratio"] <= 1.35


def test_the_gateways_rows(tiny_models: Path) -> None:
    found = responses_gateway.rows(tiny_models, "tiny", quick=True)
    flight = found["single_flight"]
    assert (flight["requests"], flight["engine_calls"]) == (64, 1)
    assert flight["engine_calls_leader_killed"] <= 2
    assert {"plain", "miss", "hit", "sidecar_dead", "hit_over_plain"} <= found["gateway_overhead_p50_ms"].keys()
