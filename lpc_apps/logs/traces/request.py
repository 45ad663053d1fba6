"""Requests of traces, and parsing of lines in all trace readers.

Wrong lines are counted by reason, and the first of each reason is reported by file and line. A file is rejected if nearly all
are wrong. Messages contain no text of a line, which may be a user's.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from lpc_apps.logs.chats.fields import MOST_TOKENS, UNITS
from lpc_apps.logs.chats.outcome import CACHED, ERRORS, FAILURE, OUTCOMES, SUCCESS, refuse_uncomputed
from lpc_apps.logs.records import MISFIT_ALWAYS, Misfit, Record, Skipped, WrongRecord, read_records, refuse_remainder

LATEST: Final = 1e14
"""The highest time stamp, in any unit: milliseconds since the epoch stay below it for a thousand years."""
FAR_S: Final = 10 * 365 * 86_400.0
"""Seconds from a log's median time to an absurd one: of a clock that was not set, or in other units."""

FAR_AWAY: Final = "time is more than 10 years from the others'"
TWICE: Final = "logged twice: equal to another record in everything, also in its time"
TWICE_SHARE: Final = 0.01
"""Share of records up to which equal ones are requests of one moment: 1 of Mooncake's 12,031 is equal to another."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request of a trace.

    Attributes:
        arrival: seconds since the trace's first request.
        input_tokens: tokens of the prompt including history.
        output_tokens: tokens of the reply.
        blocks: content ids of the prompt's blocks; equal ids mean equal prefixes up to the end of that block. The last block
            may be partial; then its id identifies the tokens that it has.
        conversation: name of the conversation; unique in the trace.
        turn: number of the turn in its conversation, from 1; a lower bound if the log lacks earlier turns.
        category: category in the trace's own terms.
        linkable: whether a later turn could be recognised as part of this conversation. If not, it is unknown whether the
            conversation continued, and the turn is not an example.
        with_reply: content ids of the blocks of prompt and reply together; None if the format lacks the reply's text.
        reply_end: kind of the reply's end as the engine saw it: a tool call, the end of a turn; empty: unknown.
        served_s: seconds from arrival to the end of the reply; None if unknown.
        user: user's name in the log's own terms; empty: unknown.
        tenant: its cache salt; empty without one.
        text_blocks: content ids of blocks of the text of all messages, without roles, tools and arguments; empty: not read.
    """

    arrival: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    conversation: str
    turn: int
    category: str
    linkable: bool = True
    with_reply: tuple[int, ...] | None = None
    reply_end: str = ""
    served_s: float | None = None
    user: str = ""
    tenant: str = ""
    text_blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Trace:
    """A trace: its requests in order of arrival, at least one.

    Attributes:
        name: the file's name.
        block_tokens: tokens of a full block.
        requests: requests in order of arrival; the first arrives at 0.
        start: seconds since the epoch of the first request; None if unknown.
        skipped: skipped records.
        decodes: whether its engines decode, so that replies are cached. Mooncake's only prefill.
        estimated: number of parts by kind whose tokens are estimated or which are not in the blocks.
        doubt: why the times seem to be in another unit than the format's, and what to do; empty: they do not.
    """

    name: str
    block_tokens: int
    requests: list[TracedRequest]
    start: float | None = None
    decodes: bool = True
    skipped: Skipped = field(default_factory=Skipped, compare=False)
    estimated: dict[str, int] = field(default_factory=dict, compare=False)
    doubt: str = ""

    @property
    def duration(self) -> float:
        """Seconds from the first arrival to the last."""
        return self.requests[-1].arrival

    def reading(self) -> dict[str, Any]:
        """Return what was read of the file: requests, skipped records with the place of the first, and estimated parts."""
        return {
            "file": self.name,
            "requests": len(self.requests),
            "skipped": self.skipped.reading(),
            "estimated": self.estimated,
            **({"doubt": self.doubt} if self.doubt else {}),
        }


