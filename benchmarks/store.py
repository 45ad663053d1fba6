"""Benchmark `store`: what one finished request of 300 blocks costs in Redis, ours beside three plainer layouts.

A real redis-server is started on loopback. The mixes: *private* requests hold blocks that only their conversation holds;
*shared* ones begin with a system prompt of 100 blocks that all conversations hold. Every request is recorded twice, as
the first and a later turn of its conversation. Each request is one round trip, as in an engine that finishes fewer than
fifty a second; under load a batch holds up to 28 of them, and its commands are divided among them
(``operations_per_request_loaded``).

Times are compared within rounds in which the layouts take turns; medians over the rounds.
"""

import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import redis
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import BenchmarkError
from benchmarks.processes import RedisServer
from eviction_client.stores import BlockHash, ConversationId
from eviction_client.stores.layout import Layout, members
from eviction_client.stores.namespace import Namespace
from eviction_client.stores.redis import RedisStore
from lpc.wire.terminal import console

REQUEST_BLOCKS: Final = 300
SHARED_BLOCKS: Final = 100
SHARDS: Final = 4
NAMESPACE: Final = Namespace("sha256_cbor", "0", 16, "benchmark")
_LAYOUT: Final = Layout(NAMESPACE.digest, SHARDS, "benchmark")

Write = Callable[[redis.Redis, ConversationId, Sequence[BlockHash], float], None]

_OWNER_HASH_SCRIPT: Final = """
local members, owner, score = {}, ARGV[1], tonumber(ARGV[2])
for at = 1, #ARGV[3], 14 do members[#members + 1] = string.sub(ARGV[3], at, at + 13) end
local before = redis.call('ZMSCORE', KEYS[1], unpack(members))
local owners = redis.call('HMGET', KEYS[2], unpack(members))
local scores, owned = {}, {}
for j, member in ipairs(members) do
  local now = score
  if not before[j] then
    owned[#owned + 1] = member; owned[#owned + 1] = owner
  elseif owners[j] ~= owner then
    now = math.max(tonumber(before[j]), score)
    if owners[j] ~= '' then owned[#owned + 1] = member; owned[#owned + 1] = '' end
  end
  scores[#scores + 1] = now; scores[#scores + 1] = member
end
redis.call('ZADD', KEYS[1], unpack(scores))
if #owned > 0 then redis.call('HSET', KEYS[2], unpack(owned)) end
redis.call('PEXPIRE', KEYS[1], 6000000)
redis.call('PEXPIRE', KEYS[2], 6000000)
"""

