"""Logs of requests without times.

Each request repeats the messages before it, so a log of requests whose times were removed looks like many conversations that
share their beginnings.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from lpc.errors import UsageError
from lpc_apps.logs.chats.chat import REPLIES, TIMES
from lpc_apps.logs.chats.fields import object_of
from lpc_apps.logs.chats.parts import messages_of
from lpc_apps.logs.chats.request import LoggedMessage
from lpc_apps.logs.files import PACKED
from lpc_apps.logs.records import DatasetError, Record, TraceError, WrongRecord, json_lines

LOOKED_AT: Final = 1_000
"""Records that are compared, of each file."""
GROWING: Final = 3
GROWING_SHARE: Final = 0.05
"""Least number and share of records that continue another one in a log of requests. Two conversations may begin alike."""
REQUEST: Final = frozenset({"response", "request", "usage", "max_tokens", "max_completion_tokens", "temperature", "stream"})
"""Fields of a request or of its answer, next to messages."""


_REPLIED: Final = frozenset({*REPLIES, "request", "usage", "choices"})
_ASKING: Final = ("user", "system", "tool")


def untimed_requests(files: Sequence[Path], *, by_fields: bool = True) -> str | None:
    """Return how records without times show that they are requests and not whole conversations; None: they do not.

    Args:
        by_fields: fields of requests and answers show it as well.
    """
    return next(filter(None, (_shown(file, by_fields) for file in files)), None)


def _shown(path: Path, by_fields: bool) -> str | None:
    known: dict[tuple[LoggedMessage, ...], str] = {}
    growing: list[tuple[str, str]] = []
    read = requests = 0
    for place, record in islice(_records(path), LOOKED_AT):
        with suppress(WrongRecord, RecursionError):
            messages = messages_of(_messages(record))
            read += 1
            requests += messages[-1].role != "assistant" and not REQUEST.isdisjoint(record)
            before = next((at for length in range(len(messages) - 1, 0, -1) if (at := known.get(messages[:length]))), None)
            if before is not None:
                growing.append((place, before))
            known.setdefault(messages, place)
    if len(growing) >= max(GROWING, GROWING_SHARE * read):
        place, before = growing[0]
        return f"their prompts grow: record {place} continues record {before}"
    if by_fields and 2 * requests > read:
        return "they have a prompt and its answer, or settings of a request"
    return None


def whole_conversations(files: Sequence[Path]) -> str | None:
    """Return how records with times show that they are whole conversations and not requests; None: they do not.

    Such a record has several turns, ends with a reply, and continues no other record.
    """
    if not any(_may_end_with_reply(record) for file in files for _, record in islice(_records(file), LOOKED_AT)):
        return None
    known: set[int] = set()
    several: list[tuple[str, tuple[LoggedMessage, ...]]] = []
    for file in files:
        for place, record in islice(_records(file), LOOKED_AT):
            with suppress(WrongRecord, RecursionError):
                messages = messages_of(_messages(record))
                known.add(hash(messages))
                if (
                    messages[-1].role == "assistant"
                    and sum(message.is_user_turn for message in messages) > 1
                    and _REPLIED.isdisjoint(record)
                ):
                    several.append((f"{file.name}:{place.rpartition(':')[2]}", messages))
    alone = [
        place for place, messages in several if not any(hash(messages[:length]) in known for length in range(1, len(messages)))
    ]
    if 2 * len(alone) <= len(several):
        return None
    return f"{len(alone)} of {len(several)} with several turns end with a reply and continue no other: first {alone[0]}"


def _may_end_with_reply(record: Record) -> bool:
    """Return whether a record has no reply apart, and its last message may be one: it is not plainly of another role."""
    messages = _messages(record)
    last = messages[-1] if isinstance(messages, list) and messages else None
    return _REPLIED.isdisjoint(record) and not (isinstance(last, dict) and last.get("role") in _ASKING)


def _messages(record: Record) -> object:
    return record.get("messages", object_of(record.get("request")).get("messages"))


def _records(path: Path) -> Iterator[tuple[str, Record]]:
    with suppress(DatasetError, OSError):
        for place, record in json_lines(path):
            if isinstance(record, dict) and _messages(record) is not None:
                yield place, record


def with_pace(files: Sequence[Path], folder: Path, rate: float) -> list[Path]:
    """Copy a log of requests without times to ``folder``, each with the time of its place in the log; return the copies.

    Args:
        rate: requests per second.

    Raises:
        TraceError: a file cannot be read.
        UsageError: a record has a time.
    """
    copies, number = [], 0
    for place, file in enumerate(files):
        inside = folder / f"paced {place}"
        inside.mkdir()
        name = file.with_suffix("").name if file.suffix in PACKED else file.name
        copy = inside / f"{name.removesuffix('.json').removesuffix('.jsonl')}.jsonl"
        try:
            with copy.open("w") as written:
                for at, record in json_lines(file):
                    if isinstance(record, dict) and not set(TIMES).isdisjoint(record):
                        raise UsageError(f"record {at} has a time: leave out --rate")
                    timed = {"time": number / rate} | record if isinstance(record, dict) else str(record)
                    written.write(json.dumps(timed) + "\n")
                    number += 1
        except OSError as error:
            raise TraceError(f"cannot read {file}: {error.strerror or error}") from error
        except DatasetError as error:
            raise TraceError(str(error)) from error
        copies.append(copy)
    return copies
