"""What decides in a scope's semantic tier, in Redis, the same for all sidecars and over restarts: labels, clusters, whether
evidence has turned.

All of it is whole numbers: one record of the evidence, and a hash of the clusters. What a sidecar learnt is added once. Where
evidence turned in one, what others learnt before and have not yet handed over is of no use any more, and is left out.

A program that writes to this Redis is not trusted with the evidence. A record carries a MAC under the operator's key and a
version. A record with a wrong MAC, or of an earlier version than this process has seen, counts as forged and is taken for
absent: the scope is shut until there are fresh labels. How often evidence has turned, and which labels of a file the traffic
has contradicted, also stand in a file of the sidecar (`evidence_file.Verdicts`), so that an emptied Redis does not undo them.

Such a program can still delete:

- the evidence, which shuts a scope without labels of a file;
- the clusters, after which labels of one cluster count as independent;
- the marks of questions and complaints that count once.

After all sidecars were restarted it can put back an earlier record, as far back as the last turn that their files know.
"""

import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lpc.responses import layout
from lpc.responses.canonical import NAME_BYTES, REMEMBERED, EntryId, Namer, Scope
from lpc.responses.semantic.evidence import Evidence
from lpc.responses.semantic.evidence_file import Verdicts
from lpc.responses.semantic.gate import TURNED, VOID, Handover
from lpc.responses.store import ERASING_S
from lpc.wire.redis_reach import RedisReach, RedisRefused

CLUSTERED: Final = 100_000
"""Fields of a scope's clusters, after which those not met again are forgotten with the next as many: 50 bytes each."""

TRIES: Final = 10
"""Of an exchange, where others write at the same time."""
MAC_BYTES: Final = NAME_BYTES
_VERSION: Final = "version"

_READ: Final = """
local found = redis.pcall('GET', KEYS[1])
if type(found) == 'table' then return 'x' end
return found
"""
"""A key of another type is read as a record that nobody can have written."""

_WRITE: Final = """
local found = redis.pcall('GET', KEYS[1])
if type(found) == 'table' then found = 'x' end
if string.sub(found or '', 1, 16) ~= ARGV[1] then return 0 end
if ARGV[4] == '1' then redis.call('DEL', KEYS[2], KEYS[3]) end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return 1
"""
"""Replaces the record whose MAC the sidecar has read."""

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
"""Counts a label of a candidate's cluster; where it says `same`, the new entry joins that cluster.

Sixty rewordings of one question that fit its answer say one thing sixty times: the labels of a cluster are taken as fully
dependent (the design effect of cluster sampling, Kish 1965). What was forgotten begins a new cluster."""


