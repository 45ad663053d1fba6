"""Where shared turns lie in Redis: GET, SET and three scripts of these, which the user of engines may run.

| key | holds |
|---|---|
| `lpc:seen:<name>` | the turns under one name, oldest first, at most LOOKED_AT; gone a horizon after the last one |
| `lpc:seen:to:<sidecar>` | which of a sidecar's turns returned elsewhere, and when |
| `lpc:seen:key` | the key of the fleet's hashes, drawn by the first sidecar |

Each command concerns one key, so a Redis Cluster spreads them, and a refusal concerns one key only: such an error stands in
place of the answer. Raises what else redis-py raises.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Self

from lpc.model.arrivals import GapHistory
from lpc.model.returns.memory import Past
from lpc.wire.redis_connection import evaluate
from lpc.wire.redis_health import REFUSALS, cause_of
from predictor_service.labels.names import LOOKED_AT

ID_BYTES: Final = 8
_RECORD: Final = struct.Struct(">8s8s16s16sIdddIff")
_RETURN: Final = struct.Struct(">8sd")
PREFIX: Final = "lpc:seen:"
KEY_LIFE_S: Final = 7 * 86_400
"""The fleet's key is forgotten when no sidecar has asked for it for so long."""
MOST_RETURNS: Final = 16_384
"""That wait for one sidecar; over it the oldest go."""
RETURNS_LIFE_S: Final = 600.0
"""A sidecar reads its returns every second; one that has gone never does."""
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


class SharedTurn(NamedTuple):
    """A turn that a sidecar has seen, as Redis holds it.

    Attributes:
        sidecar, turn: who saw it, and its id there.
        text: of its prompts, in the fleet's hashes.
        conversation: opaque, the same for all turns of a conversation that were recognised as such.
        turn_count: user turns so far.
        past: what is known of the conversation up to this turn.
    """

    sidecar: bytes
    turn: bytes
    text: bytes
    conversation: bytes
    turn_count: int
    past: Past

    def pack(self) -> bytes:
        """Return it as bytes, always as many, so that several under one name are one string."""
        history, input_tokens, growth_tokens = self.past
        return _RECORD.pack(*self[:4], min(self.turn_count, 2**32 - 1), *history, input_tokens, growth_tokens)

    @classmethod
    def all_in(cls, records: bytes | None) -> Iterator[Self]:
        """Yield the turns that were packed, oldest first; a damaged rest is passed over."""
        for sidecar, turn, text, conversation, count, *history, tokens, growth in _rows(_RECORD, records):
            yield cls(sidecar, turn, text, conversation, count, Past(GapHistory(*history), tokens, growth))


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


def look(client: Any, names: Sequence[bytes]) -> list[list[SharedTurn] | Exception]:
    """Return the turns under each name."""
    batch = client.pipeline(transaction=False)
    for name in names:
        batch.execute_command("GET", _place(name))
    found = _answers(batch.execute(raise_on_error=False))
    return [records if isinstance(records, Exception) else list(SharedTurn.all_in(records)) for records in found]


def take(client: Any, sidecar: bytes, wanted: Sequence[tuple[bytes, bytes, int]]) -> list[SharedTurn | Exception | None]:
    """Take away, under each name, the turn before.

    Args:
        sidecar: this one.
        wanted: the name; this sidecar's id of the turn before, empty if another one may have seen it; and the turn's own count.
    """
    commands: list[tuple[Any, ...]] = []
    for name, own, count in wanted:
        mine = sidecar + own if own else b""
        commands.append((1, _place(name), _RECORD.size, mine, max(count - 1, 0).to_bytes(4, "big"), EMPTY_LIFE_MS))
    found = _evaluated(client, TAKE, commands)
    return [next(SharedTurn.all_in(one)) if isinstance(one, bytes) else one for one in found]


def put(client: Any, turns: Sequence[tuple[bytes, SharedTurn]], horizon_s: float) -> list[Any]:
    """Leave turns under names."""
    most, life = _RECORD.size * LOOKED_AT, max(int(horizon_s * 1000), 1)
    return _evaluated(client, APPEND, [(1, _place(name), turn.pack(), most, life) for name, turn in turns])


def put_returns(client: Any, returns: Sequence[tuple[SharedTurn, float]]) -> list[Any]:
    """Leave for the sidecar of each turn when the next one came, seconds since the epoch."""
    most, life = _RETURN.size * MOST_RETURNS, int(RETURNS_LIFE_S * 1000)
    commands = [(1, _inbox(turn.sidecar), _RETURN.pack(turn.turn, at), most, life) for turn, at in returns]
    return _evaluated(client, APPEND, commands)


def take_returns(client: Any, sidecar: bytes) -> list[tuple[bytes, float]] | Exception:
    """Take away the ids of one's own turns that returned elsewhere, and when."""
    (found,) = _evaluated(client, EMPTY, [(1, _inbox(sidecar), EMPTY_LIFE_MS)])
    return found if isinstance(found, Exception) else list(_rows(_RETURN, found))


def _rows(form: struct.Struct, data: bytes | None) -> Iterator[Any]:
    data = data or b""
    return form.iter_unpack(data[: len(data) // form.size * form.size])


def _evaluated(client: Any, script: str, commands: list[tuple[Any, ...]]) -> list[Any]:
    return _answers(evaluate(client, script, commands, raise_on_error=False)) if commands else []


def _answers(answers: list[Any]) -> list[Any]:
    """Return answers as they came. Raises the first error that is about the server."""
    for answer in answers:
        if isinstance(answer, Exception) and cause_of(answer) not in REFUSALS:
            raise answer
    return answers


def _place(name: bytes) -> str:
    return PREFIX + name.hex()


def _inbox(sidecar: bytes) -> str:
    return f"{PREFIX}to:{sidecar.hex()}"
