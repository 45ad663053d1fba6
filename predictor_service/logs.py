"""The sidecar's log."""

import os
from typing import Literal

from lpc.wire import log_lines


def configure(level: str, form: Literal["json", "text"]) -> None:
    """Write the log to standard error, what transformers says too."""
    log_lines.configure(level, form)
    # transformers has a handler and a form of its own. Only its tokenizers are used: it needs no PyTorch.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers.utils import logging as of_transformers

    of_transformers.disable_default_handler()
    of_transformers.enable_propagation()
