"""What only the Redis store does: share, survive every way in which a Redis can be missing, and speak to a Cluster."""

import contextlib
import socket
import threading
import time
from hashlib import sha256
from pathlib import Path

import pytest
import redis
from redis.backoff import ConstantBackoff

from benchmarks.processes import RedisServer, free_port
from eviction_client.errors import StoreAccessDenied, StoreUnreachable, StoreUnsuitable
from eviction_client.settings import ClientSettings
from eviction_client.stores import BlockHash, ConversationId, MemoryStore, open_store
from eviction_client.stores.layout import LIMIT, MEMBER_BYTES, UNIT, Layout, floor
from eviction_client.stores.namespace import Namespace
from eviction_client.stores.redis import RedisStore
from tests.deploy.deployed_caches import own_address
from tests.eventually import until
from tests.redis_stores import BLOCKS, NAMESPACE, A, B, LosingProxy, refusal, storing


def test_two_engines_of_one_namespace_pool_their_scores(redis_server: RedisServer) -> None:
    with storing(redis_server.url) as one, storing(redis_server.url) as other:
        one.record(A, BLOCKS, 1.0)
        assert one.flush(5)
        other.record(B, BLOCKS[:4], 5.0)
        assert other.flush(5)
        one.look_ahead(BLOCKS)
        assert one.flush(5)
        assert list(one.take_answers().values()) == [5.0] * 4 + [1.0] * 4


def test_a_conversation_that_moves_to_another_engine_still_replaces_its_score(redis_server: RedisServer) -> None:
    with storing(redis_server.url) as one, storing(redis_server.url) as other:
        one.record(A, BLOCKS, 5.0)
        assert one.flush(5)
        other.record(A, BLOCKS, 1.0)
        assert other.flush(5)
        assert one.scores(BLOCKS) == [1.0] * len(BLOCKS)


@pytest.mark.parametrize(
    "other",
    [
        Namespace("xxhash_cbor", "0", 16, "a-model"),
        Namespace("sha256_cbor", "1", 16, "a-model"),
        Namespace("sha256_cbor", "0", 32, "a-model"),
        Namespace("sha256_cbor", "0", 16, "b-model"),
        Namespace("sha256_cbor", "0", 16, "a-model", lora="l"),
        Namespace("sha256_cbor", "0", 16, "a-model", salt="s"),
        Namespace("sha256_cbor", "016", 16, "a-model"),
    ],
)
def test_engines_that_differ_in_anything_never_pool(redis_server: RedisServer, other: Namespace) -> None:
    with storing(redis_server.url) as one, storing(redis_server.url, other) as two:
        one.record(A, BLOCKS, 1.0)
        assert one.flush(5)
        assert two.scores(BLOCKS) == [None] * len(BLOCKS)


