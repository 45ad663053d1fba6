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

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, islice
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
class Nameless:
    """A request without the name of its conversation. ``blocks``: chained ids, of which the first ``full`` are full blocks."""

    arrival: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    full: int


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

    def parse(record: dict[str, Any]) -> Nameless:
        prompt = blocks(record)
        check(prompt)
        arrival, input_tokens, output_tokens = _lengths(record)
        return Nameless(arrival, input_tokens, output_tokens, ids.chain(prompt), min(input_tokens // size, len(prompt)))

    lines = read_lines(path, parse, skipped, lambda line: (line.arrival,))
    if EPOCH_S[0] <= lines[0].arrival * 1000 < EPOCH_S[1]:
        raise TraceError(f"the timestamps of {path} look like seconds since the epoch: the format has milliseconds")
    return Trace(path.name, size, requests_of(lines), decodes=False, skipped=skipped)


def requests_of(lines: Sequence[Nameless]) -> list[TracedRequest]:
    """Return requests, at least one and in order of arrival, with the conversations that their blocks show."""
    first = lines[0].arrival
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
    return requests


class _Conversations:
    """Recovers conversations, one instant at a time, because requests of one instant do not continue each other.

    Ids are chained, so a prompt has blocks of earlier ones at its start, and none behind its first new one.
    """

    def __init__(self) -> None:
        self._latest: dict[int, _Place] = {}  # by the last full block of the prompt
        self._seen = bytearray()
        """1 for each block that an earlier prompt has, by its id: these count up from 0."""
        self._ends: set[int] = set()
        """Blocks seen that none has followed."""
        self._forks: Counter[int] = Counter()
        """Different followers of a block, without the first one."""
        self._count = 0

    def add(self, lines: list[Nameless]) -> list[tuple[Nameless, _Place]]:
        """Return the conversation and turn of each request of the next instant."""
        placed = [(line, self._place(line)) for line in lines]
        for line, place in placed:
            if place.linkable:
                self._latest[line.blocks[line.full - 1]] = place
            self._see(line.blocks)
        return placed

    def _see(self, blocks: tuple[int, ...]) -> None:
        known = self._known(blocks)
        if known == len(blocks):
            return
        if known:
            before = blocks[known - 1]
            if before in self._ends:
                self._ends.remove(before)
            else:
                self._forks[before] += 1
        self._seen.extend(bytes(max(blocks[-1] + 1 - len(self._seen), 0)))
        for block in blocks[known:]:
            self._seen[block] = True
        self._ends.add(blocks[-1])

    def _place(self, line: Nameless) -> _Place:
        linkable = line.full > 0 and not self._shared(line.blocks[line.full - 1])
        for block in reversed(line.blocks[: min(self._known(line.blocks), line.full)]):
            if self._shared(block):
                break
            earlier = self._latest.get(block)
            if earlier is not None:
                return _Place(earlier.conversation, earlier.turn + 1, linkable)
        self._count += 1
        return _Place(f"c{self._count}", 1, linkable)

    def _known(self, blocks: tuple[int, ...]) -> int:
        """Return how many of a prompt's blocks earlier prompts have."""
        seen, size = self._seen, len(self._seen)
        return bisect_left(blocks, True, key=lambda block: block >= size or not seen[block])

    def _shared(self, block: int) -> bool:
        return self._forks.get(block, 0) >= SHARED_AFTER


def _lengths(record: dict[str, Any]) -> tuple[float, int, int]:
    """Return arrival, tokens of the prompt, and tokens of the reply. Raises WrongRecord."""
    refuse_uncomputed_row(record)
    input_tokens = tokens(record, "input_length", 1)
    return milliseconds(record, "timestamp"), input_tokens, tokens(record, "output_length")
