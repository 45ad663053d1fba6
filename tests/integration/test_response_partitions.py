"""No answer passes from one client, context or tenant to another; the benchmark runs the same with 100,000 conversations."""

from pathlib import Path

from benchmarks.processes import RedisServer
from benchmarks.responses_partitions import crossed


async def test_no_answer_crosses(redis_server: RedisServer, tmp_path: Path) -> None:
    found = await crossed(redis_server.url, tmp_path, conversations=400, seed=1)
    assert found["crossed"] == 0
    assert set(found["hits"]) == {"exact", "normalised", "semantic"}, "a tier that never hits shows nothing"
