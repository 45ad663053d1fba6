"""What only the Redis store does: share, survive every way in which a Redis can be missing, and speak to a Cluster."""

import contextlib
import threading
import time
from pathlib import Path

import pytest
from redis.backoff import ConstantBackoff

from eviction_client.stores import BlockHash, EngineId
from eviction_client.stores.layout import LIMIT, UNIT, floor
from eviction_client.stores.namespace import Namespace
from testing.processes import RedisServer, free_port
from tests.eventually import until
from tests.redis_stores import BLOCKS, NAMESPACE, A, B, flushed, refusal, storing


def test_two_engines_of_one_namespace_pool_their_times(redis_server: RedisServer) -> None:
    with storing(redis_server.url) as one, storing(redis_server.url) as other:
        one.record(A, BLOCKS, 1.0)
        assert one.flush()
        other.record(B, BLOCKS[:4], 5.0)
        assert other.flush()
        assert one.elsewhere(A, BLOCKS) == dict.fromkeys(BLOCKS[:4], 5.0)
        assert other.elsewhere(B, BLOCKS) == dict.fromkeys(BLOCKS[4:], 1.0)


def test_what_many_requests_record_takes_one_command_of_each_shard(redis_server: RedisServer) -> None:
    """Of blocks in both orders, by two engines, the later record counts as if it had been written alone."""
    many = [BlockHash(n.to_bytes(4, "big") * 8) for n in range(1500)]
    with storing(redis_server.url) as store, contextlib.closing(redis_server.client()) as client:
        client.config_resetstat()
        for n in range(10):
            store.record(A, many[n * 100 : n * 100 + 300], 100.0 + n)
        store.record(B, many[600:700], 1000.0)
        store.record(A, many[:100], 1.0)
        store.record(A, many[600:700], 2.0)
        assert store.flush()
        assert client.info("commandstats")["cmdstat_eval"]["calls"] == 4
        expected = [100.0 + n // 100 for n in range(1000)] + [109.0] * 200 + [None] * 300
        expected[:100], expected[600:700] = [1.0] * 100, [1000.0] * 100
        assert store.retain_until(many) == expected
        assert store.elsewhere(A, many) == dict.fromkeys(many[600:700], 1000.0)
        assert (store.written, store.pending_blocks) == (3300, 0)


def test_more_blocks_than_one_pipeline_takes_are_all_written(redis_server: RedisServer) -> None:
    many = [BlockHash(n.to_bytes(4, "big") * 8) for n in range(10_000)]
    with storing(redis_server.url) as store:
        store.record(A, many, 5.0)
        assert store.flush() and store.written == len(many)
        assert store.retain_until(many) == [5.0] * len(many)


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
        one.record(A, BLOCKS, 1.0)
        assert one.flush()
        assert two.retain_until(BLOCKS) == [None] * len(BLOCKS)


def test_many_engines_writing_at_once_lose_no_update(redis_server: RedisServer) -> None:
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(storing(redis_server.url)) for _ in range(4)]

        def write(at: int) -> None:
            for turn in range(100):
                until = float((turn * 37 + at * 11) % 101)
                stores[at].record(EngineId(f"{at}/{turn}"), BLOCKS, until)
            assert stores[at].flush()

        threads = [threading.Thread(target=write, args=(at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = max(float((turn * 37 + at * 11) % 101) for at in range(4) for turn in range(100))
        assert stores[0].retain_until(BLOCKS) == [best] * len(BLOCKS)


def test_every_key_expires_and_nothing_of_a_conversation_is_in_redis(redis_server: RedisServer) -> None:
    with storing(redis_server.url) as store, contextlib.closing(redis_server.client()) as client:
        store.record(A, BLOCKS, 1.0)
        store.check()
        assert store.flush()
        keys = list(client.scan_iter())
        assert keys
        for key in keys:
            assert client.pttl(key) > 0
            assert key.startswith(b"lpc:{" + NAMESPACE.digest.encode())
            content = key + (client.dump(key) or b"")
            assert A.encode() not in content and NAMESPACE.model.encode() not in content


def test_times_come_back_after_redis_was_killed_and_restarted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lpc.wire")
    with RedisServer(tmp_path) as server, storing(server.url) as store:
        store.record(A, BLOCKS, 1.0)
        assert store.flush()
        assert store.healthy
        server.kill()
        store.record(A, BLOCKS, 2.0)
        assert until(lambda: store.flush() or store.failures >= 3)
        assert not store.healthy
        server.start()
        assert flushed(store)
        assert store.healthy
        assert store.retain_until(BLOCKS) == [2.0] * len(BLOCKS)
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_while_redis_is_away_nothing_waits_for_it_and_memory_stays_bounded() -> None:
    """After a failure it is not asked again before the pause is over."""
    now = 0.0
    url = f"redis://127.0.0.1:{free_port()}/0"
    with storing(url, max_pending_blocks=80, backoff=ConstantBackoff(2.0), clock=lambda: now) as store:
        for n in range(100):
            store.record(A, BLOCKS, float(n))
            assert store.elsewhere(B, BLOCKS) == {} and not store.flush()
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
            store.record(A, BLOCKS, 1.0)
            assert store.flush()
            store.elsewhere(B, BLOCKS)
            store.trim(time.time())
            assert store.failures == 0


def test_a_server_that_lost_the_script_gets_it_again(redis_server: RedisServer) -> None:
    with storing(redis_server.url) as store, contextlib.closing(redis_server.client()) as client:
        store.record(A, BLOCKS, 1.0)
        assert store.flush()
        client.script_flush()
        store.record(A, BLOCKS, 2.0)
        assert store.flush()
        assert store.retain_until(BLOCKS) == [2.0] * len(BLOCKS)
        assert store.failures == 0


def test_tag_and_time_share_a_double_exactly_until_2106(redis_server: RedisServer) -> None:
    assert UNIT == 1 / 32
    latest = floor(LIMIT - 1)
    with storing(redis_server.url) as store:
        store.record(A, BLOCKS, latest)
        store.record(A, BLOCKS, latest - UNIT)
        assert store.flush()
        assert store.retain_until(BLOCKS) == [latest - UNIT] * len(BLOCKS)
        store.record(B, BLOCKS, latest - 2 * UNIT)
        assert store.flush()
        assert store.elsewhere(B, BLOCKS) == dict.fromkeys(BLOCKS, latest - UNIT)
        store.record(B, BLOCKS, latest)
        store.record(A, BLOCKS, latest - UNIT)
        assert store.flush()
        assert store.elsewhere(A, BLOCKS) == dict.fromkeys(BLOCKS, latest)
        assert store.elsewhere(B, BLOCKS) == {}
        assert store.retain_until(BLOCKS) == [latest] * len(BLOCKS)
