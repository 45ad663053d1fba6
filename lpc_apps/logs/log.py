"""One way into every log: `open_log` gives its format, its requests and its trace, from files, folders or streams.

with open_log("traffic.jsonl.zst") as log:
    for place, request in log.requests(skipped):  # formats with text
        ...
    trace = log.trace()  # all formats with times: blocks, arrivals, conversations
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from lpc.errors import UsageError
from lpc_apps.logs.chats import read_chats
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.files import files_of, linked
from lpc_apps.logs.formats import CONVERSATIONS, FORMATS, WITH_TEXT, open_trace
from lpc_apps.logs.recognition import is_batch, recognise
from lpc_apps.logs.records import Skipped, TraceError
from lpc_apps.logs.traces import Trace
from lpc_apps.logs.traces.agents import ACTIVE_SESSIONS
from lpc_apps.logs.untimed import untimed_requests, whole_conversations, with_pace


@dataclass(frozen=True)
class Log:
    """A log whose format is known.

    Attributes:
        path: a file. Of a stream it is a copy, from several places a folder of links; `open_log` removes both.
        format: one of FORMATS.
        recognised: whether the format was recognised by the log's fields; False: it was given.
    """

    path: Path
    format: str
    recognised: bool

    @property
    def has_text(self) -> bool:
        """Whether the log has the messages of requests with times: `requests` works."""
        return self.format in WITH_TEXT

    @property
    def has_names(self) -> bool:
        """Whether the log has the conversations of its requests; else they are recovered from the blocks of prompts."""
        return FORMATS[self.format].named

    def requests(self, skipped: Skipped) -> Iterator[tuple[str, LoggedRequest]]:
        """Yield place and contents of the requests, in the order of the files, which may not be that of time.

        Args:
            skipped: counts the records that are left out, by reason.

        Raises:
            TraceError: the format has no text, or see `lpc_apps.logs.records.read_records`.
        """
        reader = FORMATS[self.format].chats
        if reader is None:
            raise TraceError(f"a log of the format {self.format} has no text of requests: use one of {', '.join(WITH_TEXT)}")
        return read_chats(self.path, reader, skipped)

    def with_times(self) -> "Log":
        """Return this log. Raises TraceError if its requests have no times, and so no order."""
        if self.format == CONVERSATIONS:
            raise TraceError(
                f"{self.path.name} has conversations without times, so its requests have no order: give a log of requests"
            )
        return self

    def trace(self, *, active: int = ACTIVE_SESSIONS, seed: int = 0) -> Trace:
        """Return the requests in order of arrival, with blocks instead of text. Arguments and errors: `open_trace`."""
        return open_trace(self.path, self.format, active=active, seed=seed)


@contextmanager
def open_log(
    source: Path | str | Sequence[Path],
    format: str | None = None,  # noqa: A002
    *,
    rate: float | None = None,
) -> Iterator[Log]:
    """Yield a log. A stream is copied to a file that only this user can read, because a log is read more than once.

    Args:
        source: a file, which may be compressed with gzip or Zstandard, a folder of them, a named pipe, or `-`, standard input.
            Several of these are one log, such as rotated files.
        format: one of FORMATS; None: recognise it.
        rate: requests per second of a log of requests without times, whose order counts; None: the requests have times.

    Raises:
        UsageError: the format is unknown, a file is there twice, or a rate is given for requests with times.
        TraceError: the log cannot be read, is empty, its format is not recognised, its files have several, or its requests
            have no times.
    """
    sources = [Path(source)] if isinstance(source, Path | str) else source
    if format is not None and format not in FORMATS:
        raise UsageError(f"unknown log format {format!r:.40}: use one of {', '.join(FORMATS)}")
    with TemporaryDirectory(prefix="lpc-") as folder:
        files = files_of(sources, Path(folder))
        known = format or ("chat" if rate is not None and all(map(is_batch, files)) else recognise(files))
        if rate is not None:
            files = with_pace(files, Path(folder), rate)
            sources, known = files, "chat"
        elif format is None and known == CONVERSATIONS and (shown := untimed_requests(files)) is not None:
            raise TraceError(
                f"{files[0].name} has requests without times ({shown}) and not conversations: write the time of each in "
                "a field `time`, give --rate with requests per second to take their order at that pace, or, if each record is "
                "a whole conversation, --format conversations"
            )
        if format is None and known == "chat" and rate is None and (shown := whole_conversations(files)) is not None:
            raise TraceError(
                f"{files[0].name} has whole conversations with one time each, and not requests ({shown}): write one record per "
                "request, or give --format conversations, which draws their times, or, if each is a request, --format chat"
            )
        if len(files) == 1:
            path = files[0]
        else:
            path = Path(os.path.abspath(sources[0])) if len(sources) == 1 else linked(files, Path(folder))  # noqa: PTH100
        yield Log(path, known, recognised=format is None)
