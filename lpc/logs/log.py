"""One way into every log: `open_log` gives its format, its requests and its trace, from a file, a pipe or standard input.

with open_log("traffic.jsonl.zst") as log:
    for place, request in log.requests(skipped):  # formats with text
        ...
    trace = log.trace()  # all formats with times: blocks, arrivals, conversations
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from lpc.errors import UsageError
from lpc.logs.chats import READERS, read_chats
from lpc.logs.chats.request import LoggedRequest
from lpc.logs.recognition import recognise
from lpc.logs.records import DatasetError, Skipped, TraceError, log_files
from lpc.logs.traces import FORMATS as WITH_TIMES
from lpc.logs.traces import Trace, open_trace
from lpc.logs.traces.agents import ACTIVE_SESSIONS

CONVERSATIONS: Final = "conversations"
"""Format of conversations without times."""
FORMATS: Final = (*WITH_TIMES, CONVERSATIONS)
STANDARD_INPUT: Final = Path("-")


@dataclass(frozen=True)
class Log:
    """A log whose format is known.

    Attributes:
        path: a file, or a folder of the log's files. Of a stream it is a copy, which `open_log` removes.
        format: one of FORMATS.
        recognised: whether the format was recognised by the log's fields; False: it was given.
    """

    path: Path
    format: str
    recognised: bool

    @property
    def has_text(self) -> bool:
        """Whether the log has the messages of requests with times: `requests` works."""
        return self.format in READERS

    def requests(self, skipped: Skipped) -> Iterator[tuple[str, LoggedRequest]]:
        """Yield place and contents of the requests, in the order of the file, which may not be that of time.

        Args:
            skipped: counts the records that are left out, by reason.

        Raises:
            UsageError: the format has no text.
            TraceError: see `lpc.logs.records.read_records`.
        """
        if not self.has_text:
            raise UsageError(f"a log of the format {self.format} has no text of requests: use one of {', '.join(READERS)}")
        return read_chats(self.path, self.format, skipped)

    def with_times(self) -> "Log":
        """Return this log. Raises UsageError if its requests have no times, and so no order."""
        if self.format == CONVERSATIONS:
            raise UsageError(
                f"{self.path.name} has conversations without times, so its requests have no order: give a log of requests"
            )
        return self

    def trace(self, *, active: int = ACTIVE_SESSIONS, seed: int = 0) -> Trace:
        """Return the requests in order of arrival, with blocks instead of text. Arguments and errors: `open_trace`."""
        return open_trace(self.path, self.format, active=active, seed=seed)


@contextmanager
def open_log(source: Path | str | Sequence[Path], format: str | None = None) -> Iterator[Log]:  # noqa: A002
    """Yield a log. A stream is copied to a file that only this user can read, because a log is read more than once.

    Args:
        source: a file, which may be compressed with gzip or Zstandard, a folder of such files, or several of both. Their
            requests are put in order of time. Or a named pipe, or `-`: standard input.
        format: one of FORMATS; None: recognise it.

    Raises:
        UsageError: the format is unknown or not recognised.
        TraceError: the log cannot be read.
    """
    sources = [Path(source)] if isinstance(source, Path | str) else list(source)
    if format is not None and format not in FORMATS:
        raise UsageError(f"unknown log format {format!r:.40}: use one of {', '.join(FORMATS)}")
    with TemporaryDirectory(prefix="lpc-") as folder:
        try:
            source = path = sources[0]
            if len(sources) > 1:
                path = _together(sources, Path(folder))
            elif source == STANDARD_INPUT:
                path = Path(folder) / "standard input"
                with path.open("wb") as copy:
                    shutil.copyfileobj(sys.stdin.buffer, copy)
            elif source.is_fifo():
                path = Path(folder) / source.name
                with source.open("rb") as stream, path.open("wb") as copy:
                    shutil.copyfileobj(stream, copy)
        except DatasetError as error:
            raise TraceError(str(error)) from error
        except OSError as error:
            raise TraceError(f"cannot read {source}: {error.strerror or error}") from error
        yield Log(path, format or recognise(path), recognised=format is None)


def _together(sources: Sequence[Path], within: Path) -> Path:
    """Return a folder with links to files and to the files of folders. Raises UsageError, DatasetError."""
    folder = within / f"{sources[0].name} and {len(sources) - 1} more"
    files = [file for source in sources for file in log_files(source)]
    if len({file.resolve() for file in files}) < len(files):
        raise UsageError("the same file is given twice, so its requests would count twice: name each file once")
    for number, file in enumerate(files, 1):
        if not file.is_file():
            raise UsageError(f"{file} is not a file: give several files and folders, or one stream")
        link = folder / str(number) / file.name
        link.parent.mkdir(parents=True)
        link.symlink_to(file.resolve())
    return folder
