"""AIPerf's traces: rows of Mooncake's format with sessions, `session_id`, and with `delay` in place of a time.

Source: https://github.com/ai-dynamo/aiperf, 0.13 (`mooncake_trace`, `aiperf synthesize agentic-code`). A row with a
`session_id` continues its session, in the order of the file: AIPerf sends all that came before, the replies of the server, and
what the row adds. So `input_length` and `hash_ids` of a row are those of its *new* tokens. If the ids of most later rows begin
with those of the row before, each row is a whole prompt instead, as other writers have it.

Tokens behind the last id, and those of a row without ids, are new ones that no other row has. A reply has all of its
`output_length`. So each token of a session is known by where it comes from, and blocks may be smaller than those of the ids:
the smallest of SIZES that does not make more than MOST_BLOCKS of the trace.

`timestamp` is in ms. A row with `delay` alone comes that many ms after the end of the answer, which takes its time at nominal
rates with nothing cached. Sessions of a trace without any `timestamp` all start with the trace.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from lpc_apps.logs.records import MISFIT_SHARE, Misfit, Skipped, TraceError, WrongRecord, read_records, refuse_remainder
from lpc_apps.logs.traces.block_size import fitting_size
from lpc_apps.logs.traces.request import (
    BlockIds,
    Trace,
    TracedRequest,
    hashed_blocks,
    ids_of,
    in_order,
    milliseconds,
    repeated,
    tokens,
    turn_bucket,
)
from lpc_apps.logs.traces.sample import WHOLE, Sample

PUBLISHED_TOKENS: Final = 512
"""Tokens of a block in AIPerf, unless `--isl-block-size` differs."""
SIZES: Final = (16, 32, 64, 128, 256)
MOST_BLOCKS: Final = 20_000_000
MOST_BLOCKS_WHOLE: Final = 5 * MOST_BLOCKS
"""Blocks of the ids' size, of which more would fill the memory."""
PREFILL_TOKENS_S: Final = 20_000.0
REPLY_TOKEN_S: Final = 0.01
"""Nominal rates, those of the simulator."""

_Source = tuple[object, int, int]
"""Source of consecutive tokens: a block's id, a row's unnamed tokens or a reply, and the first and last token of it."""


@dataclass(slots=True)
class _Row:
    place: str
    session: str
    is_named: bool
    time: float | None
    delay: float | None
    input_tokens: int
    output_tokens: int
    ids: list[int]
    block_tokens: int | None


@dataclass(slots=True)
class _Prompt:
    """A request. ``took``: seconds of its answer, if the next row's time is from its end; else None."""

    row: _Row
    arrival: float
    took: float | None
    input_tokens: int


def is_aiperf(record: dict[str, Any]) -> bool:
    """Return whether a row has what Mooncake's lack."""
    return "input_length" in record and not {"session_id", "delay"}.isdisjoint(record)