class _Run:
    """Consecutive blocks, their content ids, and the following runs by first block."""

    __slots__ = ("blocks", "following", "ids")

    def __init__(self, blocks: Any, ids: list[int]) -> None:
        self.blocks = blocks
        self.ids = ids
        self.following: dict[Any, _Run] = {}

    def split(self, length: int) -> None:
        """Move the blocks after the first ``length`` ones to a new run."""
        rest = _Run(self.blocks[length:], self.ids[length:])
        rest.following = self.following
        self.following = {rest.blocks[0]: rest}
        del self.blocks[length:], self.ids[length:]


class BlockIds:
    """Chains ids or digests of single blocks into content ids: equal if all blocks up to and including this one are equal.

    A radix tree: a prompt that extends an earlier one is compared run by run, not block by block.
    """

    def __init__(self) -> None:
        self._start: dict[Hashable, dict[Any, _Run]] = {}
        self._next = 0

    def chain(self, blocks: Sequence[int] | Sequence[bytes], within: Hashable = None) -> tuple[int, ...]:
        """Return one content id per block; ids count up from 0 in order of first appearance.

        Args:
            within: scope of the blocks' ids; chains of different scopes share nothing.
        """
        ids: list[int] = []
        following = self._start.setdefault(within, {})
        at, end = 0, len(blocks)
        blocks = packed(blocks)
        while at < end:
            run = following.get(blocks[at])
            if run is None:
                new = list(range(self._next, self._next + end - at))
                self._next += end - at
                following[blocks[at]] = _Run(blocks[at:], new)
                ids += new
                break
            here = blocks[at : at + len(run.blocks)]
            if here != run.blocks:
                same = next((i for i, (a, b) in enumerate(zip(here, run.blocks, strict=False)) if a != b), len(here))
                if same < len(run.blocks):  # else one of the two is not packed
                    run.split(same)
            ids += run.ids
            at += len(run.ids)
            following = run.following
        return tuple(ids)


def packed(blocks: Sequence[int] | Sequence[bytes]) -> Any:
    """Return whole numbers as an array, which takes a fifth of the memory and is compared faster; others in a list."""
    if isinstance(blocks, array):
        return blocks
    try:
        return array("q", blocks)
    except (TypeError, OverflowError):
        return list(blocks)


def read_lines(path: Path, parse: Callable[[Record], T], skipped: Skipped, key: Callable[[T], tuple[float, ...]]) -> list[T]:
    """Return ``parse(object)`` of every line of a JSONL file, in order.

    Args:
        parse: raises WrongRecord for an invalid object.
        skipped: counts wrong lines.
        key: orders the results; its first number is the time, seconds.

    Raises:
        TraceError: see `lpc_apps.logs.records.read_records`.
    """
    return in_order(read_records(path, lambda record: [parse(record)], skipped), key, skipped, path)


