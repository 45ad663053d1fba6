"""Entries in Redis: find, store, delete and invalidate. All methods raise RedisFailed.

Each scope has a generation; an entry of another generation is not found. In Redis it is `number:MAC`, the MAC under the
operator's key and over its Redis key. Numbers only grow: they are microseconds since the epoch, or the previous number plus
one. A program that writes to this Redis can neither create a generation nor copy one from another key. A value with a wrong
MAC, or with a smaller number than this process has seen at the key, counts as forged and is treated as absent: the scope
begins a new generation, so that no earlier entry is found.

Such a program can still delete entries and generations, which makes answers unfindable. It can also make an invalidated
answer findable again by restoring an earlier generation and record. This works only within the life of the answer, and only
for processes that have not seen the newer number.
"""

import hmac
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

from lpc.wire.redis_reach import RedisReach, RedisRefused
from response_cache.keys.canonical import CLIENT, REMEMBERED, EntryId, Namer, Names, Scope, owner_of
from response_cache.keys.sealing import Keyring, Unsealable
from response_cache.store import layout
from response_cache.store.entry import Entry
from response_cache.store.scopes import ScopeSettings

ERASING_S: Final = 60.0
"""Timeout of background calls."""
DIGITS: Final = 19
"""Most digits of a generation's number, which fits into 8 bytes."""
MIB: Final = 2**20
TRIES: Final = 10
"""Attempts to replace a generation while others do the same."""
ERASED_AT_ONCE: Final = 200
ADMIN_S: Final = 2.0
"""Timeout of administrative calls, such as invalidation."""

MOST_BYTES: Final = 32 * MIB
_VALUES: Final = """
local found = {}
for i, key in ipairs(KEYS) do
  local size = redis.pcall('STRLEN', key)
  found[i] = type(size) == 'number' and size <= ARGV[1] + 0 and redis.call('GET', key)
end
return found
"""
"""Reads values; false for one that is absent, too large or of another type."""

_UNNAME: Final = """
local function unname(names, id)
  local name = redis.pcall('HGET', names, id)
  if type(name) ~= 'string' then return end
  redis.call('HDEL', names, id)
  if redis.call('HGET', names, name) == id then redis.call('HDEL', names, name) end
end
"""
"""Part of a script: removes an entry's normal form, of whatever type its key is."""

