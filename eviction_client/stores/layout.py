"""Layout of the retain-until times in Redis: keys, members, tags of engines, and the two scripts that change them.

Each shard is one sorted set, ``lpc:{<namespace>:<shard>/<shards>}:retain_until``. The braces are a Redis Cluster hash tag.

Members are 14 bytes of the block hash: with its header a member then fills a 16-byte allocation (15 bytes would take 32).

The engine that holds a block longest decides whether a time is replaced. It is stored *in the time*: the lowest 16 of a
double's 53 bits are a tag of the engine, a keyed digest in [1, 65535]; 0 is of a release that pooled by conversation. The other
bits are the time in units of 1/32 s (:data:`UNIT`). Two engines share a tag with a probability of 1/65535; then each takes the
other's times for its own. With one set instead of two, trimming is one command that leaves nothing behind, and memory is
lowest. Redis 7.0, 200,000 blocks, requests of 300 blocks, 4 shards, one request per round trip (the first three take about the
same time; requests that end within a second now share their commands):

    layout                                     bytes per block    commands per request
    tag in the time (this one)                             112                       4
    sorted set and hash of owners, one script              186                       4
    sorted set and second sorted set of owners             224                       4
    one ZADD per block, 32-byte members                    144                     300

The block hash chooses the shard. By the root of the prefix chain a request would touch one shard, but all conversations with
one system prompt would share that shard.

ZADD GT does not suffice: the holder's own time may fall. The script compares times and tags; Redis runs it atomically, so no
update is lost.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from eviction_client.block_hash import BlockHash
from eviction_client.stores.base import EngineId
from eviction_client.stores.retain_until import REMEMBERED_S
from lpc.model.curve import HORIZON_S

MEMBER_BYTES: Final = 14
TAGS: Final = 2**16
LIMIT: Final = 2.0**32
"""Bound of the absolute value of times: seconds since the epoch until the year 2106."""
UNIT: Final = LIMIT * TAGS / 2.0**53
"""Resolution of a time in Redis, seconds: 1/32, as the tag takes 16 of 53 bits."""

LIVES_S: Final = 2 * HORIZON_S + REMEMBERED_S
"""Keys in Redis expire this long after the last write. By then even the latest time is trimmed, with a hint of HORIZON_S."""

MOST_AHEAD_S: Final = 3 * HORIZON_S
"""A stored time that is later than the clock of Redis, and than the new time, by more than this is from no engine."""

RECORD_SCRIPT: Final = """
local unit, width = tonumber(ARGV[2]), tonumber(ARGV[3])
local clock, step = redis.call('TIME')[1] + ARGV[4], width * 1000
for run = 5, #ARGV, 2 do
  local value, blob = tonumber(ARGV[run]), ARGV[run + 1]
  local new = math.floor(value / unit) * unit
  local engine, most = value - new, math.max(clock, new + ARGV[4])
  for from = 1, #blob, step do
    local members = {}
    for at = from, math.min(from + step - 1, #blob), width do
      members[#members + 1] = string.sub(blob, at, at + width - 1)
    end
    local before = redis.pcall('ZMSCORE', KEYS[1], unpack(members))
    if before.err and string.find(before.err, 'WRONGTYPE', 1, true) then
      redis.call('SET', KEYS[1], '', 'PX', 1)
      return 0
    elseif before.err then
      error(before.err)
    end
    local changed = {}
    for j, member in ipairs(members) do
      local stored, now = before[j] and tonumber(before[j]), value
      local known = stored and math.floor(stored / unit) * unit
      if stored and known <= most and known > new and stored - known ~= engine then now = stored end
      if now ~= stored then
        changed[#changed + 1] = ARGV[run]
        changed[#changed + 1] = member
      end
    end
    if #changed > 0 then redis.call('ZADD', KEYS[1], unpack(changed)) end
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""
"""Key: the sorted set. Arguments: milliseconds to live, unit of the time, bytes per member, MOST_AHEAD_S; then for each run of
blocks their time (a multiple of the unit) plus the engine's tag (a fraction of it), and their members (concatenated).
It handles 1,000 members at a time: Lua's stack limits `unpack`.

Any engine may write these keys. A time that no engine would have written is replaced. A key of another type is removed: SET
may replace any type, and the value expires at once. The block's next turn is recorded again."""

TRIM_SCRIPT: Final = """
local below = redis.pcall('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[1])
if type(below) == 'table' and string.find(below.err, 'WRONGTYPE', 1, true) then return 0 end
if type(below) == 'table' then error(below.err) end
local sunk = math.min(below, tonumber(ARGV[2]))
if sunk > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, sunk - 1) end
return sunk
"""
"""Key: the sorted set. Arguments: threshold, most members to remove. Returns how many were removed; a key of another type is
left to RECORD_SCRIPT."""


def floor(until: float) -> float:
    """Return the stored value of a finite time: rounded down to a multiple of the unit, and within the limit.

    If times were rounded up, a block's own time would raise it.
    """
    return math.floor(min(max(until, -LIMIT), LIMIT - UNIT) / UNIT) * UNIT


def tag(number: int) -> float:
    """Return the tag of a number in [0, TAGS) as stored: a fraction of the unit."""
    return number * (UNIT / TAGS)


@dataclass(frozen=True, slots=True)
class Layout:
    """Keys and tags of one namespace. ``namespace``: its digest, hexadecimal."""

    namespace: str
    shards: int

    def key(self, shard: int) -> str:
        """Return the key of a shard's sorted set."""
        return f"lpc:{{{self.namespace}:{shard}/{self.shards}}}:retain_until"

    def by_shard(self, blocks: Sequence[BlockHash]) -> list[list[int]]:
        """Return the indices of each shard's blocks, in order."""
        shards: list[list[int]] = [[] for _ in range(self.shards)]
        for i, block in enumerate(blocks):
            shards[int.from_bytes(block[:4], "big") % self.shards].append(i)
        return shards

    def tag_of(self, engine: EngineId) -> float:
        """Return the tag of an engine as stored: a digest keyed by the namespace."""
        digest = hashlib.blake2b(engine.encode(errors="replace"), key=self.namespace.encode(), digest_size=8)
        return tag(1 + int.from_bytes(digest.digest(), "big") % (TAGS - 1))


def member(block: BlockHash) -> bytes:
    """Return a block's member in the sorted set: ten bytes from the start and four from the end of its hash.

    vLLM appends the number of the KV-cache group to the hash. Shorter hashes are padded with zero bytes.
    """
    return block[:10] + block[-4:] if len(block) > MEMBER_BYTES else block.ljust(MEMBER_BYTES, b"\0")


def members(blocks: Iterable[BlockHash]) -> list[bytes]:
    """Return the members of blocks, in order."""
    return [member(block) for block in blocks]
