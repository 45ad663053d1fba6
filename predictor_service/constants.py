"""Limits and intervals of a sidecar that are not settings."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """Values that tests and benchmarks may replace.

    Attributes:
        reload_s: interval of checks for new models, certificates, tokens and keys, seconds.
        connection_age_s: age at which a connection is closed, plus or minus a tenth, so that clients find new sidecars.
        max_batch_items: largest number of conversations in a model batch and in a PredictBatch call.
        max_messages: largest number of messages of a chat.
        max_token_ids: largest number of token ids of a prompt.
        max_turn_count: largest turn count.
        label_log_rows: number of rows of a file of the label log.
        label_log_interval_s: time after which a file of the label log is written with fewer rows, seconds.
        refit_s: interval of refits of the return model, seconds.
        returns_turns: number of turns that the return model stores, about 1 KB each.
    """

    reload_s: float = 5.0
    connection_age_s: float = 300.0
    max_batch_items: int = 256
    max_messages: int = 4096
    max_token_ids: int = 2**20
    max_turn_count: int = 100_000
    label_log_rows: int = 4096
    label_log_interval_s: float = 300.0
    refit_s: float = 60.0
    returns_turns: int = 20_000
