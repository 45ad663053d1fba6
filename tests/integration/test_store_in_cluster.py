"""The store on a Redis Cluster: real nodes on loopback, also while they form, and when the node of the URL is gone."""

import contextlib
import time
from pathlib import Path

import pytest

from benchmarks.processes import RedisServer
from eviction_client.errors import StoreError
from eviction_client.stores import BlockHash
from tests.eventually import until
from tests.redis_cluster import form, node, redis_cluster
from tests.redis_stores import BLOCKS, A, B, LosingProxy, flushed, refusal, storing

__all__ = ["redis_cluster"]


def test_a_cluster_that_is_still_forming_is_away_and_gets_everything_once_it_is_formed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lpc.wire")
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(node(tmp_path / str(n))) for n in range(3)]
        store = stack.enter_context(storing(nodes[0].url, cluster=True))
        store.record(A, BLOCKS, 1.0)
        with pytest.raises(StoreError, match="forming"):
            store.check()
        assert until(lambda: store.flush() or store.failures >= 2)
        assert not store.healthy
        form(nodes)
        assert flushed(store)
        assert store.healthy and store.scores(BLOCKS) == [1.0] * len(BLOCKS)
        assert store.dropped == 0
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_cluster_that_has_lost_a_primary_is_away_and_keeps_what_was_recorded(tmp_path: Path) -> None:
    """All of its slots are refused with CLUSTERDOWN until the primary is back."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(node(tmp_path / str(n))) for n in range(3)]
        form(nodes)
        store = stack.enter_context(storing(nodes[0].url, cluster=True, shards=16))
        store.record(A, BLOCKS, 1.0)
        assert store.flush()
        nodes[2].kill()
        with contextlib.closing(nodes[0].client()) as client:
            assert until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "fail", 40)
        store.record(A, BLOCKS, 2.0)
        assert until(lambda: store.flush() or store.failures >= 2)
        with pytest.raises(StoreError):
            store.scores(BLOCKS)
        nodes[2].start()
        assert flushed(store)
        assert store.dropped == 0 and store.healthy


def test_a_user_who_may_not_ask_for_slots_is_told_so(redis_cluster: list[RedisServer]) -> None:
    """redis-py says of any refusal that this is no Cluster."""
    for server in redis_cluster:
        with contextlib.closing(server.client()) as admin:
            admin.execute_command("ACL", "SETUSER", "blind", "on", ">p", "~lpc:*", "+@all", "-cluster")
    message = refusal(f"redis://blind:p@127.0.0.1:{redis_cluster[0].port}/0", cluster=True)
    assert "does not let this user" in message


def test_a_cluster_spreads_the_shards_and_keeps_the_law(redis_cluster: list[RedisServer]) -> None:
    many = [BlockHash(n.to_bytes(4, "big") * 8) for n in range(2000)]
    with storing(redis_cluster[0].url, cluster=True, shards=16) as store:
        store.check()
        store.record(A, many, 5.0)
        store.record(A, many, 1.0)
        store.record(B, many[:1000], 3.0)
        assert store.shared(many) == dict.fromkeys(many[:1000], 3.0)
        assert store.scores(many) == [3.0] * 1000 + [1.0] * 1000
        store.trim(time.time())
        assert store.scores(many) == [None] * 2000
        assert store.failures == 0
        store.record(A, many, 1.0)
        assert store.flush()
        held = []
        for node in redis_cluster:
            with contextlib.closing(node.client()) as client:
                held.append(sum(client.zcard(key) for key in client.keys("lpc:*:scores")))
        assert sum(held) == len(many)
        assert all(count > 0 for count in held)


def test_a_cluster_is_found_again_when_the_node_of_the_url_is_gone(redis_cluster: list[RedisServer]) -> None:
    """The URL leads to a node that is never seen again; then every connection breaks."""
    with contextlib.closing(LosingProxy(redis_cluster[0].port)) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        with storing(url, cluster=True) as store:
            store.record(A, BLOCKS, 1.0)
            assert store.flush()
            proxy.close()
            for node in redis_cluster:
                with contextlib.closing(node.client()) as client:
                    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            store.record(A, BLOCKS, 2.0)
            assert flushed(store)
            assert store.healthy
            assert store.scores(BLOCKS) == [2.0] * len(BLOCKS)


def test_a_cluster_without_the_cluster_setting_is_named_and_the_reverse(
    redis_cluster: list[RedisServer], redis_server: RedisServer
) -> None:
    messages = {refusal(node.url).split(":")[-1] for node in redis_cluster[:1]}
    assert messages == {" set LPC_REDIS_CLUSTER=true"}
    assert "unset LPC_REDIS_CLUSTER" in refusal(redis_server.url, cluster=True)
