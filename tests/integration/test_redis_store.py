"""What only the Redis store does: share, survive every way in which a Redis can be missing, and speak to a Cluster."""

import contextlib
import threading
import time
from pathlib import Path

import pytest
from redis.backoff import ConstantBackoff

from eviction_client.stores import BlockHash
from eviction_client.stores.namespace import Namespace
from testing.processes import RedisServer, free_port
from tests.eventually import until
from tests.redis_stores import BLOCKS, NAMESPACE, A, B, ends, flushed, record, refusal, storing


def test_two_engines_of_one_namespace_pool_their_claims(redis_server: RedisServer) -> None:
    with storing(redis_server.url) as one, storing(redis_server.url) as other:
        record(one, A, BLOCKS, 1.0)
        assert one.flush()
        record(other, B, BLOCKS[:4], 5.0)
        assert other.flush()
        assert one.claims(BLOCKS) == other.claims(BLOCKS)
        assert [claim.conversation for claim in one.claims(BLOCKS).values()] == [B] * 4 + [A] * 4


def test_what_many_requests_record_takes_one_command_of_each_shard(redis_server: RedisServer) -> None:
    """Of blocks in both orders, by two conversations, the later record counts as if it had been written alone."""
    many = [BlockHash(n.to_bytes(4, "big") * 8) for n in range(1500)]
    with storing(redis_server.url) as store, contextlib.closing(redis_server.client()) as client:
        client.config_resetstat()
        for n in range(10):
            record(store, A, many[n * 100 : n * 100 + 300], 100.0 + n)
        record(store, B, many[600:700], 1000.0)
        record(store, A, many[:100], 1.0)
        record(store, A, many[600:700], 200.0)
        assert store.flush()
        assert client.info("commandstats")["cmdstat_eval"]["calls"] == 4
        expected = [100.0 + n // 100 for n in range(1000)] + [109.0] * 200 + [None] * 300
        expected[600:700] = [1000.0] * 100
        assert ends(store, many) == expected
        assert [block for block, claim in store.claims(many).items() if claim.holders == 2] == many[600:700]
        assert (store.written, store.pending_blocks) == (3300, 0)


def test_more_blocks_than_one_pipeline_takes_are_all_written(redis_server: RedisServer) -> None:
    many = [BlockHash(n.to_bytes(4, "big") * 8) for n in range(10_000)]
    with storing(redis_server.url) as store:
        record(store, A, many, 5.0)
        assert store.flush() and store.written == len(many)
        assert ends(store, many) == [5.0] * len(many)


@pytest.mark.parametrize(
    "other",
    [
        Namespace("xxhash_cbor", "0", 16, "a-model"),
        Namespace("sha256_cbor", "1", 16, "a-model"),
        Namespace("sha256_cbor", "0", 32, "a-model"),
        Namespace("sha256_cbor", "0", 16, "b-model"),
        Namespace("sha256_cbor", "016", 16, "a-model"),
    ],
)
def test_engines_that_differ_in_anything_never_pool(redis_server: RedisServer, other: Namespace) -> None:
    with storing(redis_server.url) as one, storing(redis_server.url, other) as two:
        record(one, A, BLOCKS, 1.0)
        assert one.flush()
        assert ends(two, BLOCKS) == [None] * len(BLOCKS)


def test_many_engines_writing_at_once_lose_no_update(redis_server: RedisServer) -> None:
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(storing(redis_server.url)) for _ in range(4)]

        def write(at: int) -> None:
            for turn in range(100):
                record(stores[at], 100 * at + turn, BLOCKS, float((turn * 37 + at * 11) % 101))
            assert stores[at].flush()

        threads = [threading.Thread(target=write, args=(at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = max(float((turn * 37 + at * 11) % 101) for at in range(4) for turn in range(100))
        assert ends(stores[0], BLOCKS) == [best] * len(BLOCKS)


def test_every_key_expires_and_nothing_of_a_conversation_is_in_redis(redis_server: RedisServer) -> None:
    with storing(redis_server.url) as store, contextlib.closing(redis_server.client()) as client:
        record(store, A, BLOCKS, 1.0)
        store.check()
        assert store.flush()
        keys = list(client.scan_iter())
        assert keys
        for key in keys:
            assert client.pttl(key) > 0
            assert key.startswith(b"lpc:{" + NAMESPACE.digest.encode())
            content = key + (client.dump(key) or b"")
            assert NAMESPACE.model.encode() not in content


def test_claims_come_back_after_redis_was_killed_and_restarted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lpc.wire")
    with RedisServer(tmp_path) as server, storing(server.url) as store:
        record(store, A, BLOCKS, 1.0)
        assert store.flush()
        assert store.healthy
        server.kill()
        record(store, A, BLOCKS, 2.0)
        assert until(lambda: store.flush() or store.failures >= 3)
        assert not store.healthy
        server.start()
        assert flushed(store)
        assert store.healthy
        assert ends(store, BLOCKS) == [2.0] * len(BLOCKS)
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_while_redis_is_away_nothing_waits_for_it_and_memory_stays_bounded() -> None:
    """After a failure it is not asked again before the pause is over."""
    now = 0.0
    url = f"redis://127.0.0.1:{free_port()}/0"
    with storing(url, max_pending_blocks=80, backoff=ConstantBackoff(2.0), clock=lambda: now) as store:
        for n in range(100):
            record(store, A, BLOCKS, float(n))
            assert store.claims(BLOCKS) == {} and not store.flush()
        assert (store.failures, store.pending_blocks, store.dropped) == (1, 80, 100 * len(BLOCKS) - 80)
        now = 2.0
        assert not store.flush() and store.failures == 2


def test_an_unreachable_redis_is_named() -> None:
    port = free_port()
    message = refusal(f"redis://:a-secret@127.0.0.1:{port}/0")
    assert f"127.0.0.1:{port}" in message and "a-secret" not in message


def test_a_user_without_rights_learns_which_are_needed_and_they_suffice(tmp_path: Path) -> None:
    commands = "+eval +zmscore +zadd +zcount +zremrangebyrank +pexpire +time"
    with RedisServer(tmp_path) as server, contextlib.closing(server.client()) as admin:
        admin.execute_command("ACL", "SETUSER", "weak", "on", ">p", "~lpc:*", "+@read")
        admin.execute_command("ACL", "SETUSER", "foreign", "on", ">p", "~other:*", "+@all")
        admin.execute_command("ACL", "SETUSER", "engine", "on", ">p", "~lpc:*", *commands.split())
        for user in ("weak", "foreign"):
            message = refusal(f"redis://{user}:p@127.0.0.1:{server.port}/0")
            assert "docs/how-to/security.md" in message
        with storing(f"redis://engine:p@127.0.0.1:{server.port}/0") as store:
            store.check()
            record(store, A, BLOCKS, 1.0)
            assert store.flush()
            store.claims(BLOCKS)
            store.trim(time.time())
            assert store.failures == 0


def test_a_server_that_lost_the_script_gets_it_again(redis_server: RedisServer) -> None:
    with storing(redis_server.url) as store, contextlib.closing(redis_server.client()) as client:
        record(store, A, BLOCKS, 1.0)
        assert store.flush()
        client.script_flush()
        record(store, A, BLOCKS, 2.0)
        assert store.flush()
        assert ends(store, BLOCKS) == [2.0] * len(BLOCKS)
        assert store.failures == 0


def test_a_damaged_value_is_not_read_and_counted_and_the_next_turn_replaces_it(redis_server: RedisServer) -> None:
    with storing(redis_server.url) as store, contextlib.closing(redis_server.client()) as client:
        record(store, A, BLOCKS, 1.0)
        assert store.flush()
        for key in client.keys("lpc:*:claims"):
            client.zadd(key, dict.fromkeys(client.zrange(key, 0, -1), 0.5))
        assert store.claims(BLOCKS) == {} and store.refused == len(BLOCKS)
        record(store, B, BLOCKS, 2.0)
        assert store.flush() and ends(store, BLOCKS) == [2.0] * len(BLOCKS)
