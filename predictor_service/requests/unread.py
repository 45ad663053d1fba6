"""Counts prompts that cannot be read, and logs each reason once."""

import logging
from typing import Final

from lpc.v1 import predictor_pb2 as pb
from predictor_service.errors import TokenizerLoading, UnreadPrompt
from predictor_service.metrics import Metrics

log = logging.getLogger(__name__)

MAX_LOGGED: Final = 100
"""Largest number of pairs of served model and reason that are logged."""


class UnreadPrompts:
    """Counts prompts whose token ids cannot be read, and logs each pair of served model and reason once."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._logged: set[tuple[str, str]] = set()

    def note(self, tokens: pb.TokenIds, error: UnreadPrompt) -> None:
        """Record a prompt that could not be read."""
        self._metrics.unread_prompts.labels(error.reason).inc()
        name = tokens.served_model[:100]
        if isinstance(error, TokenizerLoading) or (name, error.reason) in self._logged or len(self._logged) >= MAX_LOGGED:
            return
        self._logged.add((name, error.reason))
        log.warning("cannot read prompts of served model %s: %s (counted in lpc_unread_prompts_total)", name, error)
