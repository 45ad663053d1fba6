"""Logs of each request where its prompt tokens came from (`observability.misses.SOURCES`)."""

import json
import logging
from collections.abc import Hashable, Mapping
from typing import Final

logger = logging.getLogger(__name__)

LONGEST: Final = 256
"""Characters of a request's id, which clients may choose."""


def log_misses(request_id: Hashable, tokens: Mapping[str, int]) -> None:
    """Log a finished request: one line of JSON, without sources that have no tokens. Nothing if nothing was counted.

    Args:
        tokens: by source.
    """
    found = {source: count for source, count in tokens.items() if count}
    if found:
        logger.info("learned prefix cache: prompt tokens of %s: %s", json.dumps(str(request_id)[:LONGEST]), json.dumps(found))
