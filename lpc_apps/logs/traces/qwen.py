"""Qwen-Bailian traces (KVCache in the wild, ATC'25, arXiv 2506.02634): JSONL of one request each.

Fields: `chat_id`, `parent_chat_id` (-1 for none), `timestamp` s, `input_length`, `output_length`, `type` (text, search, image,
file), `turn`, `hash_ids` of blocks, 16 tokens each in the published traces. The publisher describes the ids as hashes of
single blocks, so they are chained here (which has no effect on chained ids). A conversation's name is the root of its chain of
parents; if the root arrived before the trace began, the oldest known parent.

Optional fields, which `lpc export` writes: `block_size`, `reply_hash_ids` of the blocks behind the prompt's full ones,
`reply_end`, and `served` s.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lpc_apps.logs.records import Record, Skipped, WrongRecord, read_records
from lpc_apps.logs.traces.block_size import block_tokens_of
from lpc_apps.logs.traces.request import (
    BlockIds,
    Trace,
    TracedRequest,
    has_ids,
    hashed_blocks,
    ids_of,
    read_lines,
    refuse_uncomputed_row,
    seconds,
    tokens,
    whole,
)
from lpc_apps.logs.traces.sample import WHOLE, Sample

PUBLISHED_TOKENS: Final = 16
NO_PARENT: Final = -1


@dataclass(frozen=True, slots=True)
class _Line:
    chat: int
    parent: int
    arrival: float
    input_tokens: int
    output_tokens: int
    category: str
    turn: int
    blocks: tuple[int, ...]
    with_reply: tuple[int, ...] | None
    reply_end: str
    served: float | None


def has_shape(record: Record) -> bool:
    """Return whether a record is of this format, by its fields."""
    return has_ids(record) and "chat_id" in record


def read_qwen(path: Path, sample: Sample = WHOLE) -> Trace:
    """Read a Qwen-Bailian trace, or a sample of it. Raises TraceError: see `read_lines`."""
    skipped = Skipped()
    size = block_tokens_of(path, PUBLISHED_TOKENS, _new())
    ids, chats = BlockIds(), set[int]()

    def blocks(record: dict[str, Any]) -> list[int]:
        return hashed_blocks(record, tokens(record, "input_length", 1), size)

    check = sample.checker(lambda: (found for _, found in read_records(path, lambda one: [blocks(one)], Skipped())))

    def parse(record: dict[str, Any]) -> _Line:
        check(blocks(record))
        line = _parse(record, ids, size)
        _refuse_repeated(line.chat, chats)
        return line

    # Sorted by turn as well, because a parent may have its child's time stamp.
    lines = read_lines(path, parse, skipped, lambda line: (line.arrival, line.turn))
    first = lines[0].arrival
    roots: dict[int, int] = {}
    requests = []
    for line in lines:
        root = line.chat if line.parent == NO_PARENT else roots.get(line.parent, line.parent)
        roots[line.chat] = root
        requests.append(
            TracedRequest(
                arrival=line.arrival - first,
                input_tokens=line.input_tokens,
                output_tokens=line.output_tokens,
                blocks=line.blocks,
                conversation=str(root),
                turn=line.turn,
                category=line.category,
                with_reply=line.with_reply,
                reply_end=line.reply_end,
                served_s=line.served,
            )
        )
    return Trace(path.name, size, requests, skipped=skipped)


def _new() -> Callable[[dict[str, Any]], float]:
    """Return a function that returns a record's arrival, and raises WrongRecord for one that is skipped whatever a block is."""
    chats = set[int]()

    def arrival(record: dict[str, Any]) -> float:
        _check(record)
        found = seconds(record, "timestamp")
        _refuse_repeated(whole(record, "chat_id", 0), chats)
        return found

    return arrival


def _refuse_repeated(chat: int, chats: set[int]) -> None:
    if chat in chats:
        raise WrongRecord("chat_id is another line's")
    chats.add(chat)


def _check(record: dict[str, Any]) -> None:
    """Raise WrongRecord for a field that is not what the publisher describes; without `hash_ids`."""
    refuse_uncomputed_row(record)
    if not isinstance(record.get("type"), str) or not record["type"]:
        raise WrongRecord("type is not text")
    if not isinstance(record.get("reply_end", ""), str):
        raise WrongRecord("reply_end is not text")
    whole(record, "chat_id", 0), whole(record, "parent_chat_id", NO_PARENT), whole(record, "turn", 1)
    tokens(record, "input_length", 1), tokens(record, "output_length"), seconds(record, "timestamp")
    if "served" in record:
        seconds(record, "served")
    if "reply_hash_ids" in record:
        ids_of(record, "reply_hash_ids")


def _parse(record: dict[str, Any], ids: BlockIds, block_tokens: int) -> _Line:
    _check(record)
    input_tokens = tokens(record, "input_length", 1)
    blocks = hashed_blocks(record, input_tokens, block_tokens)
    full = blocks[: input_tokens // block_tokens]
    return _Line(
        whole(record, "chat_id", 0),
        whole(record, "parent_chat_id", NO_PARENT),
        seconds(record, "timestamp"),
        input_tokens,
        tokens(record, "output_length"),
        record["type"],
        whole(record, "turn", 1),
        ids.chain(blocks),
        ids.chain([*full, *ids_of(record, "reply_hash_ids")]) if "reply_hash_ids" in record else None,
        record.get("reply_end", ""),
        seconds(record, "served") if "served" in record else None,
    )