class SharedEvidence:
    """The evidence of all scopes in one Redis.

    Args:
        redis: of the response caches.
        namer: under the operator's key.
        encoder: names the one whose similarities are counted.
        verdicts: what outlives an empty Redis.
        forged: called for each record that no sidecar wrote, or that is older than what this one has seen.
    """

    def __init__(
        self,
        redis: RedisReach,
        namer: Namer,
        encoder: Callable[[], str] = str,
        verdicts: Verdicts | None = None,
        forged: Callable[[], object] = lambda: None,
    ) -> None:
        self._redis = redis
        self._namer = namer
        self._encoder = encoder
        self._verdicts = verdicts or Verdicts()
        self._forged = forged
        self._seen: dict[str, int] = {}

    async def exchange(self, scope: Scope, judged_by: str, handed: Handover) -> dict[str, int]:
        """Hand over what a gate has learnt; return everything that is known. Raises RedisFailed: what was added is not known.

        ``judged_by``: who makes the labels, where that one errs: evidence of one judge says nothing of another's.
        """
        keys = self._keys(scope, judged_by)
        self._verdicts.note(keys[0], _lasting(handed.sets))
        for _ in range(TRIES):
            found: bytes | None = await self._redis.run(_READ, keys[:1])
            kept = self._opened(keys[0], found)
            fields = self._verdicts.of(keys[0])
            if kept.get(TURNED, 0) >= fields.get(TURNED, 0):  # else it is of before the last turn, or was lost
                fields |= kept
            forget = handed.forget and handed.turned in (None, fields.get(TURNED, 0))
            fields = _merged(fields, handed, forget=forget)
            self._verdicts.note(keys[0], _lasting(fields))
            if not forget and {**fields, _VERSION: kept.get(_VERSION)} == kept:
                await self._redis.ask(lambda client: client.expire(keys[0], layout.EVIDENCE_S))
                return fields
            version = max(kept.get(_VERSION, 0), self._seen.get(keys[0], 0)) + 1
            arguments = ((found or b"")[:MAC_BYTES], self._sealed(keys[0], {**fields, _VERSION: version}), layout.EVIDENCE_S)
            if await self._redis.run(_WRITE, keys, *arguments, int(forget)):
                self._note(keys[0], version)
                return fields
        raise RedisRefused("the evidence changes all the time: it is exchanged again later")

    def _sealed(self, key: str, fields: Mapping[str, int]) -> bytes:
        body = json.dumps(fields, separators=(",", ":")).encode()
        return self._namer.proof(b"evidence", key.encode(), body) + body

    def _opened(self, key: str, record: bytes | None) -> dict[str, int]:
        """Return the fields of a record with its version; none where it is absent, forged or of an earlier version."""
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

    async def nth(self, scope: Scope, judged_by: str, candidate: EntryId, *, joins: EntryId | None = None) -> int:
        """Count a label; return the how-many-th of its cluster it is, in all sidecars. Raises RedisFailed.

        ``joins``: the entry of which the label said that it means the same.
        """
        _, now, old = self._keys(scope, judged_by)
        entry = "" if joins is None else layout.text(joins)
        arguments = (layout.text(candidate), entry, CLUSTERED, layout.EVIDENCE_S)
        return int(await self._redis.run(_NTH, (now, old), *arguments))

    async def first_complaint(self, scope: Scope, ticket: bytes) -> bool:
        """Note that an answer that was served was called wrong; say whether it is for the first time. Raises RedisFailed.

        ``ticket``: 16 bytes that stand for what was served to whom.
        """
        key = layout.key(scope, "w", layout.text(ticket))
        return bool(await self._redis.ask(lambda client: client.set(key, 1, nx=True, ex=layout.EVIDENCE_S)))

    async def mark_served(self, scope: Scope, questions: Sequence[EntryId], life_s: float) -> None:
        """Note that questions were answered from another question's, while nobody waits. Raises RedisFailed."""
        life_ms = max(1, int(life_s * 1000))
        keys = [layout.key(scope, "q", layout.text(question)) for question in questions]
        await self._redis.ask_all(lambda pipe: [pipe.set(key, 1, px=life_ms) for key in keys], ERASING_S)

    def _keys(self, scope: Scope, judged_by: str) -> tuple[str, str, str]:
        rest = [self._encoder(), judged_by] if judged_by else [self._encoder()]
        return layout.key(scope, "t", *rest), layout.key(scope, "k", *rest), layout.key(scope, "k", *rest, "old")


def _merged(fields: Mapping[str, int], handed: Handover, *, forget: bool) -> dict[str, int]:
    """Return the evidence with what a gate has learnt since it last turned, as far as that gate knows."""
    turned = fields.get(TURNED, 0)
    merged = {name: value for name, value in fields.items() if name != _VERSION}
    if forget:
        merged = {TURNED: turned + 1, **{name: 1 for name in fields if name.startswith(VOID)}}
    if handed.forget or handed.turned in (None, turned):
        for field, amount in handed.changes:
            merged[field] = merged.get(field, 0) + amount
        for field, step in handed.steps:
            merged[field] = max(0, merged.get(field, 0) + step)
        merged.update(handed.sets)
    for field in Evidence.from_fields(merged).aged(merged):
        del merged[field]
    return merged


def _lasting(fields: Mapping[str, int]) -> dict[str, int]:
    """Return what an empty Redis must not undo."""
    return {name: value for name, value in fields.items() if name == TURNED or name.startswith(VOID)}
