"""What cannot be read is counted, and said once."""

import logging
from typing import Final

from lpc.v1 import predictor_pb2 as pb
from predictor_service.errors import TokenizerLoading, UnreadPrompt
from predictor_service.metrics import Metrics

log = logging.getLogger(__name__)

MAX_SAID: Final = 100
"""Served models and reasons that are named in the log."""


class UnreadPrompts:
    """Counts the prompts whose token ids could not be read, and names each served model and reason once in the log."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._said: set[tuple[str, str]] = set()

    def note(self, tokens: pb.TokenIds, error: UnreadPrompt) -> None:
        """Note that a prompt could not be read, and why."""
        self._metrics.unread_prompts.labels(error.reason).inc()
        name = tokens.served_model[:100]
        if isinstance(error, TokenizerLoading) or (name, error.reason) in self._said or len(self._said) >= MAX_SAID:
            return
        self._said.add((name, error.reason))
        log.warning("prompts of served model %s are not read: %s (lpc_unread_prompts_total counts them)", name, error)
