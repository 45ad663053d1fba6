"""The evidence of semantic tiers in Redis, which all sidecars share: labels, clusters of questions, and resets by drift.

It consists of integers: one record of counts and a hash of clusters. A sidecar adds its changes once. After one sidecar resets
the evidence, changes that the others collected before the reset are discarded. A gateway's client that divides itself into
tenants keeps the evidence of `PARTS` of them in a scope, those that learnt last.

A program that writes to this Redis cannot forge evidence: a record has a MAC under the operator's key and a version. A record
with a wrong MAC, or with an earlier version than this process has seen, counts as forged and is treated as absent, so that the
scope is shut until there are new labels. The number of resets, and which labels of a file the traffic has contradicted, are
also stored in a file of the sidecar (`evidence_file.Verdicts`), so that an emptied Redis does not undo them.

Such a program can still delete:

- the evidence, which shuts a scope that has no labels from a file;
- the clusters, after which labels of one cluster count as independent. It can also change them, which raises or lowers scores
  (`semantic/ranking.py`) until audits notice;
- the marks of questions and complaints that count once.

After a restart of all sidecars it can restore an earlier record, but none from before the last reset in their files.
"""

import asyncio
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lpc.wire.redis_reach import RedisReach, RedisRefused
from response_cache.keys.canonical import NAME_BYTES, REMEMBERED, EntryId, Namer, Scope
from response_cache.semantic.evidence import BAND_STARTS, Evidence, Record, band_of, level_of
from response_cache.semantic.evidence_file import Verdicts
from response_cache.semantic.gate import RESETS, VOID, Pending
from response_cache.semantic.ranking import Cluster
from response_cache.store import layout
from response_cache.store.store import ERASING_S

CLUSTERED: Final = 100_000
"""Fields of 50 bytes in a scope's clusters; then a new hash begins, and the one before the current is dropped."""

PARTS: Final = 1000
"""Parts of one client in one scope whose evidence is kept."""
TRIES: Final = 10
"""Attempts of an exchange while others write."""
MAC_BYTES: Final = NAME_BYTES
_VERSION: Final = "version"

_READ: Final = """
local size = redis.pcall('STRLEN', KEYS[1])
if type(size) == 'table' or size > 1048576 then return 'x' end
return redis.call('GET', KEYS[1])
"""
"""A key of another type, or a larger value than any, reads as a forged record."""

_WRITE: Final = f"""{layout.READ}
local size = redis.pcall('STRLEN', KEYS[1])
local found = 'x'
if type(size) == 'number' and size <= 1048576 then found = redis.call('GET', KEYS[1]) end
if string.sub(found or '', 1, 16) ~= ARGV[1] then return 0 end
if ARGV[4] == '1' then redis.call('DEL', KEYS[2], KEYS[3]) end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
local parts, prefix, part, most = KEYS[4], ARGV[5], ARGV[6], ARGV[7]
if parts then
  local newest = tonumber(read('ZREVRANGE', parts, 0, 0, 'WITHSCORES')[2]) or 0
  redis.call('ZADD', parts, newest + 1, part)
  redis.call('EXPIRE', parts, ARGV[3])
  local surplus = math.min(redis.call('ZCARD', parts) - most, 10)
  for _, old in ipairs(surplus > 0 and redis.call('ZRANGE', parts, 0, surplus - 1) or {{}}) do
    redis.call('ZREM', parts, old)
    redis.call('DEL', prefix .. 't:' .. old, prefix .. 'k:' .. old, prefix .. 'k:' .. old .. ':old')
  end
end
return 1
"""
"""Replaces the record if its MAC is still the one that the sidecar has read. If the tenant is a part of a client with too many
parts, the evidence of those that learnt longest ago is deleted."""

_CLUSTER: Final = f"""{layout.READ}
local now, old = KEYS[1], KEYS[2]
local function get(field) return read('HGET', now, field) or read('HGET', old, field) end
local function root_of(entry)
  local root = get('r:' .. entry)
  return root and #root == #entry and root or entry
end
local function counts_of(root)
  local counts, record = {{}}, get('n:' .. root)
  if record and #record <= {20 * len(BAND_STARTS)} then
    for number in string.gmatch(record, '[^,]+') do
      if #number > 9 or not string.match(number, '^%d+$') then break end
      counts[#counts + 1] = tonumber(number)
    end
  end
  if #counts == {2 * len(BAND_STARTS)} then return counts end
  counts = {{}}
  for i = 1, {2 * len(BAND_STARTS)} do counts[i] = 0 end
  return counts
end
"""
"""Start of a script: a cluster's root and its counts, labels and wrong ones by band. Counts that no sidecar would have written
read as zeros: they would be added to the evidence, which is then sealed."""

