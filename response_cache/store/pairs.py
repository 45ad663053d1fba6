"""Questions of own traffic with the candidates that the semantic tier found for them, so that people can judge them.

Only scopes with `pairs` keep them, sealed and bound to their scope. A scope has at most `MOST`, for `LIFE_S`; a new one takes
the place of the oldest. In each process a tenant adds at most `BURST` at once and `PER_S` after that. So the pairs spread over
time, and a tenant that floods one process needs eight hours for all places.
"""

import json
from collections.abc import Callable
from typing import Final, NamedTuple

from lpc.wire.redis_reach import RedisReach
from response_cache.keys.canonical import Namer, Scope, owner_of
from response_cache.keys.sealing import Keys, Unsealable
from response_cache.store import layout
from response_cache.store.store import ADMIN_S

MOST: Final = 500
LIFE_S: Final = 7 * 24 * 3600
LONGEST: Final = 4 * 2**10
"""Longest two texts together that are kept, in characters; of longer ones only the digests are."""
BURST: Final = 20.0
PER_S: Final = 1 / 60
OWNERS: Final = 10_000
"""Tenants whose rates are remembered. Above that all rates are dropped, which lets a burst of each through again."""

_ADD: Final = f"""{layout.READ}
local key = KEYS[1]
local sealed, expires, now, most, life = unpack(ARGV)
read('ZCARD', key)
redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
redis.call('ZADD', key, expires, sealed)
local over = redis.call('ZCARD', key) - most
if over > 0 then redis.call('ZREMRANGEBYRANK', key, 0, over - 1) end
redis.call('EXPIRE', key, life)
return 1
"""


class QuestionPair(NamedTuple):
    """A question and its candidate.

    Attributes:
        at: time of the look-up, seconds since the epoch.
        similarity: cosine similarity of the two.
        score: what was compared with the threshold.
        served: whether the candidate's answer was served.
        question_digest, candidate_digest: keyed digests, hexadecimal.
        question, candidate: texts; empty if only digests are kept.
    """

    at: float
    similarity: float
    score: float
    served: bool
    question_digest: str
    candidate_digest: str
    question: str = ""
    candidate: str = ""


class QuestionPairs:
    """The pairs in one Redis. Lives on one event loop.

    Args:
        keys: encryption keys.
        namer: computes names under the operator's key.
        clock: returns seconds since the epoch.
    """

    def __init__(self, redis: RedisReach, keys: Keys, namer: Namer, clock: Callable[[], float]) -> None:
        self._redis, self._keys, self._namer, self._clock = redis, keys, namer, clock
        self._rates: dict[tuple[Scope, str], tuple[float, float]] = {}

    def admits(self, scope: Scope, tenant: str) -> bool:
        """Count a pair of a tenant, or return False: it has added too many."""
        now, name = self._clock(), (scope, owner_of(tenant))
        left, at = self._rates.get(name, (BURST, now))
        left = min(BURST, left + max(0.0, now - at) * PER_S)
        if len(self._rates) >= OWNERS and name not in self._rates:
            self._rates.clear()
        self._rates[name] = (left - 1 if left >= 1 else left, now)
        return left >= 1

    def pair(
        self, scope: Scope, tenant: str, texts: tuple[str, str], similarity: float, score: float, *, served: bool, text: bool
    ) -> QuestionPair:
        """Return the pair of a question and its candidate, with the texts if ``text``."""
        question, candidate = (self._namer.question(scope, tenant, one) for one in texts)
        shown = texts if text and sum(map(len, texts)) <= LONGEST else ("", "")
        return QuestionPair(self._clock(), similarity, score, served, question, candidate, *shown)

    async def add(self, scope: Scope, pair: QuestionPair) -> None:
        """Keep a pair. Raises RedisFailed."""
        plain = json.dumps(pair, ensure_ascii=False).encode("utf-8", "replace")
        sealed = self._keys.current.seal(plain, b"pair" + scope)
        await self._redis.run(_ADD, [_key(scope)], sealed, pair.at + LIFE_S, pair.at, MOST, LIFE_S)

    async def read(self, scope: Scope, most: int) -> list[QuestionPair]:
        """Return the latest pairs of a scope, the latest first. Raises RedisFailed."""
        if most <= 0:
            return []
        sealed = await self._redis.ask(lambda client: client.zrevrange(_key(scope), 0, min(most, MOST) - 1), ADMIN_S)
        found = []
        for record in sealed:
            try:
                pair = QuestionPair(*json.loads(self._keys.current.open(record, b"pair" + scope)))
            except (Unsealable, ValueError, TypeError):
                continue  # of another key, or no sidecar has written it
            if pair.at + LIFE_S > self._clock():
                found.append(pair)
        return found

    async def erase(self, scope: Scope) -> None:
        """Delete the pairs of a scope. Raises RedisFailed."""
        await self._redis.ask(lambda client: client.unlink(_key(scope)), ADMIN_S)


def _key(scope: Scope) -> str:
    return layout.key(scope, "p")
