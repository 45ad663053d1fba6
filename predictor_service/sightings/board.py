"""Where sightings lie in Redis, and what is said to it: GET, SET and three scripts of these, which the user of engines may run.

| key | holds |
|---|---|
| `lpc:seen:<name>` | the sightings under one name, oldest first, at most LOOKED_AT; gone a horizon after the last one |
| `lpc:seen:to:<sidecar>` | news for a sidecar of turns whose next ones others have seen |
| `lpc:seen:key` | the key of the fleet's hashes, drawn by the first sidecar |

Each command concerns one key, so a Redis Cluster spreads them, and what Redis refuses for one key concerns no other: such an
error stands in place of the answer. Raises what else redis-py raises.
"""

import os
from collections.abc import Sequence
from typing import Any, Final

from lpc.wire.redis_connection import evaluate
from lpc.wire.redis_health import REFUSALS, cause_of
from predictor_service.labels.names import LOOKED_AT
from predictor_service.sightings.record import (
    ID_BYTES,
    RECORD_BYTES,
    RETURN_BYTES,
    Sighting,
    pack_return,
    returns_in,
    sightings_in,
)

PREFIX: Final = "lpc:seen:"
KEY_LIFE_S: Final = 7 * 86_400
"""The fleet's key is forgotten when no sidecar has asked for it for so long."""
MOST_NEWS: Final = 16_384
"""News for one sidecar that wait; over it the oldest go."""
NEWS_LIFE_S: Final = 600.0
"""A sidecar asks for its news every second; one that has gone never does."""
EMPTY_LIFE_MS: Final = 1000

APPEND: Final = """
local all = (redis.call('GET', KEYS[1]) or '') .. ARGV[1]
local most = tonumber(ARGV[2])
if #all > most then all = string.sub(all, -most) end
redis.call('SET', KEYS[1], all, 'PX', ARGV[3])
return 1
"""
# Takes the record whose first bytes are ARGV[2]; without it the oldest whose turn count is ARGV[3], else the oldest.
TAKE: Final = """
local all, size = redis.call('GET', KEYS[1]), tonumber(ARGV[1])
if not all or #all < size then return false end
local at = nil
for start = 1, #all - size + 1, size do
  if ARGV[2] ~= '' then
    if string.sub(all, start, start + #ARGV[2] - 1) == ARGV[2] then at = start; break end
  else
    at = at or start
    if string.sub(all, start + 48, start + 51) == ARGV[3] then at = start; break end
  end
end
if not at then return false end
local rest = string.sub(all, 1, at - 1) .. string.sub(all, at + size)
if rest == '' then redis.call('SET', KEYS[1], '', 'PX', ARGV[4]) else redis.call('SET', KEYS[1], rest, 'KEEPTTL') end
return string.sub(all, at, at + size - 1)
"""
EMPTY: Final = """
local all = redis.call('GET', KEYS[1])
if all and all ~= '' then redis.call('SET', KEYS[1], '', 'PX', ARGV[1]) end
return all
"""


def fleet_key(client: Any) -> bytes:
    """Return the key of the fleet's hashes, of 32 bytes; draw it where there is none."""
    place = f"{PREFIX}key"
    found: bytes | None = client.execute_command("GET", place)
    if found is None:  # a full Redis refuses SET, even if the key is there
        client.execute_command("SET", place, os.urandom(32), "NX", "EX", KEY_LIFE_S)
        found = client.execute_command("GET", place)
    # A Redis that answers with nothing is full, or someone deleted the key just now: another time.
    if found is None or len(found) != 32:
        raise OSError("Redis holds no key for the hashes of turns")
    client.execute_command("PEXPIRE", place, KEY_LIFE_S * 1000)
    return found


def look(client: Any, names: Sequence[bytes]) -> list[list[Sighting] | Exception]:
    """Return the sightings under each name."""
    batch = client.pipeline(transaction=False)
    for name in names:
        batch.execute_command("GET", _place(name))
    found = _answers(batch.execute(raise_on_error=False))
    return [records if isinstance(records, Exception) else list(sightings_in(records)) for records in found]


def take(client: Any, sidecar: bytes, wanted: Sequence[tuple[bytes, bytes, int]]) -> list[Sighting | Exception | None]:
    """Take away, under each name, the sighting of the turn before.

    Args:
        sidecar: this one.
        wanted: the name; this sidecar's id of the turn before, empty if another one may have seen it; and the turn's own count.
    """
    commands = []
    for name, own, count in wanted:
        mine = sidecar + own if own else b""
        commands.append((1, _place(name), RECORD_BYTES, mine, max(count - 1, 0).to_bytes(4, "big"), EMPTY_LIFE_MS))
    found = _evaluated(client, TAKE, commands)
    return [Sighting.unpack(record) if isinstance(record, bytes) else record for record in found]


def put(client: Any, seen: Sequence[tuple[bytes, Sighting]], horizon_s: float) -> list[Any]:
    """Leave sightings under names."""
    life = max(int(horizon_s * 1000), 1)
    return _evaluated(client, APPEND, [(1, _place(name), one.pack(), RECORD_BYTES * LOOKED_AT, life) for name, one in seen])


def tell(client: Any, news: Sequence[tuple[Sighting, float]]) -> list[Any]:
    """Tell who left each sighting when the next turn came."""
    life, most = int(NEWS_LIFE_S * 1000), RETURN_BYTES * MOST_NEWS
    return _evaluated(client, APPEND, [(1, _inbox(one.sidecar), pack_return(one.turn, at), most, life) for one, at in news])


def hear(client: Any, sidecar: bytes) -> list[tuple[bytes, float]] | Exception:
    """Return, and take away, what others tell of one's own turns: their names, and when their next ones came."""
    (news,) = _evaluated(client, EMPTY, [(1, _inbox(sidecar), EMPTY_LIFE_MS)])
    return news if isinstance(news, Exception) else list(returns_in(news))


def _evaluated(client: Any, script: str, commands: list[tuple[Any, ...]]) -> list[Any]:
    return _answers(evaluate(client, script, commands, raise_on_error=False))


def _answers(answers: list[Any]) -> list[Any]:
    """Return answers as they came. Raises the first error that is about the server."""
    for answer in answers:
        if isinstance(answer, Exception) and cause_of(answer) not in REFUSALS:
            raise answer
    return answers


def _place(name: bytes) -> str:
    return PREFIX + name.hex()


def _inbox(sidecar: bytes) -> str:
    assert len(sidecar) == ID_BYTES
    return f"{PREFIX}to:{sidecar.hex()}"
