"""Mooncake's traces (FAST'25): JSONL of `timestamp` ms, `input_length`, `output_length`, `hash_ids` of blocks.

Source: https://github.com/kvcache-ai/Mooncake (FAST25-release). Its blocks have 512 tokens; others write the same format with
blocks of their engine's size, which is found by the lengths. The ids are chained by prefix, and the last block may be partial.
Ids may be any whole numbers, so they are numbered from 0, which also chains ids of single blocks.
Conversations are not in the file, so they are recovered by prefix:
**a request continues the latest strictly earlier request all of whose full prompt blocks are its prefix**, the one
with the most blocks first. Blocks that many prompts share (a system prompt) tell of no conversation: a block counts as shared
once more than SHARED_AFTER different blocks have followed it, and a match must be deeper than those. Only requests already
seen decide, so a trace that is cut off gives the same conversations as the whole one up to the cut.

Limits:
- A prompt of no full block beyond the shared ones (in the conversation trace: under 1,024 tokens) leaves no trace of itself.
  Such a turn is marked as not linkable, and a later turn of its conversation counts as turn 1.
- A history that the application rewrote or truncated in an earlier block starts a new conversation.
- A question asked again (same prompt) and an edited one count as further turns. Two users with the same long document are
  separated only by what follows it: where the first one's question fits into his partial last block, they look like one.
- Turn numbers are lower bounds: some conversations began before the trace.

Measured on `mooncake_conversation_trace.jsonl`: 3,975 of 12,031 requests (33%) are turn 2 or later, 1 block is shared, and any
threshold from 8 to 32 moves that number by less than 1%.
"""

from dataclasses import dataclass
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any, Final

from lpc_apps.logs.records import Skipped, TraceError, read_records
from lpc_apps.logs.traces.aiperf import is_aiperf, read_aiperf
from lpc_apps.logs.traces.block_size import SIZED_BY, block_tokens_of
from lpc_apps.logs.traces.request import (
    BlockIds,
    Trace,
    TracedRequest,
    hashed_blocks,
    milliseconds,
    read_lines,
    refuse_uncomputed_row,
    tokens,
    turn_bucket,
)
from lpc_apps.logs.traces.sample import WHOLE, Sample

PUBLISHED_TOKENS: Final = 512
EPOCH_S: Final = 1e9, 1e10
"""Seconds since the epoch from 2001 to 2286. In milliseconds, a trace would begin at least 11 days after its start."""
SHARED_AFTER: Final = 16
"""A block with more different successors counts as shared by many conversations; forks of one user are fewer."""


@dataclass(frozen=True, slots=True)
class _Line:
    arrival: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    full: tuple[int, ...]
    """The blocks without a partial last one."""


@dataclass(frozen=True, slots=True)
class _Place:
    conversation: str
    turn: int
    linkable: bool


def read_mooncake(path: Path, sample: Sample = WHOLE) -> Trace:
    """Read a Mooncake trace, or a sample of it. AIPerf's sessions are read as such. Raises TraceError, as `read_lines`."""
    if any(found for _, found in islice(read_records(path, lambda record: [is_aiperf(record)], Skipped()), SIZED_BY)):
        return read_aiperf(path, sample)
    skipped = Skipped()
    size = block_tokens_of(path, PUBLISHED_TOKENS, lambda record: _lengths(record)[0])
    ids = BlockIds()

    def blocks(record: dict[str, Any]) -> list[int]:
        return hashed_blocks(record, tokens(record, "input_length", 1), size)

    check = sample.checker(lambda: (found for _, found in read_records(path, lambda one: [blocks(one)], Skipped())))

    def parse(record: dict[str, Any]) -> _Line:
        check(blocks(record))
        return _parse(record, ids, size)

    lines = read_lines(path, parse, skipped, lambda line: (line.arrival,))
    first = lines[0].arrival
    if EPOCH_S[0] <= first * 1000 < EPOCH_S[1]:
        raise TraceError(f"the timestamps of {path} look like seconds since the epoch: the format has milliseconds")
    conversations = _Conversations()
    requests = []
    for _, together in groupby(lines, key=lambda line: line.arrival):
        requests += [
            TracedRequest(
                line.arrival - first,
                line.input_tokens,
                line.output_tokens,
                line.blocks,
                place.conversation,
                place.turn,
                turn_bucket(place.turn),
                place.linkable,
            )
            for line, place in conversations.add(list(together))
        ]
    return Trace(path.name, size, requests, decodes=False, skipped=skipped)


class _Conversations:
    """Recovers conversations, one instant at a time, because requests of one instant do not continue each other."""

    def __init__(self) -> None:
        self._latest: dict[int, _Place] = {}  # by the last full block of the prompt
        self._followers: dict[int, int | set[int]] = {}
        """The only follower, or all of them, by block. Most have one, and a set for each took half of the memory."""
        self._count = 0

    def add(self, lines: list[_Line]) -> list[tuple[_Line, _Place]]:
        """Return the conversation and turn of each request of the next instant."""
        placed = [(line, self._place(line)) for line in lines]
        for line, place in placed:
            if place.linkable:
                self._latest[line.full[-1]] = place
            for block, follower in pairwise(line.blocks):
                known = self._followers.setdefault(block, follower)
                if isinstance(known, set):
                    if len(known) <= SHARED_AFTER:
                        known.add(follower)
                elif known != follower:
                    self._followers[block] = {known, follower}
        return placed

    def _place(self, line: _Line) -> _Place:
        linkable = bool(line.full) and not self._shared(line.full[-1])
        for block in reversed(line.full):
            if self._shared(block):
                break
            earlier = self._latest.get(block)
            if earlier is not None:
                return _Place(earlier.conversation, earlier.turn + 1, linkable)
        self._count += 1
        return _Place(f"c{self._count}", 1, linkable)

    def _shared(self, block: int) -> bool:
        known = self._followers.get(block)
        return isinstance(known, set) and len(known) > SHARED_AFTER


def _lengths(record: dict[str, Any]) -> tuple[float, int, int]:
    """Return arrival, tokens of the prompt, and tokens of the reply. Raises WrongRecord."""
    refuse_uncomputed_row(record)
    input_tokens = tokens(record, "input_length", 1)
    return milliseconds(record, "timestamp"), input_tokens, tokens(record, "output_length")


def _parse(record: dict[str, Any], ids: BlockIds, block_tokens: int) -> _Line:
    arrival, input_tokens, output_tokens = _lengths(record)
    blocks = ids.chain(hashed_blocks(record, input_tokens, block_tokens))
    return _Line(
        arrival,
        input_tokens,
        output_tokens,
        blocks,
        blocks[: input_tokens // block_tokens],
    )
