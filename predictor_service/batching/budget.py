"""The token limit of a batch: the fastest size for the provider, lowered when a batch does not fit into memory."""

from typing import Final

from lpc.model.session import Provider

BATCH_TOKENS: Final[dict[Provider, int]] = {"cpu": 512, "cuda": 32768}
"""On a CPU larger batches are slower, because they compute more padding and use caches less well: 200 ShareGPT conversations
took 3.9 s at 512, 4.3 s at 1024, 5.2 s at 2048 and 6.7 s at 4096 tokens (two cores, int8)."""


class TokenBudget:
    """Current token limit of a batch, including padding.

    Args:
        setting: the operator's limit; 0: the provider's default.
    """

    def __init__(self, setting: int = 0) -> None:
        self.tokens = setting or BATCH_TOKENS["cpu"]
        self._setting = setting

    def begin(self, provider: Provider) -> None:
        """Reset the limit for a new model on this provider."""
        self.tokens = self._setting or BATCH_TOKENS[provider]

    def shrink(self, tokens: int) -> None:
        """Lower the limit to half of ``tokens``, the size of a batch that did not fit into memory."""
        self.tokens = max(1, min(self.tokens, tokens // 2))
