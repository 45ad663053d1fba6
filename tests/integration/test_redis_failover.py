"""Redis behind a stable address that comes to lead to another server, while the kept connections still end at the old one."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from lpc.wire.redis_connection import Connection
from lpc.wire.redis_reach import RedisFailed, RedisReach
from response_cache.service.outcomes import CacheHit, CacheMiss
from testing.processes import RedisServer, free_port
from tests.eventually import eventually, until
from tests.integration.test_sharing import connected, prepared_sides, shared_past
from tests.redis_stores import BLOCKS, A, ends, record, storing
from tests.relay import Relay
from tests.response_cache import Caches, answer, asked

OPTIONS = {"enable_debug_command": "yes", "enable_protected_configs": "yes", "repl_diskless_sync_delay": "0"}
SET = "return redis.call('SET', KEYS[1], ARGV[1])"


class Pair(NamedTuple):
    """Two servers and the address that leads to the old one, until :meth:`switch`."""

    old: RedisServer
    new: RedisServer
    relay: Relay

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.relay.port}/0"

    def switch(self) -> None:
        """Lead new connections to the new server. The open ones stay at the old one."""
        self.relay.target = ("127.0.0.1", self.new.port)

    def fail_over(self) -> None:
        """Promote the replica, demote the old primary, and let the address follow."""
        self.new.ask("REPLICAOF", "NO", "ONE")
        self.old.ask("REPLICAOF", "127.0.0.1", str(self.new.port))
        self.switch()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A primary and its replica."""
    with (
        RedisServer(
            tmp_path / "old", enable_debug_command="yes", enable_protected_configs="yes", repl_diskless_sync_delay="0"
        ) as old,
        RedisServer(tmp_path / "new") as new,
        contextlib.closing(Relay()) as relay,
    ):
        relay.target = ("127.0.0.1", old.port)
        new.ask("REPLICAOF", "127.0.0.1", str(old.port))
        until(lambda: old.ask("INFO", "replication").get("slave0", {}).get("state") == "online")
        yield Pair(old, new, relay)


async def fill(caches: Caches, question: str) -> bool:
    """Look a question up and store its answer; return whether the answer can be found afterwards."""
    miss = await caches.cache.lookup("a", asked(question))
    if isinstance(miss, CacheMiss):
        await caches.cache.store("a", asked(question), answer(), flight=miss.flight)
    return isinstance(await caches.cache.lookup("a", asked(question)), CacheHit)


