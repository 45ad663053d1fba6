"""Layout of the shared claims in Redis: keys, members, scores, and the two scripts that change them.

Each shard is one sorted set, ``lpc:{<namespace>:<shard>/<shards>}:claims``. The braces are a Redis Cluster hash tag.

Members are 14 bytes of the block hash: with its header a member then fills a 16-byte allocation (15 bytes would take 32).

The score is the whole claim: 54 bits, which a double holds exactly as a signed whole number. From the highest:

    bits    what
      30    end of the turn, seconds from :data:`EPOCH`, signed: 2021 to 2055
       8    log-odds in steps of 1/16 from -8
       1    whether a sidecar predicted them
       3    the turn, at most 7
       2    conversations that hold the block, less one: 4 or more
      10    tag of the conversation, a keyed digest

So the order of scores is that of times, and trimming is one command that leaves nothing behind. Two conversations that hold
the same block share a tag with a probability of 1/1024; then a turn of one replaces the claim of the other, until its next
turn. Redis 7.0, 200,000 blocks, requests of 300 blocks, 4 shards, one request per round trip (requests that end within a second
share their commands):

    layout                                     bytes per block    commands per request
    the claim in the score (this one)                      112                       4
    sorted set and hash of claims, one script              186                       4
    sorted set and second sorted set                       224                       4
    one ZADD per block, 32-byte members                    144                     300

The block hash chooses the shard. By the root of the prefix chain a request would touch one shard, but all conversations with
one system prompt would share that shard.

ZADD GT does not suffice: which claim is higher depends on time and log-odds, and a conversation's own may fall. The script
compares them as :func:`eviction_client.stores.base.pooled` does; Redis runs it atomically, so no update is lost.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from eviction_client.block_hash import BlockHash
from eviction_client.stores.base import Turned
from eviction_client.stores.claims import (
    AHEAD_S,
    LOG_ODDS_STEP,
    MOST_HOLDERS,
    MOST_LOG_ODDS,
    MOST_TURNS,
    REMEMBERED_S,
    STEPS,
    TAGS,
    SharedClaim,
)

MEMBER_BYTES: Final = 14
EPOCH: Final = 2**31
"""Time in the middle of those that a score can have, seconds since the Unix epoch: in January 2038."""
TIMES: Final = 2**30
_TURN, _HOLDERS, _PREDICTED, _STEP, _TIME = (2**bits for bits in (12, 10, 15, 16, 24))

LIVES_S: Final = 2 * REMEMBERED_S
"""Keys in Redis expire this long after the last write. By then every claim is trimmed."""

RECORD_SCRIPT: Final = """
local floor, abs, max, sub, format = math.floor, math.abs, math.max, string.sub, string.format
local width, gap = tonumber(ARGV[2]), tonumber(ARGV[3])
local clock, step = redis.call('TIME')[1] - 2147483648 + ARGV[4], width * 1000
for run = 5, #ARGV, 3 do
  local own, text, blob = tonumber(ARGV[run]), ARGV[run + 1], ARGV[run + 2]
  local value = tonumber(text)
  local tag, new_tag = own % 1024, value % 1024
  local own_at, new_at, new_holders = floor(own / 1024), floor(value / 16777216), floor(value / 1024) % 4
  local new_order = new_at + gap * (floor((value - new_at * 16777216) / 65536) / 16 - 8)
  local most = max(clock, own_at + ARGV[4])
  for from = 1, #blob, step do
    local members = {}
    for at = from, math.min(from + step - 1, #blob), width do
      members[#members + 1] = sub(blob, at, at + width - 1)
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
      local stored, now, named = before[j] and tonumber(before[j]), value, text
      if stored and stored % 1 == 0 and abs(stored) <= 9007199254740992 then
        local at = floor(stored / 16777216)
        if at <= most then
          local holder, holders = stored % 1024, floor(stored / 1024) % 4
          if holder == tag then
            if own_at < at then now = stored end
          else
            if holder == new_tag then
              if new_at < at then now = stored end
            elseif new_order < at + gap * (floor((stored - at * 16777216) / 65536) / 16 - 8) then
              now = stored
            end
            holders = max(holders, 1)
          end
          local is = now == value and new_holders or floor(now / 1024) % 4
          local counted = max(holders, new_holders)
          if counted > is or now ~= value then
            now = now + (counted - is) * 1024
            named = nil
          end
        end
      end
      if now ~= stored then
        changed[#changed + 1] = named or format('%.0f', now)
        changed[#changed + 1] = member
      end
    end
    if #changed > 0 then redis.call('ZADD', KEYS[1], unpack(changed)) end
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""
"""Key: the sorted set. Arguments: milliseconds to live, bytes per member, mean gap between turns, AHEAD_S; then for each run of
blocks the turn (its end and the conversation's tag), the highest claim as a score, and the members (concatenated).
It handles 1,000 members at a time: Lua's stack limits `unpack`.

Any engine may write these keys. A claim that no engine would have written is replaced. A key of another type is removed: SET
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


def _time(at: float) -> int:
    """Return a time as in a score, within its limits."""
    return math.floor(min(max(at - EPOCH, -TIMES // 2), TIMES // 2 - 1))


def oldest(at: float) -> int:
    """Return the lowest score of claims at a time, seconds since the epoch."""
    return _time(at) * _TIME


def score(claim: SharedClaim) -> int:
    """Return the score of a claim as of :func:`eviction_client.stores.claims.shared_claim`."""
    step = round((claim.log_odds + MOST_LOG_ODDS) / LOG_ODDS_STEP)
    low = step * _STEP + claim.predicted * _PREDICTED + claim.turn * _TURN + (claim.holders - 1) * _HOLDERS
    return _time(claim.at) * _TIME + low + claim.conversation


def turn(turned: Turned) -> int:
    """Return end and conversation of a turn as the script reads them."""
    return _time(turned.at) * TAGS + turned.conversation


def claim_of(stored: float, now: float) -> SharedClaim | None:
    """Return the claim of a score; None: no engine would have written it until ``now``, seconds since the epoch."""
    if not abs(stored) <= 2**53 or stored % 1:  # the first is also true for NaN
        return None
    whole = int(stored)
    at, low = divmod(whole, _TIME)
    if EPOCH + at > now + AHEAD_S:
        return None
    return SharedClaim(
        low % TAGS,
        low // _STEP % STEPS * LOG_ODDS_STEP - MOST_LOG_ODDS,
        float(EPOCH + at),
        max(low // _TURN % (MOST_TURNS + 1), 1),
        bool(low // _PREDICTED % 2),
        low // _HOLDERS % MOST_HOLDERS + 1,
    )


@dataclass(frozen=True, slots=True)
class Layout:
    """Keys of one namespace. ``namespace``: its digest, hexadecimal."""

    namespace: str
    shards: int

    def key(self, shard: int) -> str:
        """Return the key of a shard's sorted set."""
        return f"lpc:{{{self.namespace}:{shard}/{self.shards}}}:claims"

    def by_shard(self, blocks: Sequence[BlockHash]) -> list[list[int]]:
        """Return the indices of each shard's blocks, in order."""
        shards: list[list[int]] = [[] for _ in range(self.shards)]
        for i, block in enumerate(blocks):
            shards[int.from_bytes(block[:4], "big") % self.shards].append(i)
        return shards


def member(block: BlockHash) -> bytes:
    """Return a block's member in the sorted set: ten bytes from the start and four from the end of its hash.

    vLLM appends the number of the KV-cache group to the hash. Shorter hashes are padded with zero bytes.
    """
    return block[:10] + block[-4:] if len(block) > MEMBER_BYTES else block.ljust(MEMBER_BYTES, b"\0")


def members(blocks: Iterable[BlockHash]) -> list[bytes]:
    """Return the members of blocks, in order."""
    return [member(block) for block in blocks]
