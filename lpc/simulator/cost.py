"""The cost model: how long a request takes for what it computes and writes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Rates of an engine.

    Attributes:
        prefill_tokens_s: tokens computed per second.
        output_token_s: seconds per output token.
    """

    prefill_tokens_s: float = 20_000.0
    output_token_s: float = 0.01
