"""Prometheus metrics of the sidecar. Names contain units, labels have few values, and neither contains conversation text."""

from bisect import bisect_left
from collections.abc import Callable
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from lpc.wire.redis_settings import REFUSALS as REDIS_REFUSALS
from predictor_service.errors import UnreadPrompt
from predictor_service.labels.turn import Label, Reason, Turn, TurnObserver

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
REFUSALS = ("rate", "bytes")
"""Label values: which limit of a caller was exceeded."""
OFFERS = ("known", "received", "waits", "refused", "damaged")
"""Label values for an offered tokenizer: already stored; received; accepted later; refused; its files did not arrive, or differ
from the offered digest."""
DECILES = tuple(tenths / 10 for tenths in range(1, 11))
"""Upper bounds of the intervals of probability in which labelled predictions are counted."""
TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


class Metrics:
    """All metrics, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter("lpc_requests", "Calls by method and gRPC status.", ["method", "status"], registry=registry)
        self.request_seconds = Histogram(
            "lpc_request_seconds",
            "Time from a unary call's arrival to its answer.",
            ["method"],
            buckets=SECONDS,
            registry=registry,
        )
        self.dropped = Counter(
            "lpc_dropped", "Conversations removed from the queue without a prediction.", ["reason"], registry=registry
        )
        self.tokenize_seconds = Histogram(
            "lpc_tokenize_seconds", "Tokenisation of one conversation.", buckets=SECONDS, registry=registry
        )
        self.infer_seconds = Histogram("lpc_infer_seconds", "One model batch.", buckets=SECONDS, registry=registry)
        self.batch_items = Histogram("lpc_batch_items", "Conversations of a model batch.", buckets=ITEMS, registry=registry)
        self.batch_tokens = Histogram(
            "lpc_batch_tokens", "Tokens of a model batch, including padding.", buckets=TOKENS, registry=registry
        )
        self.batch_token_budget = Gauge(
            "lpc_batch_token_budget",
            "Current token limit of a model batch, including padding.",
            registry=registry,
        )
        self.padding_tokens = Counter("lpc_padding_tokens", "Tokens computed for padding.", registry=registry)
        self.reloads = Counter("lpc_model_reloads", "Attempts to load a new model version.", ["result"], registry=registry)
        self.model_info = Gauge(
            "lpc_model_info",
            "1 for the served model version.",
            ["model", "version", "precision", "provider"],
            registry=registry,
        )
        self.labelled = Counter(
            "lpc_labelled_predictions",
            "Predictions whose outcome is known, by interval of probability and whether the conversation continued.",
            ["at_most", "continued"],
            registry=registry,
        )
        self.labelled_probability_sum = Counter(
            "lpc_labelled_probability_sum",
            "Sum of the probabilities of these predictions, which is the expected number of continuations.",
            ["at_most"],
            registry=registry,
        )
        self.unlabelled = Counter(
            "lpc_unlabelled_predictions", "Predictions whose outcome will not be known.", ["reason"], registry=registry
        )
        self.label_memory = Gauge("lpc_label_memory_turns", "Turns stored until their horizon has passed.", registry=registry)
        self.label_rows = Counter("lpc_label_rows", "Rows of the label log.", ["result"], registry=registry)
        self.turns = Counter(
            "lpc_turns",
            "Turns by where the previous one was found through Redis: first (nowhere), own, elsewhere, repeated (another "
            "sidecar got this turn before), unasked (Redis is unreachable or slow). Heard: own turns that returned elsewhere.",
            ["found"],
            registry=registry,
        )
        self.turns_shared = Gauge(
            "lpc_turns_shared",
            "1 while sidecars share their turns; 0 if Redis is unreachable or not configured.",
            registry=registry,
        )
        self.forgotten = Counter(
            "lpc_memory_forgotten",
            "Conversations dropped because the memory is full, longest idle first; their next turn begins a new conversation.",
            registry=registry,
        )
        self.task_failures = Counter(
            "lpc_task_failures",
            "Failures of background tasks; the log contains the frames of each. `unawaited`: errors without a handler.",
            ["task"],
            registry=registry,
        )
        self.refused_by_redis = Counter(
            "lpc_redis_refusals",
            "Commands that a Redis refused while it answered others, by its use (caches, turns) and by cause: OOM (it is "
            "full), WRONGTYPE (a key has another type) and others.",
            ["use", "cause"],
            registry=registry,
        )
        self.invalid_values = Counter(
            "lpc_invalid_values",
            "Values that were ignored or replaced, because no sidecar would have written them: turns and returns in Redis, and "
            "numbers of the return model that were not finite.",
            ["of"],
            registry=registry,
        )
        self.returns_learnt = Gauge(
            "lpc_returns_learnt",
            "Turns and returns that the return model has learnt from, including those before a restart.",
            ["of"],
            registry=registry,
        )
        self.return_model_head_share = Gauge(
            "lpc_return_model_head_share",
            "The hazard head's share of the return model's mixture; the rest is the counts'.",
            registry=registry,
        )
        self.return_model_nats = Gauge(
            "lpc_return_model_nats",
            "Log-likelihood of recent outcomes under the return model minus that under the average curve, nats per turn; NaN "
            "before the first prediction.",
            registry=registry,
        )
        self.return_refit_seconds = Histogram(
            "lpc_return_refit_seconds", "One refit of the return model, in the background.", buckets=SECONDS, registry=registry
        )
        # Create all series at the start, so that the first event of each kind is an increase.
        for bound in DECILES:
            self.labelled_probability_sum.labels(bound)
            for continued in ("true", "false"):
                self.labelled.labels(bound, continued)
        for reason in get_args(Reason):
            self.unlabelled.labels(reason)
        for found in ("first", "own", "elsewhere", "repeated", "unasked", "heard"):
            self.turns.labels(found)
        for what in ("turns", "returns", "model"):
            self.invalid_values.labels(what)
        for fate in ("written", "dropped"):
            self.label_rows.labels(fate)
        self.unread_prompts = Counter(
            "lpc_unread_prompts",
            "Conversations whose token ids could not be read; engines get predictions from lengths and times.",
            ["reason"],
            registry=registry,
        )
        self.tokenizers = Gauge(
            "lpc_tokenizers", "Tokenizers of served models, configured and offered, by state.", ["state"], registry=registry
        )
        self.tokenizer_offers = Counter(
            "lpc_tokenizer_offers", "Tokenizers that engines have offered, by result.", ["result"], registry=registry
        )
        for kind in UnreadPrompt.__subclasses__():
            self.unread_prompts.labels(kind.reason)
        for result in OFFERS:
            self.tokenizer_offers.labels(result)
        self.client_conversations = Counter(
            "lpc_client_conversations", "Conversations admitted, by client.", ["client"], registry=registry
        )
        self.client_refusals = Counter(
            "lpc_client_refusals",
            "Conversations refused by a limit per client.",
            ["client", "reason"],
            registry=registry,
        )
        self.certificate_expiry = Gauge(
            "lpc_certificate_expiry_timestamp_seconds",
            "Expiry of the current TLS certificate, seconds since the Unix epoch; 0 without TLS.",
            registry=registry,
        )
        self.queue_depth = Gauge("lpc_queue_depth", "Conversations admitted and not answered.", registry=registry)
        self.queue_wait = Gauge(
            "lpc_queue_wait_seconds",
            "Estimated time for all admitted conversations, on which the refusal of requests is based.",
            registry=registry,
        )
        self.queue_limit = Gauge("lpc_queue_limit", "Largest number of admitted conversations.", registry=registry)

    def redis_refusals(self, use: str) -> Callable[[str], None]:
        """Return a function that counts a refusal by the Redis of this use, given its cause. Creates all series of the use."""
        for cause in REDIS_REFUSALS:
            self.refused_by_redis.labels(use, cause)
        return lambda cause: self.refused_by_redis.labels(use, cause).inc()

    def forget_caller(self, name: str) -> None:
        """Remove the series of a caller that is not configured any more."""
        self.client_conversations.remove(name)
        for reason in REFUSALS:
            self.client_refusals.remove(name, reason)

    def observe_batch(self, items: int, tokens: int, real_tokens: int) -> None:
        """Record one model batch."""
        self.batch_items.observe(items)
        self.batch_tokens.observe(tokens)
        self.padding_tokens.inc(tokens - real_tokens)

    def serving(self, model: str, version: str, precision: str, provider: str) -> None:
        """Set the served model version."""
        self.model_info.clear()
        self.model_info.labels(model, version, precision, provider).set(1)


class LabelMetrics(TurnObserver):
    """Counts the outcomes of predictions."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def labelled(self, label: Label) -> None:
        """Count a prediction whose outcome is known."""
        probability = label.forecast.probability
        bound = DECILES[bisect_left(DECILES, probability)]
        self._metrics.labelled.labels(bound, str(label.continues).lower()).inc()
        self._metrics.labelled_probability_sum.labels(bound).inc(probability)

    def forgotten(self, turn: Turn) -> None:
        """Count a dropped turn."""
        del turn
        self._metrics.forgotten.inc()

    def unlabelled(self, reason: Reason, count: int) -> None:
        """Count predictions whose outcome will not be known."""
        self._metrics.unlabelled.labels(reason).inc(count)
