"""LMCache in MP mode with real vLLM: what the controller does, and what happens when processes are killed."""

import random
import subprocess
import time
import urllib.error
from typing import Any

import httpx2
import pytest

from lpc_apps.lmcache import node as lpc_node
from lpc_apps.lmcache.events import KeyChain, ObjectId
from testing.lmcache_stack import CHUNK_BYTES, MODEL, HttpServer, Node, environment, program
from testing.processes import free_port
from tests.eventually import patiently, until
from tests.lmcache.conftest import CHUNKS, Stack

pytestmark = pytest.mark.supports(engine="LMCache", tier="MP mode", what="eviction by value, tokens, and all of it killed")


def text(seed: int, tokens: int) -> str:
    return "".join(random.Random(seed).choices("abcdefgh ", k=tokens))


def tier(stack: Stack, name: str) -> dict[str, Any]:
    return next((row for row in stack.coordinator.status["tiers"] if row["tier"] == name), {"chunks": 0})


def ids(stack: Stack, prompt: str) -> list[int]:
    answer = httpx2.post(
        f"{stack.engine.url}/tokenize", json={"model": "tiny", "prompt": prompt}, timeout=patiently(), trust_env=False
    )
    found: list[int] = answer.json()["tokens"]
    return found


FIRST = text(1, 1400)
"""Five complete chunks and a part of a sixth."""


def fill(stack: Stack, seed: int) -> None:
    """Store 240 chunks, more than memory holds, slowly enough for the coordinator."""
    for prompt in range(seed, seed + 48):
        stack.engine.complete(text(prompt, 1300))
        time.sleep(0.1)


def test_computed_hashes_equal_those_of_lmcache(stack: Stack) -> None:
    stack.engine.complete(FIRST)
    until(lambda: tier(stack, "l1")["chunks"] >= 5)
    keys = stack.coordinator.ask("/directory/keys")["keys"]
    stored = {row["key"]["chunk_hash_hex"] for row in keys}
    expected = {hash_.hex() for hash_ in KeyChain().hashes(ids(stack, FIRST), 256)}
    assert len(expected) == 5
    assert expected <= stored


def test_memory_stays_below_the_watermark_without_eviction_by_the_node(stack: Stack) -> None:
    stack.engine.complete(FIRST)
    fill(stack, 100)
    until(lambda: tier(stack, "l1").get("deleted_bytes", 0) >= 20 * CHUNK_BYTES)
    until(lambda: tier(stack, "l1")["used_bytes"] <= 0.7 * CHUNKS * CHUNK_BYTES)
    row = tier(stack, "l1")
    assert row["capacity_bytes"] == pytest.approx(CHUNKS * CHUNK_BYTES, rel=0.01)
    assert row["lost_bytes"] == 0
    assert stack.coordinator.status["failures"] == {"tick": 0, "delete": 0, "refit": 0}
    assert stack.coordinator.status["sidecar"] is True


def test_blocks_loaded_from_disk_give_the_same_answer(stack: Stack) -> None:
    prompt = text(2, 1400)
    before = stack.engine.complete(prompt)
    fill(stack, 200)
    assert stack.engine.complete(prompt) == before


def test_nothing_of_a_prompt_is_logged(stack: Stack) -> None:
    tokens = ids(stack, FIRST)
    log = stack.coordinator.log
    assert FIRST[:40] not in log
    assert str(tokens[:8])[1:-1] not in log


class Front(HttpServer):
    """`lpc lmcache front` in front of a port."""

    healthy = "/healthz"

    def __init__(self, folder: Any, to: int, token: str) -> None:
        port = free_port()
        command = [program(), "-m", "lpc_cli", "lmcache", "front", "--upstream", f"127.0.0.1:{to}", "--host", "127.0.0.1"]
        (folder / "token").write_text(token)
        variables = environment(lmcache_token_file=folder / "token")
        super().__init__(port, folder / "front.log", [*command, "--port", str(port)], variables)


def test_a_front_requires_the_token_which_a_node_sends_in_its_url(stack: Stack, tmp_path: Any) -> None:
    with Front(tmp_path, stack.coordinator.port, "s3cret") as front:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            front.ask("/lpc/status")
        with httpx2.Client(trust_env=False) as client:
            answer = client.post(f"http://lpc:s3cret@127.0.0.1:{front.port}/events", json={"batches": []})
        assert answer.status_code == 200


async def test_a_node_with_an_api_key_accepts_the_controllers_token_alone(
    stack: Stack, tmp_path: Any, lmcache_version: str
) -> None:
    """LMCache 0.5.7 checks it."""
    if lmcache_version.startswith("0.5.6"):
        pytest.skip("this LMCache has no API keys")
    (tmp_path / "token").write_text("s3cret")
    options = ("--api-key-file", str(tmp_path / "token"), "--instance-id", "node-b")
    with Node(tmp_path, stack.coordinator.url, memory=CHUNK_BYTES * 40, disk_bytes_per_s=1e9, options=options) as node:
        for token, refused in (("other", True), ("s3cret", False)):
            async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, trust_env=False) as client:
                asked = lpc_node.Node(client, f"127.0.0.1:{node.port}")
                if refused:
                    with pytest.raises(lpc_node.NodeError, match="HTTP 401"):
                        await asked.delete("l1", [ObjectId("00" * 32, MODEL, 0, 0, "")])
                else:
                    assert await asked.delete("l1", [ObjectId("00" * 32, MODEL, 0, 0, "")]) == 0


def test_a_token_on_an_open_address_is_refused(tmp_path: Any) -> None:
    command = [program(), "-m", "lpc_cli", "lmcache", "coordinator", "--host", "0.0.0.0", "--port", str(free_port())]
    (tmp_path / "token").write_text("t")
    variables = environment(lmcache_token_file=tmp_path / "token")
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=patiently(120))
    assert done.returncode == 2
    assert "give --host 127.0.0.1" in done.stderr


def test_requests_succeed_while_processes_are_killed_one_by_one(stack: Stack) -> None:
    """Must run last: nothing is restarted."""
    expected = stack.engine.complete(FIRST)
    stack.redis.kill()
    assert stack.engine.complete(FIRST) == expected
    stack.sidecar.kill()
    assert stack.engine.complete(FIRST) == expected
    until(lambda: stack.coordinator.status["sidecar"] is False)
    deleted = tier(stack, "l1")["deleted_bytes"]
    fill(stack, 300)
    until(lambda: tier(stack, "l1")["deleted_bytes"] > deleted)  # LRU without the sidecar
    assert "above watermark" not in stack.node.log
    stack.coordinator.kill()
    for seed in range(60, 76):
        stack.engine.complete(text(seed, 1300))
    until(lambda: "above watermark" in stack.node.log)
    assert stack.engine.complete(FIRST) == expected