def in_order(
    found: Iterable[tuple[str, T]], key: Callable[[T], tuple[float, ...]], skipped: Skipped, path: Path | None = None
) -> list[T]:
    """Return placed results in order, without those that count for nothing.

    These are results whose time is absurd: more than FAR_S from the median. With ``path`` also those that are equal to another
    one, if so many are that the log has records twice: more than TWICE_SHARE and MISFIT_ALWAYS.

    Args:
        path: the log, to refuse it if many times are absurd.

    Raises:
        TraceError: too many times are absurd, so two units or clocks are in the log.
    """
    ordered = sorted(found, key=lambda item: key(item[1]))
    median = key(ordered[len(ordered) // 2][1])[0]
    kept, far = [], Skipped()
    for place, item in ordered:
        if abs(key(item)[0] - median) > FAR_S:
            skipped.note(FAR_AWAY, place)
            far.note(FAR_AWAY, place)
        else:
            kept.append((place, item))
    if path is None:
        return [item for _, item in kept]
    refuse_remainder(path, len(kept), far)
    again = repeated(kept, key, skipped)
    return [item for at, (_, item) in enumerate(kept) if at not in again]


def repeated(placed: Sequence[tuple[str, T]], key: Callable[[T], Hashable], skipped: Skipped) -> set[int]:
    """Return the numbers of placed results that are equal to an earlier one, and count them.

    It is empty if they are few, and for a burst: if all requests have one time, equal ones are several requests.

    Args:
        key: returns a result's time.
    """
    alike = Counter(key(item) for _, item in placed)
    seen, again = set[T](), list[int]()
    for at, (_, item) in enumerate(placed):
        if alike[key(item)] > 1:
            if item in seen:
                again.append(at)
            seen.add(item)
    if len(alike) == 1 or len(again) <= max(MISFIT_ALWAYS, TWICE_SHARE * len(placed)):
        return set()
    for at in again:
        skipped.note(TWICE, placed[at][0], other=True)
    return set(again)


def turn_bucket(turn: int) -> str:
    """Return the class of a turn number for traces without classes: turn1, turn2, turn3-4, turn5-8, turn9+."""
    if turn <= 2:
        return f"turn{turn}"
    return "turn3-4" if turn <= 4 else "turn5-8" if turn <= 8 else "turn9+"


def whole(record: dict[str, Any], name: str, at_least: int, at_most: int = 2**63) -> int:
    """Return an integer field. Raises WrongRecord."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise WrongRecord(f"{name} is not a whole number from {at_least}")
    if value > at_most:
        raise WrongRecord(f"{name} is above {at_most:,}")
    return value


def tokens(record: dict[str, Any], name: str, at_least: int = 0) -> int:
    """Return a field that is a number of tokens. Raises WrongRecord."""
    return whole(record, name, at_least, MOST_TOKENS)


def seconds(record: dict[str, Any], name: str) -> float:
    """Return a field that is a number from 0 to LATEST. Raises Misfit."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LATEST:
        raise Misfit(f"{name} is not a number from 0 to {LATEST:.0e}")
    return float(value)


def milliseconds(record: dict[str, Any], name: str) -> float:
    """Return seconds of a field in milliseconds; from 1e14 on in microseconds or nanoseconds since the epoch. Raises Misfit."""
    value = record.get(name)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        value = int(value)  # as LMBench's trace has its nanoseconds
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < UNITS[-1][0]:
        raise Misfit(f"{name} is not a number of milliseconds")
    latest, unit = UNITS[1]
    if value >= latest:
        unit = next(unit for latest, unit in UNITS[2:] if value < latest)
    return float(value / unit)


def ids_of(record: dict[str, Any], name: str) -> list[int]:
    """Return a field that is a list of whole numbers. Raises WrongRecord."""
    ids = record.get(name)
    if not isinstance(ids, list) or not {*map(type, ids)} <= {int}:
        raise WrongRecord(f"{name} is not a list of whole numbers")
    return ids


def has_ids(record: Record) -> bool:
    """Return whether a record has block ids and the length of the prompt, as in the formats of Mooncake and Qwen."""
    return "hash_ids" in record and "input_length" in record


_OUTCOME: Final = frozenset({*OUTCOMES, *SUCCESS, *FAILURE, *ERRORS, *CACHED})


def refuse_uncomputed_row(record: Record) -> None:
    """Raise OtherRecord for a row that names a failed attempt, or an answer of a cache."""
    if not _OUTCOME.isdisjoint(record):
        refuse_uncomputed(record, replied=bool(record.get("output_length")))


def check_ids(record: Record) -> None:
    """Raise WrongRecord for a record whose ids, length or time cannot be read."""
    ids_of(record, "hash_ids"), tokens(record, "input_length", 1), milliseconds(record, "timestamp")


def hashed_blocks(record: dict[str, Any], input_tokens: int, block_tokens: int) -> list[int]:
    """Return the field hash_ids: one id per full block, and optionally one for a partial last block. Raises WrongRecord.

    A record with `block_size` may have fewer ids: of an export whose prompts had more tokens than their text shows.
    """
    ids = ids_of(record, "hash_ids")
    if record.get("hash_id_scope") not in (None, "global"):
        raise Misfit("hash_id_scope is not global, and the row has no session_id")
    if "block_size" in record and record["block_size"] != block_tokens:
        raise Misfit("block_size is not the first record's")
    if "block_size" in record and len(ids) <= -(-input_tokens // block_tokens):
        return ids
    if len(ids) not in (input_tokens // block_tokens, -(-input_tokens // block_tokens)):
        raise Misfit(f"hash_ids does not cover input_length in blocks of {block_tokens}")
    return ids