def test_many_engines_writing_at_once_lose_no_update(redis_server: RedisServer) -> None:
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(storing(redis_server.url)) for _ in range(4)]

        def write(at: int) -> None:
            for turn in range(100):
                score = float((turn * 37 + at * 11) % 101)
                stores[at].record(ConversationId(f"{at}/{turn}"), BLOCKS, score)
            assert stores[at].flush(20)

        threads = [threading.Thread(target=write, args=(at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = max(float((turn * 37 + at * 11) % 101) for at in range(4) for turn in range(100))
        assert stores[0].scores(BLOCKS) == [best] * len(BLOCKS)
        assert sum(store.counters.written for store in stores) == 4 * 100 * len(BLOCKS)


def test_every_key_expires_and_nothing_of_a_conversation_is_in_redis(redis_server: RedisServer) -> None:
    with storing(redis_server.url) as store, contextlib.closing(redis_server.client()) as client:
        store.record(A, BLOCKS, 1.0)
        store.check()
        assert store.flush(5)
        keys = list(client.scan_iter())
        assert keys
        for key in keys:
            assert client.pttl(key) > 0
            assert key.startswith(b"lpc:{" + NAMESPACE.digest.encode())
            content = key + (client.dump(key) or b"")
            assert A.encode() not in content and NAMESPACE.model.encode() not in content


def test_a_batch_whose_answer_was_lost_is_applied_once(redis_server: RedisServer) -> None:
    """Sent again, and in between another engine has recorded the conversation's next turn: that one must stay."""
    with (
        contextlib.closing(LosingProxy(redis_server.port)) as proxy,
        storing(redis_server.url, shards=1) as other,
        storing(f"redis://127.0.0.1:{proxy.port}/0", shards=1, backoff=ConstantBackoff(1.0)) as store,
    ):
        store.record(A, BLOCKS, 1.0)
        assert store.flush(5)
        proxy.lose_answers_to = b"EVALSHA"
        store.record(A, BLOCKS, 9.0)
        assert until(lambda: proxy.lost)
        other.record(A, BLOCKS, 3.0)
        assert other.flush(5)
        assert store.flush(10)
        assert store.counters.failures == 1
        assert store.counters.written == 2 * len(BLOCKS)
        assert store.scores(BLOCKS) == [3.0] * len(BLOCKS)


def test_scores_come_back_after_redis_was_killed_and_restarted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "eviction_client")
    with RedisServer(tmp_path) as server, storing(server.url) as store:
        store.record(A, BLOCKS, 1.0)
        assert store.flush(5)
        assert store.healthy
        server.kill()
        store.record(A, BLOCKS, 2.0)
        assert until(lambda: store.counters.failures >= 3)
        assert not store.healthy
        server.start()
        assert store.flush(20)
        assert store.healthy
        assert store.scores(BLOCKS) == [2.0] * len(BLOCKS)
        assert store.counters.reconnects == 1
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_frozen_redis_keeps_no_caller_waiting_and_memory_stays_bounded(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server, storing(server.url, timeout_s=0.2, max_pending_blocks=800) as store:
        store.record(A, BLOCKS, 1.0)
        assert store.flush(5)
        server.freeze()
        for n in range(1000):
            store.record(A, BLOCKS, float(n))
            store.look_ahead(BLOCKS)
            assert store.take_answers() == {}
        assert store.pending_blocks <= 800
        assert until(lambda: not store.healthy)
        server.thaw()
        assert store.flush(20)
        assert store.scores(BLOCKS) == [999.0] * len(BLOCKS)
        counters = store.counters
        assert counters.dropped > 0
        assert counters.recorded == counters.written + counters.dropped


def test_an_unreachable_redis_is_named() -> None:
    port = free_port()
    kind, message = refusal(f"redis://:a-secret@127.0.0.1:{port}/0")
    assert kind is StoreUnreachable
    assert f"127.0.0.1:{port}" in message and "a-secret" not in message


def test_a_redis_that_never_answers_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hole:
        kind, message = refusal(f"redis://127.0.0.1:{hole.getsockname()[1]}/0")
    assert kind is StoreUnreachable
    assert "did not answer within 0.5 s" in message


def test_a_missing_and_a_wrong_password_are_told_apart(tmp_path: Path) -> None:
    with RedisServer(tmp_path, requirepass="right") as server:
        kind, message = refusal(server.url)
        assert kind is StoreAccessDenied and "asks for a password" in message
        kind, message = refusal(f"redis://:wr0ng-secret@127.0.0.1:{server.port}/0")
        assert kind is StoreAccessDenied and "refuses this user or password" in message and "wr0ng" not in message
        with storing(f"redis://:right@127.0.0.1:{server.port}/0") as store:
            store.check()


def test_a_user_without_rights_learns_which_are_needed_and_they_suffice(tmp_path: Path) -> None:
    commands = "+eval +evalsha +zmscore +zadd +zcount +zremrangebyrank +pexpire +get +set"
    with RedisServer(tmp_path) as server, contextlib.closing(server.client()) as admin:
        admin.execute_command("ACL", "SETUSER", "weak", "on", ">p", "~lpc:*", "+@read")
        admin.execute_command("ACL", "SETUSER", "foreign", "on", ">p", "~other:*", "+@all")
        admin.execute_command("ACL", "SETUSER", "engine", "on", ">p", "~lpc:*", *commands.split())
        for user in ("weak", "foreign"):
            kind, message = refusal(f"redis://{user}:p@127.0.0.1:{server.port}/0")
            assert kind is StoreAccessDenied
            assert "ZREMRANGEBYRANK" in message and "lpc:*" in message
        with storing(f"redis://engine:p@127.0.0.1:{server.port}/0") as store:
            store.check()
            store.record(A, BLOCKS, 1.0)
            store.look_ahead(BLOCKS)
            store.trim(time.time())
            assert store.flush(5)
            assert store.counters.failures == 0


def test_a_read_only_replica_is_named(tmp_path: Path) -> None:
    with (
        RedisServer(tmp_path / "primary") as primary,
        RedisServer(tmp_path / "replica", replicaof=f"127.0.0.1 {primary.port}") as replica,
    ):
        kind, message = refusal(replica.url)
    assert kind is StoreUnsuitable
    assert "read-only replica" in message


def test_a_redis_without_zmscore_is_too_old(tmp_path: Path) -> None:
    (tmp_path / "old.conf").write_text('rename-command ZMSCORE ""\n')
    with RedisServer(tmp_path, include=str(tmp_path / "old.conf")) as server:
        kind, message = refusal(server.url)
    assert kind is StoreUnsuitable
    assert "6.2" in message


def test_a_full_redis_is_named(tmp_path: Path) -> None:
    with RedisServer(tmp_path, maxmemory="1") as server:
        kind, message = refusal(server.url)
    assert kind is StoreUnsuitable
    assert "out of memory" in message


def test_a_key_of_another_type_keeps_no_other_shards_scores_back(redis_server: RedisServer) -> None:
    """Another program has written a string where one of the four shards should be."""
    writer, reader = RedisStore(redis_server.url, NAMESPACE), RedisStore(redis_server.url, NAMESPACE)
    blocks = [BlockHash(sha256(f"typed {i}".encode()).digest()) for i in range(64)]
    try:
        writer.record(ConversationId("a"), blocks, 1e9)
        assert writer.flush(5)
        layout = Layout(NAMESPACE.digest, 4, "")
        with redis.Redis.from_url(redis_server.url) as client:
            assert client.delete(layout.scores_key(0))
            client.set(layout.scores_key(0), "not a sorted set")
        reader.look_ahead(blocks)
        assert reader.flush(5)
        found = reader.take_answers()
        assert set(found) == {block for block in blocks if block not in _shard(layout, blocks, 0)}
        assert reader.counters.failures == 1
    finally:
        writer.close()
        reader.close()


def _shard(layout: Layout, blocks: list[BlockHash], shard: int) -> set[BlockHash]:
    return {blocks[i] for i in layout.by_shard(blocks)[shard]}


def test_a_malformed_url_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="redis"):
        RedisStore("http://127.0.0.1", NAMESPACE)
    with pytest.raises(ValueError, match="redis://"):
        ClientSettings(redis_url="http://:hunter2@127.0.0.1")  # type: ignore[arg-type]


def test_without_a_url_scores_stay_in_memory(redis_server: RedisServer) -> None:
    assert isinstance(open_store(ClientSettings(), NAMESPACE), MemoryStore)
    store = open_store(ClientSettings(redis_url=redis_server.url), NAMESPACE)  # type: ignore[arg-type]
    assert isinstance(store, RedisStore)
    store.close()


def test_a_server_that_lost_the_script_gets_it_again(redis_server: RedisServer) -> None:
    with storing(redis_server.url) as store, contextlib.closing(redis_server.client()) as client:
        store.record(A, BLOCKS, 1.0)
        assert store.flush(5)
        client.script_flush()
        store.record(A, BLOCKS, 2.0)
        assert store.flush(5)
        assert store.scores(BLOCKS) == [2.0] * len(BLOCKS)
        assert store.counters.failures == 0


def test_tag_and_score_share_a_double_exactly_until_2106(redis_server: RedisServer) -> None:
    assert UNIT == 1 / 32
    latest = floor(LIMIT - 1)
    with storing(redis_server.url) as store:
        store.record(A, BLOCKS, latest)
        store.record(A, BLOCKS, latest - UNIT)
        assert store.flush(5)
        assert store.scores(BLOCKS) == [latest - UNIT] * len(BLOCKS)
        store.record(B, BLOCKS, latest - 2 * UNIT)
        store.record(A, BLOCKS, latest - 3 * UNIT)
        assert store.flush(5)
        assert store.scores(BLOCKS) == [latest - UNIT] * len(BLOCKS)


def test_what_an_old_release_has_left_is_never_read(redis_server: RedisServer) -> None:
    """Log-odds, in the sorted sets of the namespace that this engine had under the old encoding."""
    old = "40f0c24769f9e252dc114be415856f78"  # of NAMESPACE, at tau = 100 s
    with contextlib.closing(redis_server.client()) as client, storing(redis_server.url) as store:
        for shard in range(4):
            members = {block[:10] + block[-4:]: 1.8e7 for block in BLOCKS}
            client.zadd(f"lpc:{{{old}:{shard}/4}}:scores", members)
        assert store.scores(BLOCKS) == [None] * len(BLOCKS)


def test_a_member_fits_a_sixteen_byte_allocation(redis_server: RedisServer) -> None:
    """Why MEMBER_BYTES is what it is: one byte more costs sixteen per block."""

    def usage(member_bytes: int) -> int:
        with contextlib.closing(redis_server.client()) as client:
            client.flushall()
            client.zadd("z", {n.to_bytes(member_bytes, "big"): float(n) for n in range(members)})
            return int(client.memory_usage("z", samples=0))

    members = 20_000  # each draws its level by chance: 11 bytes of spread; of the mean over so many, 0.1
    assert usage(MEMBER_BYTES + 1) - usage(MEMBER_BYTES) >= 15 * members
    assert abs(usage(MEMBER_BYTES) - usage(8)) < members


def test_protected_mode_is_named(tmp_path: Path) -> None:
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but its own")
    with RedisServer(tmp_path, bind="*", protected_mode="yes") as server:
        kind, message = refusal(f"redis://{address}:{server.port}/0")
    assert kind is StoreAccessDenied and "protected mode" in message


def test_each_cause_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer(tmp_path) as server, contextlib.closing(server.client()) as admin:
        admin.execute_command("ACL", "SETUSER", "engine", "on", ">other", "~lpc:*", "+@read")
        with storing(f"redis://engine:p@127.0.0.1:{server.port}/0") as store:
            assert until(lambda: _tried(store, 2))
            admin.execute_command("ACL", "SETUSER", "engine", ">p")
            assert until(lambda: _tried(store, 1) and "does not let this user" in caplog.text)
    assert [caplog.text.count(cause) for cause in ("refuses this user", "does not let this user")] == [1, 1]


def _tried(store: RedisStore, failures: int) -> bool:
    store.record(A, BLOCKS, time.time())
    return store.counters.failures >= failures
