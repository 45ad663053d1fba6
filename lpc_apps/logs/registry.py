"""Datasets by name: those of `lpc_apps.logs.datasets`, and an operator's own log."""

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from lpc.errors import UsageError
from lpc_apps.logs.datasets.conversation import Conversation
from lpc_apps.logs.datasets.conversations import load_conversations
from lpc_apps.logs.datasets.sharegpt import load_sharegpt, sharegpt_path
from lpc_apps.logs.records import DatasetError, Skipped, TraceError, log_files
from lpc_apps.logs.traces.chat import chat_conversations
from lpc_apps.logs.untimed import untimed_requests


def _chat(path: Path, skipped: Skipped) -> Iterator[Conversation]:
    """Yield the conversations of an operator's own log, which is also a trace."""
    try:
        yield from chat_conversations(path, skipped=skipped)
    except TraceError as error:
        raise DatasetError(str(error)) from error


LOADERS: Final[dict[str, Callable[[Path, Skipped], Iterator[Conversation]]]] = {
    "sharegpt": load_sharegpt,
    "chat": _chat,
    "conversations": load_conversations,
}
if TYPE_CHECKING:
    DatasetName = str
else:
    DatasetName = Literal[tuple(LOADERS)]
    """Name of a dataset, for the command line."""


def load(name: str, path: Path | None = None, skipped: Skipped | None = None) -> Iterator[Conversation]:
    """Yield the conversations of a dataset.

    Args:
        name: one of LOADERS.
        path: a file or folder (`lpc_apps.logs.records.records_of`); None: ShareGPT from its package.
        skipped: counts skipped records.

    Raises:
        UsageError: the name is unknown or does not fit the other arguments.
        DatasetError: the path is missing, or the first conversation cannot be read; while iterating see `reading.read`.
    """
    if name not in LOADERS:
        raise UsageError(f"unknown dataset {name}: known are {', '.join(LOADERS)}")
    if path is None:
        if name != "sharegpt":
            raise UsageError(f"the dataset {name} does not come with this package: give its file or folder")
        path = sharegpt_path()
    if name == "conversations":
        _refuse_requests(path)
    conversations = LOADERS[name](path, skipped if skipped is not None else Skipped())
    # Read the first one here, because the caller may work for minutes before it iterates.
    first = next(conversations, None)
    if first is None:
        raise DatasetError(f"{path} has no whole conversation of the dataset {name}")
    return chain([first], conversations)


def _refuse_requests(path: Path) -> None:
    """Raise DatasetError if a file of conversations has requests: each but the last would look like a user who left."""
    try:
        files = log_files(path) if path.exists() else []
    except DatasetError:  # the loader says more
        return
    if (shown := untimed_requests(files, by_fields=False)) is not None:
        raise DatasetError(
            f"{path} has requests and not conversations ({shown}): write the time of each in a field `time` and use "
            "the dataset chat, or keep only the last request of each conversation"
        )