_PUT: Final = f"""{layout.READ}
local e, z, x, v, f, b, tz, tb, g, n, oz, ob, os = unpack(KEYS)
local id, record, px, now, ends, most, vector, prefix, flight, room, own_most, own_room, generation, normal, part = unpack(ARGV)
local stale = read('GET', g) ~= generation
local before, members, own = read('STRLEN', e), read('ZCARD', z), read('ZCARD', tz)
read('GET', b)
read('GET', tb)
read('HLEN', v)
read('HLEN', n)
read('XLEN', x)
local all = oz and read('ZCARD', oz)
if oz then
  read('GET', ob)
  read('ZCARD', os)
end
if not stale then redis.call('SET', e, record, 'PX', px) end
if flight ~= '' and read('GET', f) == flight then redis.call('DEL', f) end
if stale then return {{0, 0, 0, 0, 0}} end
local function lives(key) if redis.call('PTTL', key) < px + 0 then redis.call('PEXPIRE', key, px) end end
local function sized(bytes) return bytes and string.match(bytes, '^%d+$') and #bytes < 16 end
local function note(field, one)
  local added = redis.pcall('XADD', x, 'MAXLEN', '~', 10000, '*', field, one)
  if type(added) == 'table' then
    redis.call('DEL', x)
    redis.call('XADD', x, '*', field, one)
  end
end
{_UNNAME}
local function gone(members, kept)
  for _, member in ipairs(members) do
    local one, bytes = string.match(member, '^([^:]*):?(%d*)$')
    if sized(bytes) then redis.call('DECRBY', b, bytes) end
    if one and kept then redis.call('DEL', prefix .. 'e:' .. one) end
    if one and (kept or redis.call('EXISTS', prefix .. 'e:' .. one) == 0) then
      if redis.call('HDEL', v, one) == 1 and kept then note('d', one) end
      unname(n, one)
    end
  end
end
local function due(key)
  local last = redis.call('ZREVRANGE', key, 0, 0)[1]
  if not last then return nil end
  local one, bytes = string.match(last, '^([^:]*):(%d+)$')
  if one and redis.pcall('STRLEN', prefix .. 'e:' .. one) == tonumber(bytes) then
    return redis.call('ZRANGE', key, 0, 0)[1], true
  end
  return last, false
end
local function drop(list, total, member, bytes)
  local there = redis.call('ZREM', list, member) == 1
  local before = redis.pcall('GET', total)
  if there and sized(bytes) and type(before) == 'string' and sized(before) then redis.call('DECRBY', total, bytes) end
  return there
end
local function share(bytes) return 1 / own_most + bytes / own_room end
local function of_owner(member, one)
  local bytes = string.match(member, ':(%d+)$')
  if not oz or not drop(oz, ob, member .. ':' .. one, bytes) or not sized(bytes) then return end
  if redis.call('ZINCRBY', os, -share(bytes), one) + 0 < share(1) / 2 then redis.call('ZREM', os, one) end
end
local function not_own(member)
  drop(tz, tb, member, string.match(member, ':(%d+)$'))
  of_owner(member, part)
end
if members == 0 or not sized(redis.call('GET', b)) then redis.call('DEL', b) end
if own == 0 or not sized(redis.call('GET', tb)) then redis.call('DEL', tb) end
if redis.call('ZREM', z, id .. ':' .. before) == 1 then redis.call('DECRBY', b, before) end
not_own(id .. ':' .. before)
redis.call('ZADD', z, ends, id .. ':' .. #record)
redis.call('INCRBY', b, #record)
redis.call('ZADD', tz, ends, id .. ':' .. #record)
redis.call('INCRBY', tb, #record)
for _, key in ipairs({{z, b, tz, tb}}) do lives(key) end
if oz then
  if all == 0 or not sized(redis.call('GET', ob)) then redis.call('DEL', ob) end
  if redis.call('ZADD', oz, ends, id .. ':' .. #record .. ':' .. part) == 1 then
    redis.call('INCRBY', ob, #record)
    redis.call('ZINCRBY', os, share(#record), part)
  end
  for _, key in ipairs({{oz, ob, os}}) do lives(key) end
end
if vector ~= '' then
  redis.call('HSET', v, id, vector)
  lives(v)
  note('a', id)
  lives(x)
end
if normal ~= '' then
  redis.call('HSET', n, normal, id, id, normal)
  lives(n)
end
local ended = redis.call('ZRANGEBYSCORE', z, '-inf', '(' .. now, 'LIMIT', 0, 100)
for _, one in ipairs(ended) do redis.call('ZREM', z, one) end
gone(ended, false)
for _, one in ipairs(redis.call('ZRANGEBYSCORE', tz, '-inf', '(' .. now, 'LIMIT', 0, 100)) do not_own(one) end
if oz then
  for _, one in ipairs(redis.call('ZRANGEBYSCORE', oz, '-inf', '(' .. now, 'LIMIT', 0, 100)) do
    local member, of = string.match(one, '^([^:]*:%d+):([^:]+)$')
    if member then of_owner(member, of) else redis.call('ZREM', oz, one) end
  end
end
local evicted = {{0, 0, 0, 0}}
for _ = 1, 100 do
  local bound = redis.call('ZCARD', tz) > own_most + 0 and 3 or redis.call('GET', tb) + 0 > own_room + 0 and 4
  if not bound then break end
  local member, there = due(tz)
  if not member then break end
  not_own(member)
  if redis.call('ZREM', z, member) == 1 then
    gone({{member}}, there)
    if there then evicted[bound] = evicted[bound] + 1 end
  end
end
for _ = 1, oz and 100 or 0 do
  local bound = redis.call('ZCARD', oz) > own_most + 0 and 3 or redis.call('GET', ob) + 0 > own_room + 0 and 4
  if not bound then break end
  local largest = redis.call('ZREVRANGE', os, 0, 0)[1]
  local list = prefix .. 'z:' .. (largest or '')
  local member, there
  if redis.call('TYPE', list).ok == 'zset' then member, there = due(list) end
  if member then
    drop(list, prefix .. 'b:' .. largest, member, string.match(member, ':(%d+)$'))
    of_owner(member, largest)
    if redis.call('ZREM', z, member) == 1 then
      gone({{member}}, there)
      if there then evicted[bound] = evicted[bound] + 1 end
    end
  elseif largest then
    redis.call('ZREM', os, largest)
  else
    redis.call('DEL', oz, ob)
    break
  end
end
for _ = 1, 100 do
  local bound = redis.call('ZCARD', z) > most + 0 and 1 or redis.call('GET', b) + 0 > room + 0 and 2
  if not bound then break end
  local member, there = due(z)
  if not member then break end
  redis.call('ZREM', z, member)
  gone({{member}}, there)
  if there then evicted[bound] = evicted[bound] + 1 end
end
return {{1, evicted[1], evicted[2], evicted[3], evicted[4]}}
"""
"""Stores an entry unless its generation is outdated, ends its flight, and enforces the limits of scope and tenant. Expired
entries are removed first, then those that expire first; a tenant over its own limits loses its own entries. The parts of a
client have these limits together; above them, the part with most entries and bytes loses its own. A deleted entry counts for
its tenant until it would have expired or is the next to be evicted.

The first write is one that a full Redis refuses; after any other, Redis would let the script exceed `maxmemory`. So the script
reads every key before. What no sidecar would have written does not stop it: a key of another type, a stream whose ids are
exhausted, and a count that is not one are begun again. A member without an entry of its size is dropped when it expires, or
before any entry is evicted if its score is the highest."""