async def test_response_caches_follow_a_failover(pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caches = Caches(pair.url, tmp_path)
    assert await fill(caches, "Before?")
    pair.fail_over()
    await eventually(lambda: fill(caches, "After?"))
    assert await fill(caches, "Before?")
    with contextlib.closing(pair.new.client()) as client:
        assert len(list(client.scan_iter("lpc:rc:*:e:*"))) == 2
    await caches.close()
    assert "new connection" in caplog.text


async def test_response_caches_follow_a_second_failover_back(pair: Pair, tmp_path: Path) -> None:
    caches = Caches(pair.url, tmp_path)
    pair.fail_over()
    await eventually(lambda: fill(caches, "One?"))
    Pair(pair.new, pair.old, pair.relay).fail_over()
    await eventually(lambda: fill(caches, "Two?"))
    await caches.close()


async def test_a_flight_that_began_before_a_failover_holds_up_nobody_after_it(pair: Pair, tmp_path: Path) -> None:
    caches = Caches(pair.url, tmp_path)
    leader = await caches.cache.lookup("a", asked("Is it?"), renews=True)
    assert isinstance(leader, CacheMiss) and leader.flight
    until(lambda: pair.new.ask("KEYS", "lpc:rc:*:f:*"))
    pair.fail_over()
    await eventually(lambda: fill(caches, "After?"))
    following = await caches.cache.lookup("a", asked("Is it?"), wait_s=30.0, renews=True)  # its leader is dead
    assert isinstance(following, CacheMiss) and following.flight
    assert await caches.cache.renew("a", [("", leader.flight)]) == 0
    assert await caches.cache.renew("a", [("", following.flight)]) == 1
    stored = await caches.cache.store("a", asked("Is it?"), answer(), flight=following.flight)
    assert stored.refusal is None
    await caches.close()


async def test_shared_turns_follow_a_failover(pair: Pair) -> None:
    with prepared_sides(pair.url, 2) as sides:
        for _, shared, _ in sides:
            await connected(shared)
        assert await shared_past(sides, "before")
        pair.fail_over()
        names = (f"after {n}" for n in range(10_000))
        await eventually(lambda: shared_past(sides, next(names)))


def test_the_engines_store_follows_a_failover(pair: Pair) -> None:
    with storing(pair.url) as store:
        record(store, A, BLOCKS, 1.0)
        assert store.flush()
        pair.fail_over()
        record(store, A, BLOCKS, 2.0)
        until(store.flush)
        assert ends(store, BLOCKS) == [2.0] * len(BLOCKS)


def demote(server: RedisServer) -> None:
    server.ask("REPLICAOF", "127.0.0.1", str(free_port()))


def lose_primary(server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "replica-serve-stale-data", "no")
    demote(server)


def miss_replicas(server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "min-replicas-to-write", "3")


def fail_to_save(server: RedisServer) -> None:
    """A dump cannot replace a folder of its name."""
    folder = Path(server.ask("CONFIG", "GET", "dir")["dir"]) / "dump"
    folder.mkdir()
    server.ask("CONFIG", "SET", "dbfilename", folder.name, "save", "3600 1")
    server.ask("BGSAVE")
    until(lambda: server.ask("INFO", "persistence")["rdb_last_bgsave_status"] == "err")


def fill_up(server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "maxmemory", "1")


def forbid_writing(server: RedisServer) -> None:
    server.ask("ACL", "SETUSER", "default", "-set")


def run_for_ever(server: RedisServer) -> None:
    """Lets a script run that no client ends."""
    server.ask("CONFIG", "SET", "lua-time-limit", "1")

    def run() -> None:
        with contextlib.suppress(redis.RedisError), contextlib.closing(server.client(socket_timeout=600)) as client:
            client.eval("while true do end", 0)

    threading.Thread(target=run, daemon=True).start()

    def busy() -> bool:
        with contextlib.closing(server.client()) as client:
            try:
                client.ping()
            except redis.RedisError:
                return True
            return False

    until(busy)


def say_nothing(server: RedisServer) -> None:
    """The process is stopped: the kernel still accepts connections and bytes."""
    server.freeze()


@pytest.mark.parametrize(
    "spoil",
    [demote, lose_primary, miss_replicas, fail_to_save, fill_up, forbid_writing, run_for_ever, say_nothing],
    ids=lambda spoil: spoil.__name__,
)
async def test_a_write_reaches_the_server_that_stands_behind_the_address_now(
    pair: Pair, spoil: Callable[[RedisServer], None]
) -> None:
    """The old server goes on refusing at the connections that were kept; nobody closes them."""
    pair.new.ask("REPLICAOF", "NO", "ONE")
    reach = RedisReach(Connection(pair.url, timeout_s=1.0), "of the test")
    await asyncio.gather(*(reach.read("GET", "k") for _ in range(8)))  # several connections
    spoil(pair.old)
    assert not await written(reach)
    pair.switch()
    await eventually(lambda: written(reach))
    assert pair.new.ask("GET", "k") == "v"
    # Every other kept connection is replaced as well.
    assert await asyncio.gather(*(reach.read("GET", "k") for _ in range(8))) == [b"v"] * 8
    await reach.close()


async def written(reach: RedisReach) -> bool:
    try:
        return bool(await reach.run(SET, ["k"], "v"))
    except RedisFailed:
        return False


async def test_connections_that_died_silently_are_all_replaced(pair: Pair) -> None:
    """One time limit for the first call; the connections that it did not use are not tried one after the other."""
    pair.new.ask("REPLICAOF", "NO", "ONE")
    reach = RedisReach(Connection(pair.url, timeout_s=0.5), "of the test")
    await asyncio.gather(*(reach.read("GET", "k") for _ in range(20)))
    assert pair.relay.accepted >= 20
    pair.relay.silence()
    pair.switch()
    failed = 0

    async def read() -> bool:
        nonlocal failed
        try:
            await reach.read("GET", "k")
        except RedisFailed:
            failed += not reach._health.resting or failed == 0
            return False
        return True

    await eventually(read)
    assert failed <= 2
    await reach.close()


async def test_a_node_with_another_password_is_used_as_soon_as_the_file_has_it(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "password"
    file.write_text("one")
    pair.new.ask("REPLICAOF", "NO", "ONE")
    for server, password in ((pair.old, "one"), (pair.new, "two")):
        server.ask("CONFIG", "SET", "requirepass", password)
    reach = RedisReach(Connection(pair.url, password_file=file), "of the test")
    assert await written(reach)
    with contextlib.closing(pair.old.client(password="one")) as admin:
        admin.replicaof("127.0.0.1", pair.new.port)
    pair.switch()
    assert not await written(reach)
    await eventually(lambda: "refuses this user or password" in caplog.text or written_and_false(reach))
    file.write_text("two")
    await eventually(lambda: written(reach))
    await reach.close()


async def written_and_false(reach: RedisReach) -> bool:
    assert not await written(reach)
    return False


async def test_a_refusal_that_concerns_a_key_keeps_the_connection(pair: Pair) -> None:
    reach = RedisReach(Connection(pair.url, timeout_s=5.0), "of the test")
    await reach.ask(lambda client: client.rpush("list", "v"))
    before = pair.relay.accepted
    for _ in range(5):
        with pytest.raises(RedisFailed):
            await reach.read("GET", "list")
    assert pair.relay.accepted == before
    await reach.close()


async def test_a_lasting_refusal_does_not_open_a_connection_for_each_command(pair: Pair) -> None:
    reach = RedisReach(Connection(pair.url, timeout_s=5.0), "of the test")
    assert await written(reach)
    demote(pair.old)
    for _ in range(200):
        assert not await written(reach)
    assert pair.relay.accepted <= 3
    await reach.close()


async def test_commands_under_way_end_although_their_connections_are_replaced(pair: Pair) -> None:
    reach = RedisReach(Connection(pair.url, timeout_s=5.0), "of the test")

    async def slow(client: redis.asyncio.Redis) -> object:
        return await client.execute_command("DEBUG", "SLEEP", "0")

    await asyncio.gather(*(reach.ask(slow) for _ in range(4)))
    demote(pair.old)
    tasks: list[Awaitable[object]] = [reach.read("GET", "k") for _ in range(10)]
    results = await asyncio.gather(written(reach), *tasks)
    assert results == [False] + [None] * 10
    assert not reach.away
    await reach.close()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (demote, "new connection"),
        (lose_primary, "replica without its primary"),
        (miss_replicas, "new connection"),
        (run_for_ever, "script"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_the_log_names_what_heals_it(
    pair: Pair, caplog: pytest.LogCaptureFixture, spoil: Callable[[RedisServer], None], says: str
) -> None:
    spoil(pair.old)
    reach = RedisReach(Connection(pair.url), "of the test")
    with caplog.at_level(logging.INFO):
        assert not await written(reach)
    assert says in caplog.text
    assert "check LPC_REDIS_URL" not in caplog.text
    await reach.close()