# The same with a second sorted set, whose scores are digests of owners.
_OWNER_SET_SCRIPT: Final = (
    _OWNER_HASH_SCRIPT.replace("'HMGET'", "'ZMSCORE'")
    .replace("owned[#owned + 1] = member; owned[#owned + 1] = owner", "owned[#owned + 1] = owner; owned[#owned + 1] = member")
    .replace("owned[#owned + 1] = member; owned[#owned + 1] = ''", "owned[#owned + 1] = '0'; owned[#owned + 1] = member")
    .replace("owners[j] ~= ''", "owners[j] ~= '0'")
    .replace("'HSET'", "'ZADD'")
)


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure; print a table; return the keys of issue 2 with those of every layout under ``layouts``.

    Raises:
        BenchmarkError: redis-server is not installed or does not start.
    """
    screen = console()
    requests, rounds = (30, 5) if quick else (100, 15)
    blocks = 200_000 if quick else 1_000_000
    with (
        tempfile.TemporaryDirectory(prefix="lpc-") as folder,
        RedisServer(Path(folder)) as server,
        server.client(socket_timeout=None) as client,
    ):
        store = RedisStore(
            server.url, NAMESPACE, shards=SHARDS, gather_s=0.0, max_pending_blocks=10 * REQUEST_BLOCKS * requests
        )
        try:
            layouts: dict[str, Write] = {
                "owner tag in the score": _through(store),
                "hash of owners": _by_script(_OWNER_HASH_SCRIPT, b"owner-16"),
                "sorted set of owners": _by_script(_OWNER_SET_SCRIPT, b"12345678"),
                "one ZADD per block": _one_command_per_block,
            }
            rows: dict[str, dict[str, float]] = {name: {} for name in layouts}
            for mix in ("private", "shared"):
                times: dict[str, list[float]] = {name: [] for name in layouts}
                for turn in track(range(rounds), description=f"bench store: {mix}", console=screen, transient=True):
                    for name, write in layouts.items():
                        figures = _measure(client, write, mix, requests, seed=turn)
                        times[name].append(figures.pop("us"))
                        rows[name].update({f"{key}_{mix}": value for key, value in figures.items()})
                for name in layouts:
                    rows[name][f"us_per_request_{mix}"] = statistics.median(times[name])
            for name, write in track(layouts.items(), description="bench store: memory", console=screen, transient=True):
                rows[name]["bytes_per_block"] = _memory(client, write, blocks)
            loaded = _loaded(client, store, requests)
            record_us = _record_us(store)
        finally:
            store.close()
    _print(screen, rows)
    screen.print(
        f"under load (28 requests a batch): {loaded:.2f} commands per request; "
        f"the scheduler's own part of a request: {record_us:.1f} µs"
    )
    ours = rows["owner tag in the score"]
    return {
        "operations_per_request": ours["operations_private"],
        "operations_per_request_loaded": loaded,
        "bytes_per_request": ours["bytes_private"],
        "bytes_per_block": ours["bytes_per_block"],
        "memory_per_million_blocks_mib": ours["bytes_per_block"] * 1e6 / 2**20,
        "record_us": record_us,
        "layouts": rows,
    }


def _print(screen: Console, rows: dict[str, dict[str, float]]) -> None:
    table = Table(title=f"one finished request of {REQUEST_BLOCKS} blocks in Redis ({SHARDS} shards), private / shared mix")
    for column in ("layout", "commands sent", "bytes", "µs, round trip included", "MiB per million blocks"):
        table.add_column(column, justify="left" if column == "layout" else "right")
    for name, row in rows.items():
        pairs = (
            f"{row[f'{key}_private']:,.0f} / {row[f'{key}_shared']:,.0f}" for key in ("operations", "bytes", "us_per_request")
        )
        table.add_row(name, *pairs, f"{row['bytes_per_block'] * 1e6 / 2**20:.0f}")
    screen.print(table)


def _through(store: RedisStore) -> Write:
    def write(_: redis.Redis, conversation: ConversationId, blocks: Sequence[BlockHash], score: float) -> None:
        store.record(conversation, blocks, score)
        if not store.flush(30):
            raise BenchmarkError("redis-server stopped answering during the benchmark")

    return write


def _by_script(script: str, owner: bytes) -> Write:
    sha: list[str] = []

    def write(client: redis.Redis, conversation: ConversationId, blocks: Sequence[BlockHash], score: float) -> None:
        if not sha:
            sha.append(str(client.script_load(script)))
        tag = int.from_bytes(hashlib.blake2b(conversation.encode(), digest_size=4).digest(), "big")
        # As many bytes as the layout would keep.
        name = tag.to_bytes(8, "big") if owner.startswith(b"owner") else str(tag).encode()
        names = members(blocks)
        pipeline: Any = client.pipeline(transaction=False)
        for shard, indices in enumerate(_LAYOUT.by_shard(blocks)):
            if indices:
                key = _LAYOUT.scores_key(shard)
                pipeline.execute_command(
                    "EVALSHA", sha[0], 2, key, f"{key}:owners", name, score, b"".join([names[i] for i in indices])
                )
        pipeline.execute()

    return write


def _one_command_per_block(client: redis.Redis, _: ConversationId, blocks: Sequence[BlockHash], score: float) -> None:
    """Write each block by a ZADD of its own, whole hash, no owner; in one pipeline, or round trips would be all one sees."""
    pipeline: Any = client.pipeline(transaction=False)
    for block in blocks:
        pipeline.execute_command("ZADD", "scores", score, block)
    pipeline.execute()


def _request(number: int, mix: str) -> list[BlockHash]:
    shared = SHARED_BLOCKS if mix == "shared" else 0
    names = [f"system/{i}" for i in range(shared)] + [f"{number}/{i}" for i in range(REQUEST_BLOCKS - shared)]
    return [BlockHash(hashlib.sha256(name.encode()).digest()) for name in names]


def _measure(client: redis.Redis, write: Write, mix: str, requests: int, *, seed: int) -> dict[str, float]:
    """Record ``requests`` conversations of two turns each; return commands, bytes and microseconds per request."""
    client.flushall()
    work = [(ConversationId(f"c{n}"), _request(n, mix)) for n in range(requests)]
    now = 1.79e9 + seed
    for conversation, blocks in work[:2]:
        # Connections and scripts are there before the clock runs.
        write(client, conversation, blocks, now)
    client.config_resetstat()
    before = client.info("stats")
    started = time.perf_counter()
    for turn in range(2):
        for n, (conversation, blocks) in enumerate(work):
            write(client, conversation, blocks, now + 60 * turn + 50 * (n % 7 - 3))
    elapsed = time.perf_counter() - started
    after, commands = client.info("stats"), _commands(client)
    sent = sum(after[key] - before[key] for key in ("total_net_input_bytes", "total_net_output_bytes"))
    # The answer to the first INFO is in ``sent``: some 6 kB over all requests.
    return {"us": elapsed / (2 * requests) * 1e6, "operations": commands / (2 * requests), "bytes": sent / (2 * requests)}


def _commands(client: redis.Redis) -> int:
    """Return how many commands wrote scores since the statistics were reset; a script counts as one."""
    calls = {name: int(figures["calls"]) for name, figures in client.info("commandstats").items()}
    return calls.get("cmdstat_evalsha", 0) + calls.get("cmdstat_eval", 0) or calls.get("cmdstat_zadd", 0)


def _memory(client: redis.Redis, write: Write, blocks: int) -> float:
    """Fill an empty server with private blocks; return bytes of its memory per block."""
    client.flushall()
    before = int(client.info("memory")["used_memory"])
    requests = blocks // REQUEST_BLOCKS
    for n in range(requests):
        write(client, ConversationId(f"m{n}"), _request(n, "private"), 1.79e9 + n)
    return (int(client.info("memory")["used_memory"]) - before) / (requests * REQUEST_BLOCKS)


def _loaded(client: redis.Redis, store: RedisStore, requests: int) -> float:
    """Return commands per request when requests end faster than batches are written."""
    client.flushall()
    client.config_resetstat()
    work = [(ConversationId(f"c{n}"), _request(n, "private")) for n in range(10 * requests)]
    for conversation, blocks in work:
        store.record(conversation, blocks, 1.79e9)
    store.flush(60)
    return _commands(client) / len(work)


def _record_us(store: RedisStore) -> float:
    """Return the microseconds of the calling thread's own processor time that recording a request takes."""
    blocks = _request(0, "private")
    samples = []
    for _ in range(200):
        started = time.thread_time()
        store.record(ConversationId("c"), blocks, 1.0)
        samples.append(time.thread_time() - started)
    store.flush(30)
    return statistics.median(samples) * 1e6
