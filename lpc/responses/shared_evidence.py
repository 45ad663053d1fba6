"""What decides in a scope's semantic tier, in Redis, the same for all sidecars and over restarts: labels, clusters, whether
evidence has turned.

All of it is whole numbers of one hash, and of one for the clusters. What a sidecar learnt is added once. Where evidence turned
in one, what others learnt before and have not yet handed over is of no use any more, and is left out.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from lpc.responses import layout
from lpc.responses.canonical import EntryId, Scope
from lpc.responses.semantic.gate import VOID, Handover
from lpc.responses.store import ERASING_S
from lpc.wire.redis_reach import RedisReach

CLUSTERED: Final = 100_000
"""Fields of a scope's clusters, after which those not met again are forgotten with the next as many: 50 bytes each."""

_EXCHANGE: Final = """
local key, clusters, old = KEYS[1], KEYS[2], KEYS[3]
local life, mine, forget, void = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4]
local turned = redis.call('HGET', key, 'turned') or '0'
if forget and (mine == '' or mine == turned) then
  local void_ones = {}
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 1, string.len(void)) == void then void_ones[#void_ones + 1] = field end
  end
  redis.call('DEL', key, clusters, old)
  redis.call('HSET', key, 'turned', turned + 1)
  for _, field in ipairs(void_ones) do redis.call('HSET', key, field, 1) end
end
if forget or mine == '' or mine == turned then
  local at = 8
  local function each(count, what)
    for i = at, at + 2 * count - 1, 2 do what(ARGV[i], ARGV[i + 1]) end
    at = at + 2 * count
  end
  each(ARGV[5], function(field, amount) redis.call('HINCRBY', key, field, amount) end)
  each(ARGV[6], function(field, step)
    local sum = (redis.call('HGET', key, field) or 0) + step
    redis.call('HSET', key, field, string.format('%d', math.max(0, sum)))
  end)
  each(ARGV[7], function(field, value) redis.call('HSET', key, field, value) end)
end
redis.call('EXPIRE', key, life)
return redis.call('HGETALL', key)
"""
"""Hands over what was learnt since the evidence last turned, as far as this sidecar knows, and returns all there is."""

_NTH: Final = """
local now, old, candidate, entry, most, life = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local function get(field) return redis.call('HGET', now, field) or redis.call('HGET', old, field) end
local root = get('r:' .. candidate) or candidate
if entry ~= '' and entry ~= candidate then redis.call('HSET', now, 'r:' .. entry, root) end
local nth = (get('n:' .. root) or 0) + 1
redis.call('HSET', now, 'n:' .. root, nth)
redis.call('EXPIRE', now, life)
if redis.call('HLEN', now) >= most + 0 then redis.call('RENAME', now, old) end
return nth
"""
"""Counts a label of a candidate's cluster, as `lpc.responses.semantic.clusters` does."""


class SharedEvidence:
    """The evidence of all scopes in one Redis.

    Args:
        redis: of the response caches.
        encoder: names the one whose similarities are counted.
    """

    def __init__(self, redis: RedisReach, encoder: Callable[[], str] = str) -> None:
        self._redis = redis
        self._encoder = encoder

    async def exchange(self, scope: Scope, judged_by: str, handed: Handover) -> dict[str, int]:
        """Hand over what a gate has learnt; return everything that is known. Raises RedisFailed: what was added is not known.

        ``judged_by``: who makes the labels, where that one errs: evidence of one judge says nothing of another's.
        """
        counts = list(_summed(handed.changes).items())
        turned = "" if handed.turned is None else str(handed.turned)
        parts: Sequence[Sequence[tuple[str, int]]] = (counts, handed.steps, list(handed.sets.items()))
        arguments: list[str | int] = [layout.EVIDENCE_S, turned, int(handed.forget), VOID, *map(len, parts)]
        for part in parts:
            for field, amount in part:
                arguments += (field, amount)
        keys = self._keys(scope, judged_by)
        flat: list[bytes] = await self._redis.ask(lambda client: client.eval(_EXCHANGE, len(keys), *keys, *arguments))
        found = zip(flat[::2], flat[1::2], strict=True)
        return {field.decode(): int(value) for field, value in found if value.lstrip(b"-").isdigit()}

    async def forget(self, scope: Scope, judged_by: str, fields: Sequence[str]) -> None:
        """Delete what the window has left behind. Raises RedisFailed."""
        await self._redis.ask(lambda client: client.hdel(self._keys(scope, judged_by)[0], *fields))

    async def nth(self, scope: Scope, judged_by: str, candidate: EntryId, *, joins: EntryId | None = None) -> int:
        """Count a label; return the how-many-th of its cluster it is, in all sidecars. Raises RedisFailed.

        ``joins``: the entry of which the label said that it means the same.
        """
        _, now, old = self._keys(scope, judged_by)
        entry = "" if joins is None else layout.text(joins)
        arguments = (layout.text(candidate), entry, CLUSTERED, layout.EVIDENCE_S)
        return int(await self._redis.ask(lambda client: client.eval(_NTH, 2, now, old, *arguments)))

    async def first_complaint(self, scope: Scope, ticket: bytes) -> bool:
        """Note that an answer that was served was called wrong; say whether it is for the first time. Raises RedisFailed.

        ``ticket``: 16 bytes that stand for what was served to whom.
        """
        key = layout.key(scope, "w", layout.text(ticket))
        return bool(await self._redis.ask(lambda client: client.set(key, 1, nx=True, ex=layout.EVIDENCE_S)))

    async def mark_served(self, scope: Scope, questions: Sequence[EntryId], life_s: float) -> None:
        """Note that questions were answered from another question's, while nobody waits. Raises RedisFailed."""

        async def mark(client: Any) -> None:
            pipe = client.pipeline(transaction=False)
            for question in questions:
                pipe.set(layout.key(scope, "q", layout.text(question)), 1, px=max(1, int(life_s * 1000)))
            await pipe.execute()

        await self._redis.ask(mark, ERASING_S)

    def _keys(self, scope: Scope, judged_by: str) -> tuple[str, str, str]:
        rest = [self._encoder(), judged_by] if judged_by else [self._encoder()]
        return layout.key(scope, "t", *rest), layout.key(scope, "k", *rest), layout.key(scope, "k", *rest, "old")


def _summed(changes: Sequence[tuple[str, int]]) -> dict[str, int]:
    summed: dict[str, int] = {}
    for field, amount in changes:
        summed[field] = summed.get(field, 0) + amount
    return summed
