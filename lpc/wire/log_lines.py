"""Log format of servers: one JSON object per line, or text."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON: time (RFC 3339, UTC), level, logger, message; if present, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str, form: Literal["json", "text"]) -> None:
    """Write the log and Python's warnings to standard error, all in the same format."""
    formatter = JsonFormatter() if form == "json" else logging.Formatter(TEXT)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