def read_aiperf(path: Path, sample: Sample = WHOLE) -> Trace:
    """Read a trace with sessions, or a sample of its sessions. Raises TraceError: see `lpc_apps.logs.records.read_records`."""
    skipped = Skipped()
    sessions = _sessions(path, skipped)
    rows = [row for session in sessions.values() for row in session]
    size = fitting_size(path, ((row.input_tokens, len(row.ids), row.block_tokens) for row in rows if row.ids), PUBLISHED_TOKENS)
    _refuse_other_sizes(path, rows, size)
    is_whole = _are_whole(path, sessions)
    timed = any(session[0].time is not None for session in sessions.values())
    check = sample.checker(lambda: (session[0].ids for session in sessions.values()))
    read: dict[str, list[_Prompt]] = {}
    misfits = Skipped()
    for name, session in sessions.items():
        try:
            check(session[0].ids)
            read[name] = list(_prompts(session, timed=timed, is_whole=is_whole))
        except WrongRecord as wrong:
            for row in session:
                skipped.note(str(wrong), row.place)
                if isinstance(wrong, Misfit):
                    misfits.note(str(wrong), row.place)
    if not read:
        raise TraceError(f"{path} has no session that can be read: {', '.join(skipped.counts)}")
    refuse_remainder(path, len(rows) - sum(misfits.counts.values()), misfits)
    starts = (
        (prompt.row.place, (session[0].arrival, name, at))
        for name, session in read.items()
        for at, prompt in enumerate(session)
    )
    kept = {name: read[name] for _, name, _ in in_order(starts, lambda found: found[:1], skipped, path)}
    total = sum(prompt.input_tokens + prompt.row.output_tokens for session in kept.values() for prompt in session)
    if total // size > MOST_BLOCKS_WHOLE:
        raise TraceError(f"the prompts of {path} have {total:,} tokens: too many for memory. Read a part of it, or --sample")
    fine = next((one for one in SIZES if size % one == 0 and total // one <= MOST_BLOCKS), size)
    requests = sorted(_requests(kept, size, fine, is_whole=is_whole), key=lambda request: request.arrival)
    return Trace(path.name, fine, requests, skipped=skipped)


def _sessions(path: Path, skipped: Skipped) -> dict[str, list[_Row]]:
    """Return the rows by session, in the order of the file; a session ends before its first row that cannot be read."""
    broken: dict[str, str] = {}
    local: dict[tuple[str, int], int] = {}
    """Names of ids that are of one session only."""
    alone = 0

    def parse(record: dict[str, Any]) -> Iterator[_Row]:
        nonlocal alone
        name = record.get("session_id")
        if name is None:
            alone += 1
            session = f"{alone}"
        elif isinstance(name, str | int) and not isinstance(name, bool):
            session = f"s:{name}"
        else:
            raise Misfit("session_id is neither text nor a whole number")
        if session in broken:
            raise Misfit("an earlier row of the session cannot be read")
        try:
            row = _row(record, session)
            scope = record.get("hash_id_scope")
            if scope == "local" and name is not None:
                row.ids = [local.setdefault((session, block), -1 - len(local)) for block in row.ids]
            elif scope not in (None, "global"):
                raise Misfit("hash_id_scope is not global, and the row has no session_id")
            yield row
        except WrongRecord as wrong:
            broken[session] = str(wrong)
            raise

    rows = []
    for place, row in read_records(path, parse, skipped):
        row.place = place
        rows.append(row)
    again = repeated([(row.place, _content(row)) for row in rows], lambda content: content[0], skipped)
    sessions: dict[str, list[_Row]] = {}
    for at, row in enumerate(rows):
        if at not in again:
            sessions.setdefault(row.session, []).append(row)
    return sessions


def _content(row: _Row) -> tuple[object, ...]:
    """Return what two records of one request have in common; of a row without a time or ids its place: turns may be alike."""
    if row.time is None or not row.ids:
        return (row.place,)
    return row.time, row.session if row.is_named else "", row.input_tokens, row.output_tokens, tuple(row.ids)


def _row(record: dict[str, Any], session: str) -> _Row:
    return _Row(
        "",
        session,
        record.get("session_id") is not None,
        None if record.get("timestamp") is None else milliseconds(record, "timestamp"),
        None if record.get("delay") is None else milliseconds(record, "delay"),
        tokens(record, "input_length", 1),
        tokens(record, "output_length"),
        ids_of(record, "hash_ids") if record.get("hash_ids") is not None else [],
        None if record.get("block_size") is None else tokens(record, "block_size", 1),
    )


def _refuse_other_sizes(path: Path, rows: list[_Row], size: int) -> None:
    """Raise TraceError if the ids of many rows do not cover their tokens: the size is then a guess, or ids are of prefixes."""
    hashed = [row for row in rows if row.ids]
    wrong = [row for row in hashed if not _covers(row, size)]
    if len(wrong) > MISFIT_SHARE * len(hashed):
        raise TraceError(
            f"blocks of no size fit input_length and hash_ids of most rows of {path}: {size} tokens fit "
            f"{len(hashed) - len(wrong)} of {len(hashed)} (first other: {wrong[0].place}). Ids must cover the whole prompt"
        )


def _covers(row: _Row, size: int) -> bool:
    try:
        hashed_blocks({"hash_ids": row.ids}, row.input_tokens, size)
    except WrongRecord:
        return False
    return True


def _are_whole(path: Path, sessions: dict[str, list[_Row]]) -> bool:
    """Return whether rows have the ids of whole prompts. Raises TraceError if they differ in it."""
    found = Counter[bool]()
    for session in sessions.values():
        for before, row in pairwise(session):
            full = before.ids[:-1] or before.ids
            if full and row.ids:
                found[row.ids[: len(full)] == full] += 1
    if min(found[True], found[False]) > MISFIT_SHARE * found.total():
        raise TraceError(
            f"{found[True]} of {found.total()} later rows of the sessions of {path} repeat the ids of the row before, and the "
            "others do not: it is not known whether input_length is of a whole prompt or of what is new"
        )
    return found[True] > found[False]


def _prompts(session: list[_Row], *, timed: bool, is_whole: bool) -> Iterator[_Prompt]:
    """Yield the requests of a session. Raises Misfit."""
    arrival = end = 0.0
    history = 0
    for at, row in enumerate(session):
        if row.time is not None:
            arrival = max(row.time, arrival)
        elif at:
            arrival = end + (row.delay or 0.0)
        elif timed:
            raise Misfit("the session's first row has no timestamp, which others have")
        else:
            arrival = 0.0
        input_tokens = row.input_tokens if is_whole else history + row.input_tokens
        took = input_tokens / PREFILL_TOKENS_S + row.output_tokens * REPLY_TOKEN_S
        end = arrival + took
        yield _Prompt(row, arrival, took if _delayed(session, at) else None, input_tokens)
        history = input_tokens + row.output_tokens


def _delayed(session: list[_Row], at: int) -> bool:
    """Return whether the next row's time depends on the end of this one's answer."""
    return at + 1 < len(session) and session[at + 1].time is None


def _requests(sessions: dict[str, list[_Prompt]], size: int, fine: int, *, is_whole: bool) -> Iterator[TracedRequest]:
    chains, names = BlockIds(), dict[tuple[_Source, ...], int]()
    first = min(session[0].arrival for session in sessions.values())
    for name, session in sessions.items():
        said = _Tokens(fine, names)
        for at, prompt in enumerate(session):
            said = _Tokens(fine, names) if is_whole else said
            row = prompt.row
            said.add_ids(row.ids, row.input_tokens, size, row.place)
            blocks = said.blocks()
            said.add(("reply", name, at), row.output_tokens)
            both = chains.chain(said.blocks() if not is_whole else blocks)
            yield TracedRequest(
                arrival=prompt.arrival - first,
                input_tokens=prompt.input_tokens,
                output_tokens=row.output_tokens,
                blocks=both[: len(blocks)],
                conversation=name,
                turn=at + 1,
                category=turn_bucket(at + 1),
                with_reply=None if is_whole else both,
                served_s=prompt.took,
            )


class _Tokens:
    """Tokens from the start of a session, in blocks."""

    def __init__(self, size: int, names: dict[tuple[_Source, ...], int]) -> None:
        self._size = size
        self._names = names
        self._blocks: list[int] = []
        self._open: list[_Source] = []
        self._filled = 0

    def add_ids(self, ids: list[int], length: int, size: int, place: str) -> None:
        """Add the tokens of a row; those behind its last id are the row's own."""
        for at, block in enumerate(ids):
            self.add(block, min(size, length - at * size))
        self.add(("row", place), length - len(ids) * size)

    def add(self, source: object, length: int) -> None:
        """Add tokens that are equal wherever their source is."""
        at = 0
        while at < length:
            taken = min(self._size - self._filled, length - at)
            self._open.append((source, at, at + taken))
            self._filled += taken
            at += taken
            if self._filled == self._size:
                self._blocks.append(self._names.setdefault(tuple(self._open), len(self._names)))
                self._open, self._filled = [], 0

    def blocks(self) -> list[int]:
        """Return a number for each full block; equal numbers are equal tokens."""
        return list(self._blocks)