_NORMAL: Final = """
local id = redis.pcall('HGET', KEYS[1], ARGV[1])
if type(id) ~= 'string' or #id > 64 then return {} end
local size = redis.pcall('STRLEN', ARGV[2] .. 'e:' .. id)
if type(size) ~= 'number' or size > ARGV[3] + 0 then return {} end
return {id, redis.call('GET', ARGV[2] .. 'e:' .. id), redis.call('EXISTS', ARGV[2] .. 'q:' .. ARGV[4])}
"""
"""Reads the entry of a normal form, and whether the question has had a hit of another one."""

_REGISTER: Final = f"""{layout.READ}
local listed = read('HEXISTS', KEYS[1], ARGV[1]) == 1
if not listed and redis.call('HLEN', KEYS[1]) >= ARGV[3] + 0 then return 0 end
local done = redis.pcall('HSET', KEYS[1], ARGV[1], ARGV[2])
if not listed and type(done) == 'table' then return done end
redis.call('EXPIRE', KEYS[1], ARGV[4])
return 1
"""
"""Lists a scope, encrypted under the newest key. If a full Redis refuses the write, a scope that is listed stays listed."""

_DROP: Final = f"""{_UNNAME}
local bytes = redis.call('STRLEN', KEYS[1])
local there = redis.call('DEL', KEYS[1])
if redis.call('ZREM', KEYS[2], ARGV[1] .. ':' .. bytes) == 1 then redis.call('DECRBY', KEYS[5], bytes) end
redis.call('HDEL', KEYS[4], ARGV[1])
unname(KEYS[6], ARGV[1])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, '*', 'd', ARGV[1])
redis.call('PEXPIRE', KEYS[3], ARGV[2])
return there
"""


_REPLACE: Final = f"""{layout.READ}
if read('STRLEN', KEYS[1]) > 1024 then redis.call('DEL', KEYS[1]) end
local found = redis.call('GET', KEYS[1])
if (found or '') ~= ARGV[1] then return found end
if KEYS[2] then redis.call('SET', KEYS[2], 1, 'EX', ARGV[4]) end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return ARGV[2]
"""


class Put(NamedTuple):
    """Result of storing one entry.

    Attributes:
        stored: False if there was an invalidation since the lookup.
        by_entries, by_bytes: evictions by the scope's limits on entries and on bytes.
        by_own_entries, by_own_bytes: evictions by the tenant's limits.
    """

    stored: bool
    by_entries: int = 0
    by_bytes: int = 0
    by_own_entries: int = 0
    by_own_bytes: int = 0


