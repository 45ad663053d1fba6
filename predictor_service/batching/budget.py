"""How many tokens a batch may have: what is fastest where it runs, and less if memory did not hold as many."""

from typing import Final

from lpc.model.session import Provider

BATCH_TOKENS: Final[dict[Provider, int]] = {"cpu": 512, "cuda": 32768}
"""Most tokens that are of use. On a CPU a larger batch is slower, not faster: 200 ShareGPT conversations took 3.9 s at 512, 4.3
s at 1024, 5.2 s at 2048 and 6.7 s at 4096 tokens (two cores, int8), as more padding is computed and less stays in cache."""


class TokenBudget:
    """Tokens that a batch may have now, padding counted.

    Args:
        setting: the operator's number of tokens; 0: by the provider.
    """

    def __init__(self, setting: int = 0) -> None:
        self.tokens = setting or BATCH_TOKENS["cpu"]
        self._setting = setting

    def begin(self, provider: Provider) -> None:
        """Set the budget for a model that runs here and that nobody uses yet."""
        self.tokens = self._setting or BATCH_TOKENS[provider]

    def shrink(self, tokens: int) -> None:
        """A batch of so many tokens did not fit: from now on half of it at most."""
        self.tokens = max(1, min(self.tokens, tokens // 2))
