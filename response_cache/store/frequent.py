"""The questions that a tenant asks most often, by day, so that their answers can be fetched before the users come.

Only scopes with `warm_up` count. A sketch of `QUESTIONS` names holds the counts (Space-Saving, Metwally et al. 2005): a new
name takes the place and the count of the rarest, so that a flood of different questions cannot hide a frequent one.

A client that divides itself into tenants cannot use up the room of a scope: of lists and of stored requests, each client may
have as many as are still free for others.

A request is stored when it comes for the second time, encrypted, and bound to its scope, tenant and name. What is asked once is
never stored. All of a day ends with the next day; erasing a scope deletes its requests.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from lpc.wire.redis_reach import RedisReach
from response_cache.keys.canonical import IGNORED, CacheRequest, EntryId, Namer, Scope, owner_of
from response_cache.keys.sealing import Keys, Unsealable
from response_cache.store import layout
from response_cache.store.days import DAY_S
from response_cache.store.store import ADMIN_S

QUESTIONS: Final = 200
"""Questions of a tenant that are counted in one scope on one day."""
LONGEST: Final = 8 * 2**10
"""Largest request that is stored, in bytes."""
STORED: Final = 10_000
"""Most requests of a scope and day that are stored, of all tenants together."""
LISTS: Final = 10_000
"""Most tenants of a scope whose questions are counted on a day."""

_COUNT: Final = f"""{layout.READ}
local counts, requests, owners = KEYS[1], KEYS[2], KEYS[3]
local name, prefix, request, most, stored, life, lists, owner = unpack(ARGV)
local size, used = read('ZCARD', counts), read('HLEN', requests)
read('HLEN', owners)
local function number(field) return tonumber(redis.call('HGET', owners, field) or 0) or 0 end
local function add(field, count)
  local found = redis.pcall('HINCRBY', owners, field, count)
  if type(found) == 'table' or found < 0 then redis.call('HSET', owners, field, 0) end
end
if redis.call('ZSCORE', counts, name) then
  redis.call('ZINCRBY', counts, 1, name)
  if request ~= '' and number('stored:' .. owner) < stored - used then
    if redis.call('HSETNX', requests, prefix .. name, request) == 1 then add('stored:' .. owner, 1) end
  end
else
  if size == 0 then
    if number('lists:' .. owner) >= lists - number('lists') then return 0 end
    add('lists:' .. owner, 1)
    add('lists', 1)
  end
  local least = 0
  if size >= most + 0 then
    local rarest = redis.call('ZPOPMIN', counts)
    if redis.call('HDEL', requests, prefix .. rarest[1]) == 1 then add('stored:' .. owner, -1) end
    least = rarest[2]
  end
  redis.call('ZADD', counts, least + 1, name)
end
redis.call('EXPIRE', counts, life)
redis.call('EXPIRE', requests, life)
redis.call('EXPIRE', owners, life)
return 1
"""


class FrequentQuestion(NamedTuple):
    """A question: its look-ups, at most, and the body of its request."""

    lookups: int
    body: bytes


class FrequentQuestions:
    """The frequent questions in one Redis.

    Args:
        keys: encryption keys.
        namer: computes names under the operator's key.
        clock: returns seconds since the epoch. Days are those of UTC.
    """

    def __init__(self, redis: RedisReach, keys: Keys, namer: Namer, clock: Callable[[], float]) -> None:
        self._redis, self._keys, self._namer, self._clock = redis, keys, namer, clock

    async def count(self, scope: Scope, name: EntryId, request: CacheRequest) -> None:
        """Count a look-up. Raises RedisFailed."""
        day = self._day()
        tenant = self._namer.tenant(scope, request.tenant)
        body = body_of(request)
        sealed = b"" if body is None else self._keys.current.seal(body, _context(scope, tenant, name))
        life_s = int((day + 2) * DAY_S - self._clock())
        keys = [self._counts(scope, tenant, day), _requests(scope, day), _owners(scope, day)]
        owner = layout.text(self._namer.tenant(scope, owner_of(request.tenant)))
        limits = (QUESTIONS, STORED, life_s, LISTS)
        await self._redis.run(_COUNT, keys, layout.text(name), f"{layout.text(tenant)}:", sealed, *limits, owner)

    async def yesterday(self, scope: Scope, tenant_name: str, most: int) -> list[FrequentQuestion]:
        """Return a tenant's questions of yesterday, the most frequent first. Raises RedisFailed."""
        day, tenant = self._day() - 1, self._namer.tenant(scope, tenant_name)
        counts = self._counts(scope, tenant, day)
        ranked = await self._redis.ask(lambda client: client.zrevrange(counts, 0, most - 1, withscores=True), ADMIN_S)
        if not ranked:
            return []
        fields = [f"{layout.text(tenant)}:".encode() + name for name, _ in ranked]
        sealed = await self._redis.ask(lambda client: client.hmget(_requests(scope, day), fields), ADMIN_S)
        found = []
        for (name, count), record in zip(ranked, sealed, strict=True):
            try:
                body = self._keys.current.open(record or b"", _context(scope, tenant, EntryId(layout.name(name))))
            except (Unsealable, ValueError):
                continue  # not stored, or no sidecar has written it
            found.append(FrequentQuestion(int(min(count, 2**53)) if count > 0 else 0, body))
        return found

    async def erase(self, scope: Scope) -> None:
        """Delete the requests of a scope. Raises RedisFailed."""
        day = self._day()
        keys = [of(scope, one) for of in (_requests, _owners) for one in (day - 1, day, day + 1)]
        await self._redis.ask(lambda client: client.unlink(*keys), ADMIN_S)

    def _day(self) -> int:
        return int(self._clock() // DAY_S)

    def _counts(self, scope: Scope, tenant: bytes, day: int) -> str:
        return layout.key(scope, "m", layout.text(tenant), str(day))


def body_of(request: CacheRequest) -> bytes | None:
    """Return the body with which a request can be sent again; None if it is large, or more than text.

    What names a user or a session is left out, since no answer depends on it.
    """
    if "url_query" in request.parameters or not all(isinstance(message.get("content"), str) for message in request.messages):
        return None
    left_out = {*IGNORED, "stream", "stream_options"}
    fields: dict[str, Any] = {"model": request.model}
    fields |= {name: value for name, value in request.parameters.items() if name not in left_out}
    wanted: Mapping[str, Any] = {
        "messages": list(request.messages),
        "tools": list(request.tools or ()),
        "prompt": request.prompt,
    }
    fields |= {name: value for name, value in wanted.items() if value}
    body = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return body if len(body) <= LONGEST else None


def _requests(scope: Scope, day: int) -> str:
    return layout.key(scope, "r", str(day))


def _owners(scope: Scope, day: int) -> str:
    return layout.key(scope, "o", str(day))


def _context(scope: Scope, tenant: bytes, name: EntryId) -> bytes:
    return b"question" + scope + tenant + name