_LABEL: Final = f"""{_CLUSTER}
local candidate, entry, band, wrong, most, life = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local root = root_of(candidate)
if entry ~= '' and entry ~= candidate then redis.call('HSET', now, 'r:' .. entry, root) end
local counts = counts_of(root)
local earlier = table.concat(counts, ',')
counts[2 * band + 1] = counts[2 * band + 1] + 1
counts[2 * band + 2] = counts[2 * band + 2] + wrong
redis.call('HSET', now, 'n:' .. root, table.concat(counts, ','))
redis.call('EXPIRE', now, life)
if redis.call('HLEN', now) >= most + 0 then redis.call('RENAME', now, old) end
return earlier
"""
"""Counts a label of a candidate's cluster; if the label is `same`, the new entry joins the cluster. Returns the earlier counts.
A dropped candidate begins a new cluster."""

_CLUSTERS: Final = f"""{_CLUSTER}
local found = {{}}
for _, entry in ipairs(ARGV) do
  local root = root_of(entry)
  found[#found + 1] = root
  found[#found + 1] = table.concat(counts_of(root), ',')
end
return found
"""
"""Returns root and counts of each entry."""


class SharedEvidence:
    """The evidence of all scopes in one Redis.

    Args:
        redis: the response caches' Redis.
        namer: computes MACs under the operator's key.
        encoder: returns the id of the current encoder.
        ranking: digest of the ranking, to whose scores the evidence belongs.
        verdicts: resets that must survive an emptied Redis.
        forged: called for each forged record.
        parts: parts of one client whose evidence is kept.
    """

    def __init__(
        self,
        redis: RedisReach,
        namer: Namer,
        encoder: Callable[[], str] = str,
        ranking: str = "",
        verdicts: Verdicts | None = None,
        forged: Callable[[], object] = lambda: None,
        parts: int = PARTS,
    ) -> None:
        self._redis = redis
        self._namer = namer
        self._encoder = encoder
        self._ranking = ranking
        self._verdicts = verdicts or Verdicts()
        self._forged = forged
        self._parts = parts
        self._seen: dict[str, int] = {}

    async def exchange(self, scope: Scope, judged_by: str, pending: Pending, part_of: str = "") -> dict[str, int]:
        """Add a gate's changes to the evidence; return all of it. Raises RedisFailed if the changes may have been added or not.

        Args:
            scope: name of the scope.
            judged_by: id of judge and tenant, because evidence of one judge does not apply to another.
            pending: the changes.
            part_of: name of the client of which the tenant is a part; empty: it is none.
        """
        keys = self._keys(scope, judged_by)
        of_client = [layout.key(scope, "ot", part_of)] if part_of else []
        prefix = layout.key(scope, "t", "").removesuffix("t:")
        client = (prefix, keys[0].removeprefix(f"{prefix}t:"), self._parts) if part_of else ()
        await self._note_lasting(keys[0], pending.sets, part_of)
        for _ in range(TRIES):
            found: bytes | None = await self._redis.run(_READ, keys[:1])
            kept = self._opened(keys[0], found)
            fields = self._verdicts.of(keys[0])
            if kept.get(RESETS, 0) >= fields.get(RESETS, 0):  # else it was lost, or is from before the last reset
                fields |= kept
            forget = pending.forget and pending.turned in (None, fields.get(RESETS, 0))
            fields = _merged(fields, pending, forget=forget)
            await self._note_lasting(keys[0], fields, part_of)
            if not forget and {**fields, _VERSION: kept.get(_VERSION)} == kept:
                await self._redis.ask(lambda client: client.expire(keys[0], layout.EVIDENCE_S))
                return fields
            version = max(kept.get(_VERSION, 0), self._seen.get(keys[0], 0)) + 1
            arguments = ((found or b"")[:MAC_BYTES], self._sealed(keys[0], {**fields, _VERSION: version}), layout.EVIDENCE_S)
            if await self._redis.run(_WRITE, [*keys, *of_client], *arguments, int(forget), *client):
                self._note(keys[0], version)
                return fields
        raise RedisRefused("too many concurrent changes of the evidence: the sidecar tries again later")

    async def _note_lasting(self, key: str, fields: Mapping[str, int], part_of: str) -> None:
        """Store what an emptied Redis must not undo, in a thread, because another sidecar may hold the file's lock."""
        if self._verdicts.grow(key, _lasting(fields), part_of):
            await asyncio.to_thread(self._verdicts.write)

    def _sealed(self, key: str, fields: Mapping[str, int]) -> bytes:
        body = json.dumps(fields, separators=(",", ":")).encode()
        return self._namer.proof(b"evidence", key.encode(), body) + body

    def _opened(self, key: str, record: bytes | None) -> dict[str, int]:
        """Return the fields of a record, version included; empty if it is absent or forged."""
        if record is None:
            return {}
        mac, body = record[:MAC_BYTES], record[MAC_BYTES:]
        if hmac.compare_digest(mac, self._namer.proof(b"evidence", key.encode(), body)):
            fields: dict[str, int] = json.loads(body)
            if fields[_VERSION] >= self._seen.get(key, 0):
                self._note(key, fields[_VERSION])
                return fields
        self._forged()
        return {}

    def _note(self, key: str, version: int) -> None:
        if key not in self._seen and len(self._seen) >= REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = version

    async def label(
        self, scope: Scope, judged_by: str, candidate: EntryId, score: float, *, same: bool, joins: EntryId | None = None
    ) -> Record:
        """Count a label of a candidate's cluster; return the earlier ones, over all sidecars. Raises RedisFailed.

        ``joins`` is the entry that joins the cluster, if the label is `same`.
        """
        _, now, old = self._keys(scope, judged_by)
        entry = "" if joins is None else layout.text(joins)
        band = band_of(level_of(score))
        arguments = (layout.text(candidate), entry, band, int(not same), CLUSTERED, layout.EVIDENCE_S)
        return _record(await self._redis.run(_LABEL, (now, old), *arguments))

    async def clusters(self, scope: Scope, judged_by: str, entries: Sequence[EntryId]) -> list[Cluster]:
        """Return the cluster of each entry. Raises RedisFailed."""
        if not entries:
            return []
        _, now, old = self._keys(scope, judged_by)
        found = await self._redis.run(_CLUSTERS, (now, old), *map(layout.text, entries))
        return [
            Cluster.of(root.decode("ascii", "replace"), _record(counts))
            for root, counts in zip(found[::2], found[1::2], strict=True)
        ]

    async def first_complaint(self, scope: Scope, ticket: bytes) -> bool:
        """Record a complaint; return whether it is the first about this answer. Raises RedisFailed.

        ``ticket`` identifies the answer and its receiver by 16 bytes.
        """
        key = layout.key(scope, "w", layout.text(ticket))
        return bool(await self._redis.ask(lambda client: client.set(key, 1, nx=True, ex=layout.EVIDENCE_S)))

    async def mark_served(self, scope: Scope, questions: Sequence[EntryId], life_s: float) -> None:
        """Record that questions have had a semantic hit. Raises RedisFailed."""
        life_ms = max(1, int(life_s * 1000))
        keys = [layout.key(scope, "q", layout.text(question)) for question in questions]
        await self._redis.ask_all(lambda pipe: [pipe.set(key, 1, px=life_ms) for key in keys], ERASING_S)

    def _keys(self, scope: Scope, judged_by: str) -> tuple[str, str, str]:
        rest = [part for part in (self._encoder(), self._ranking, judged_by) if part]
        return layout.key(scope, "t", *rest), layout.key(scope, "k", *rest), layout.key(scope, "k", *rest, "old")


def _record(counts: bytes) -> Record:
    numbers = [int(number) for number in counts.split(b",")]
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _merged(fields: Mapping[str, int], pending: Pending, *, forget: bool) -> dict[str, int]:
    """Return the evidence with a gate's changes, unless these are from before the last reset."""
    turned = fields.get(RESETS, 0)
    merged = {name: value for name, value in fields.items() if name != _VERSION}
    if forget:
        merged = {RESETS: turned + 1, **{name: 1 for name in fields if name.startswith(VOID)}}
    if pending.forget or pending.turned in (None, turned):
        for field, amount in pending.changes:
            merged[field] = merged.get(field, 0) + amount
        for field, step in pending.steps:
            merged[field] = max(0, merged.get(field, 0) + step)
        merged.update(pending.sets)
    for field in Evidence.from_fields(merged).aged(merged):
        del merged[field]
    return merged


def _lasting(fields: Mapping[str, int]) -> dict[str, int]:
    """Return the fields that an emptied Redis must not undo."""
    return {name: value for name, value in fields.items() if name == RESETS or name.startswith(VOID)}