class Store:
    """The entries of all scopes in one Redis.

    Args:
        redis: the response caches' Redis.
        namer: computes names under the operator's key.
        encoder: returns the id of the current encoder.
        forged: called for each forged generation.
        most_bytes: largest record that is read. Redis allows 512 MiB, which would exceed the time-out and so end all look-ups.
    """

    def __init__(
        self,
        redis: RedisReach,
        namer: Namer,
        encoder: Callable[[], str] = str,
        forged: Callable[[], object] = lambda: None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.redis = redis
        self._most_bytes = most_bytes
        self.namer = namer
        self._encoder = encoder
        self._forged = forged
        self._seen: dict[str, tuple[bytes, int]] = {}

    async def find(self, names: Names) -> tuple[int, bytes | None]:
        """Return the current generation of a request's scope, and the record of the exact request, by one script."""
        key = layout.key(names.scope, "g")
        value, record = await self._values(key, layout.key(names.scope, "e", layout.text(names.exact)))
        number = self._number(key, value)
        if number is None:
            number = self._next(key)
            number = self._number(key, await self._replace(key, value, number)) or number
        return number, record

    async def candidates(
        self, scope: Scope, names: Sequence[EntryId], question: EntryId
    ) -> tuple[Sequence[bytes | None], bool]:
        """Return the records of entries, and whether ``question`` has had a semantic hit before."""
        if not names:
            return [], False
        keys = [layout.key(scope, "e", layout.text(name)) for name in names]
        *records, served = await self._values(*keys, layout.key(scope, "q", layout.text(question)))
        return records, served is not None

    async def alike(self, names: Names) -> tuple[EntryId, bytes, bool] | None:
        """Return id and record of the latest other entry with a request's normal form, and whether the question has had a hit
        of another one before; None without such an entry.
        """
        if names.normal is None:
            return None
        arguments = (layout.text(names.normal), layout.key(names.scope, ""), str(self._most_bytes), layout.text(names.exact))
        found = await self.redis.read("EVAL", _NORMAL, "1", layout.key(names.scope, "n"), *arguments)
        if not found or found[1] is None:
            return None
        return next(((entry, found[1], bool(found[2])) for entry in layout.entries(found[:1]) if entry != names.exact), None)

    async def get(self, scope: Scope, entry: EntryId) -> bytes | None:
        """Return an entry's record."""
        key = layout.key(scope, "e", layout.text(entry))
        return (await self._values(key))[0]

    async def _values(self, *keys: str) -> Sequence[bytes | None]:
        found = await self.redis.read("EVAL", _VALUES, str(len(keys)), *keys, str(self._most_bytes))
        return cast("Sequence[bytes | None]", found)

    async def put(
        self, names: Names, entry: Entry, record: bytes, settings: ScopeSettings, *, vector: bytes, flight: bytes
    ) -> Put:
        """Store an entry's record until it expires and end its flight, unless its generation is outdated.

        Raises:
            RedisFailed: the record may have been stored or not.
        """
        scope, name = names.scope, layout.text(names.exact)
        part, generation = layout.text(self.namer.tenant(scope, entry.tenant)), layout.key(scope, "g")
        keys = [
            *(layout.key(scope, "e", name), layout.key(scope, "z"), layout.key(scope, "x")),
            *(layout.key(scope, "v", self._encoder()), layout.key(scope, "f", name), layout.key(scope, "b")),
            *(layout.key(scope, kind, part) for kind in "zb"),
            *(generation, layout.key(scope, "n")),
        ]
        if entry.tenant.startswith(CLIENT):
            owner = layout.text(self.namer.tenant(scope, owner_of(entry.tenant)))
            keys += [layout.key(scope, kind, owner) for kind in ("oz", "ob", "os")]
        life_ms = max(1, int((entry.expires_at - entry.stored_at) * 1000))
        arguments: list[Any] = [name, record, life_ms, entry.stored_at, entry.expires_at, settings.max_entries, vector]
        arguments += [layout.key(scope, ""), flight, settings.max_mib * MIB, settings.tenant_entries, settings.tenant_mib * MIB]
        normal = "" if names.normal is None or settings.mode_of("normalised") == "off" else layout.text(names.normal)
        arguments += [self._marked(generation, entry.generation), normal, part]
        stored = await self.redis.run(_PUT, keys, *arguments)
        return Put(bool(stored[0]), *stored[1:])

    async def drop(self, scope: Scope, entry: EntryId) -> bool:
        """Delete one entry; return whether there was one."""
        keys, arguments = self._drop(scope, entry)
        return bool(await self.redis.run(_DROP, keys, *arguments, timeout_s=ADMIN_S))

    async def erase(self, scope: Scope) -> int:
        """Delete the entries of a scope and their vectors; return how many entries were deleted.

        The cost depends on the size of the scope and not on that of Redis. Names, evidence and counts remain until they
        expire. They are numbers and hashes.
        """
        members = await self.redis.ask(lambda client: client.zrange(layout.key(scope, "z"), 0, -1), ERASING_S)
        names = layout.entries(member.partition(b":")[0] for member in members)

        def erase(pipe: Any, batch: Sequence[EntryId]) -> None:
            for name in batch:
                keys, arguments = self._drop(scope, name)
                pipe.eval(_DROP, len(keys), *keys, *arguments)
                pipe.execute_command("UNLINK", keys[0])  # the script cannot drop a key of another type

        erased = 0
        for start in range(0, len(names), ERASED_AT_ONCE):
            done = await self.redis.ask_each(partial(erase, batch=names[start : start + ERASED_AT_ONCE]), ERASING_S)
            erased += sum(one for one in done if isinstance(one, int))
        return erased

    def _drop(self, scope: Scope, entry: EntryId) -> tuple[Sequence[str], Sequence[Any]]:
        name = layout.text(entry)
        keys = (
            *(layout.key(scope, "e", name), layout.key(scope, "z"), layout.key(scope, "x")),
            *(layout.key(scope, "v", self._encoder()), layout.key(scope, "b"), layout.key(scope, "n")),
        )
        return keys, (name, layout.EVIDENCE_S * 1000)

    async def invalidate(self, scope: Scope) -> None:
        """Make the stored answers of a scope unfindable."""
        key, invalidated = layout.key(scope, "g"), layout.key(scope, "i")
        for _ in range(TRIES):
            found = await self.redis.ask(lambda client: client.get(key), ADMIN_S)
            if found is None and key not in self._seen:
                # Nothing was stored here. An engine may be working on an answer without a flight.
                await self.redis.ask(lambda client: client.set(invalidated, 1, ex=layout.INVALIDATED_S), ADMIN_S)
                return
            self._number(key, found)
            number = self._next(key)
            if self._number(key, await self._replace(key, found, number, invalidated)) == number:
                return
        raise RedisRefused("too many concurrent invalidations: try again")

    async def invalidated_s(self, scope: Scope) -> float:
        """Return the seconds since the latest invalidation in a scope; infinite if it was long ago."""
        left = int(await self.redis.read("PTTL", layout.key(scope, "i")))
        # A longer life is forged: it would make all answers count as invalidated.
        return layout.INVALIDATED_S - left / 1000 if 0 < left <= layout.INVALIDATED_S * 1000 else math.inf

    async def size(self, scope: Scope) -> int:
        """Return the number of entries of a scope, which may include recently expired ones."""
        return int(await self.redis.ask(lambda client: client.zcard(layout.key(scope, "z"))))

    async def register(self, client_name: str, scope: Scope, sealed: bytes, most: int) -> bool:
        """Add a scope to its client's list, unless the list has ``most`` others; return whether it is listed.

        ``sealed`` is the scope's encrypted name.
        """
        key = f"{layout.PREFIX}{{{layout.text(self.namer.client(client_name))}}}:s"
        return bool(await self.redis.run(_REGISTER, [key], layout.text(scope), sealed, most, layout.KEEP_S))

    async def registered(self, client_name: str, keys: Keyring) -> dict[str, Scope]:
        """Return a client's scopes by name."""
        key = f"{layout.PREFIX}{{{layout.text(self.namer.client(client_name))}}}:s"
        found: dict[bytes, bytes] = await self.redis.ask(lambda client: client.hgetall(key), ADMIN_S)
        scopes: dict[str, Scope] = {}
        for value, sealed in found.items():
            try:
                scope = Scope(layout.name(value))
                scopes[keys.open(sealed, b"scope" + scope).decode()] = scope
            except (Unsealable, ValueError):
                continue  # its key was removed from the key file
        return scopes

    def _number(self, key: str, value: bytes | None) -> int | None:
        """Return the number of a generation; None if it is absent or forged."""
        seen = self._seen.get(key)
        if seen is not None and seen[0] == value:
            return seen[1]
        if value is None:
            return None
        digits, _, _ = value.partition(b":")
        number = int(digits) if digits.isdigit() and len(digits) <= DIGITS else 0
        if not number or not hmac.compare_digest(value, self._marked(key, number)) or (seen is not None and number < seen[1]):
            self._forged()
            return None
        if seen is None and len(self._seen) >= REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = value, number
        return number

    def _next(self, key: str) -> int:
        """Return a number larger than any seen at a key."""
        _, seen = self._seen.get(key, (b"", 0))
        return max(time.time_ns() // 1000, seen + 1)

    def _marked(self, key: str, number: int) -> bytes:
        """Return a generation's value in Redis."""
        text = str(number).encode()
        return text + b":" + layout.text(self.namer.proof(b"generation", key.encode(), text)).encode()

    async def _replace(self, key: str, found: bytes | None, number: int, invalidated: str = "") -> bytes | None:
        """Set a generation if its value is still ``found``; return the value after that.

        ``invalidated`` is the key that records an invalidation.
        """
        arguments = (found or b"", self._marked(key, number), layout.KEEP_S, layout.INVALIDATED_S)
        keys = [key, invalidated] if invalidated else [key]
        now: bytes | None = await self.redis.run(_REPLACE, keys, *arguments, timeout_s=ADMIN_S)
        return now
