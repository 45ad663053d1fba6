"""The store on a Redis Cluster: real nodes on loopback, also while they form, and when the node of the URL is gone."""

import contextlib
import time

import pytest

from eviction_client.stores import BlockHash
from testing.processes import RedisServer
from tests.redis_cluster import redis_cluster
from tests.redis_stores import BLOCKS, A, B, LosingProxy, ends, flushed, record, refusal, storing

__all__ = ["redis_cluster"]


def test_a_cluster_spreads_the_shards_and_keeps_the_law(redis_cluster: list[RedisServer]) -> None:
    many = [BlockHash(n.to_bytes(4, "big") * 8) for n in range(2000)]
    with storing(redis_cluster[0].url, cluster=True, shards=16) as store:
        store.check()
        record(store, A, many, 1.0)
        record(store, B, many[:1000], 3.0)
        record(store, A, many, 2.0)
        assert store.flush()
        assert [claim.conversation for claim in store.claims(many).values()] == [B] * 1000 + [A] * 1000
        assert ends(store, many) == [3.0] * 1000 + [2.0] * 1000
        store.trim(time.time())
        assert ends(store, many) == [None] * 2000
        assert store.failures == 0
        record(store, A, many, 1.0)
        assert store.flush()
        held = []
        for node in redis_cluster:
            with contextlib.closing(node.client()) as client:
                held.append(sum(client.zcard(key) for key in client.keys("lpc:*:claims")))
        assert sum(held) == len(many)
        assert all(count > 0 for count in held)


@pytest.mark.nightly
def test_a_cluster_is_found_again_when_the_node_of_the_url_is_gone(redis_cluster: list[RedisServer]) -> None:
    """The URL leads to a node that is never seen again; then every connection breaks."""
    with contextlib.closing(LosingProxy(redis_cluster[0].port)) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        with storing(url, cluster=True) as store:
            record(store, A, BLOCKS, 1.0)
            assert store.flush()
            proxy.close()
            for node in redis_cluster:
                with contextlib.closing(node.client()) as client:
                    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            record(store, A, BLOCKS, 2.0)
            assert flushed(store)
            assert store.healthy
            assert ends(store, BLOCKS) == [2.0] * len(BLOCKS)


def test_a_cluster_without_the_cluster_setting_is_named_and_the_reverse(
    redis_cluster: list[RedisServer], redis_server: RedisServer
) -> None:
    messages = {refusal(node.url).split(":")[-1] for node in redis_cluster[1:2]}  # the first one has the key of the check
    assert messages == {" set LPC_REDIS_CLUSTER=true"}
    assert "unset LPC_REDIS_CLUSTER" in refusal(redis_server.url, cluster=True)
