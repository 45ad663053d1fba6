"""Numbers of a sidecar that nobody needs to set."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """What a test or a benchmark may replace; an operator gets the defaults.

    Attributes:
        reload_s: seconds between looks for new models, certificates, tokens and keys.
        connection_age_s: age at which a connection is ended, give or take a tenth, so that clients look for new sidecars.
        max_batch_items: conversations of one model batch, and of one PredictBatch call.
        max_messages: messages of one chat.
        max_token_ids: token ids of one prompt.
        max_turn_count: highest turn count accepted.
        label_log_rows: rows of one file of the label log.
        label_log_interval_s: seconds after which a file of the label log is written with fewer rows.
        refit_s: seconds between two refits of the return model.
        returns_turns: turns that the return model remembers, about 1 KB each.
        flight_s: seconds after which a caller of the response caches who asks the engine for others is taken for dead.
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
    flight_s: float = 60.0
