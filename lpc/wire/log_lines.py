"""Log format of servers: one JSON object per line, or text."""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

from lpc.wire.terminal import shown, shown_lines

TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
INDENT: Final = "  "
"""Precedes the further lines of a message in text, so that no name can begin a line of the log."""


class _Shown:
    """An argument of a message, which others may have chosen."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return shown(self._value)

    def __repr__(self) -> str:
        return shown(repr(self._value))


def _safe(record: logging.LogRecord) -> logging.LogRecord:
    """Return a copy of a record whose arguments are shown on one line each."""
    copy = logging.makeLogRecord(record.__dict__)
    if isinstance(copy.args, Mapping):
        copy.args = {name: _shown(value) for name, value in copy.args.items()}
    else:
        copy.args = tuple(map(_shown, copy.args or ()))
    return copy


def _shown(value: object) -> Any:
    return value if isinstance(value, (int, float)) or value is None else _Shown(value)


class TextFormatter(logging.Formatter):
    """Formats a record as text. Its further lines are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, or several if the message or an exception has several."""
        return shown_lines(super().format(_safe(record)), INDENT)


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON: time (RFC 3339, UTC), level, logger, message; if present, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": shown_lines(_safe(record).getMessage()),
        }
        if record.exc_info:
            line["exception"] = shown_lines(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


def configure(level: str, form: Literal["json", "text"]) -> None:
    """Write the log and Python's warnings to standard error, all in the same format."""
    formatter = JsonFormatter() if form == "json" else TextFormatter(TEXT)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
