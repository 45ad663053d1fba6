"""Configures the sidecar's log."""

import os
from typing import Literal

from lpc.wire import log_lines


def configure(level: str, form: Literal["json", "text"]) -> None:
    """Write the log, including that of transformers, to standard error."""
    log_lines.configure(level, form)
    # Suppresses the warning that PyTorch is missing: only tokenizers are used.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_default_handler()
    transformers_logging.enable_propagation()
