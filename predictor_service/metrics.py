"""Prometheus metrics of the sidecar. Names contain units, labels have few values, and neither contains conversation text."""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from lpc.wire.metrics import registered
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
    """All metrics, one entry each, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        counter, gauge = partial(registered, Counter, registry), partial(registered, Gauge, registry)
        seconds = partial(registered, partial(Histogram, buckets=SECONDS), registry)
        self.requests = counter("lpc_requests", "Calls by method and gRPC status.", method=(), status=())
        self.request_seconds = seconds("lpc_request_seconds", "Time from a unary call's arrival to its answer.", method=())
        self.dropped = counter("lpc_dropped", "Conversations removed from the queue without a prediction.", reason=())
        self.tokenize_seconds = seconds("lpc_tokenize_seconds", "Tokenisation of one conversation.")
        self.infer_seconds = seconds("lpc_infer_seconds", "One model batch.")
        self.batch_items = registered(
            partial(Histogram, buckets=ITEMS), registry, "lpc_batch_items", "Conversations of a model batch."
        )
        self.batch_tokens = registered(
            partial(Histogram, buckets=TOKENS), registry, "lpc_batch_tokens", "Tokens of a model batch, including padding."
        )
        self.batch_token_budget = gauge("lpc_batch_token_budget", "Current token limit of a model batch, including padding.")
        self.padding_tokens = counter("lpc_padding_tokens", "Tokens computed for padding.")
        self.reloads = counter("lpc_model_reloads", "Attempts to load a new model version.", result=())
        self.model_info = gauge(
            "lpc_model_info", "1 for the served model version.", model=(), version=(), precision=(), provider=()
        )
        self.labelled = counter(
            "lpc_labelled_predictions",
            "Predictions whose outcome is known, by interval of probability and whether the conversation continued.",
            at_most=DECILES,
            continued=("true", "false"),
        )
        self.labelled_probability_sum = counter(
            "lpc_labelled_probability_sum",
            "Sum of the probabilities of these predictions, which is the expected number of continuations.",
            at_most=DECILES,
        )
        self.unlabelled = counter(
            "lpc_unlabelled_predictions", "Predictions whose outcome will not be known.", reason=get_args(Reason)
        )
        self.label_memory = gauge("lpc_label_memory_turns", "Turns stored until their horizon has passed.")
        self.label_rows = counter("lpc_label_rows", "Rows of the label log.", result=("written", "dropped"))
        self.turns = counter(
            "lpc_turns",
            "Turns by where the previous one was found through Redis: first (nowhere), own, elsewhere, repeated (another "
            "sidecar got this turn before), unasked (Redis is unreachable or slow). Heard: own turns that returned elsewhere.",
            found=("first", "own", "elsewhere", "repeated", "unasked", "heard"),
        )
        self.turns_shared = gauge(
            "lpc_turns_shared", "1 while sidecars share their turns; 0 if Redis is unreachable or not configured."
        )
        self.forgotten = counter(
            "lpc_memory_forgotten",
            "Conversations dropped because the memory is full, longest idle first; their next turn begins a new conversation.",
        )
        self.task_failures = counter(
            "lpc_task_failures",
            "Failures of background tasks; the log contains the frames of each. `unawaited`: errors without a handler.",
            task=(),
        )
        self.refused_by_redis = counter(
            "lpc_redis_refusals",
            "Commands that a Redis refused while it answered others, by its use (caches, turns) and by cause: OOM (it is "
            "full), WRONGTYPE (a key has another type) and others.",
            use=(),
            cause=(),
        )
        self.invalid_values = counter(
            "lpc_invalid_values",
            "Values that were ignored or replaced, because no sidecar would have written them: turns, returns and users in "
            "Redis, and numbers of the return model that were not finite.",
            of=("turns", "returns", "model"),
        )
        self.returns_learnt = gauge(
            "lpc_returns_learnt",
            "Turns and returns that the return model has learnt from, including those before a restart.",
            of=(),
        )
        self.return_model_head_share = gauge(
            "lpc_return_model_head_share",
            "The hazard head's share of the return model's mixture; the rest is the counts'.",
        )
        self.return_model_nats = gauge(
            "lpc_return_model_nats",
            "Log-likelihood of recent outcomes under the return model minus that under the average curve, nats per turn; NaN "
            "before the first prediction.",
        )
        self.return_refit_seconds = seconds("lpc_return_refit_seconds", "One refit of the return model, in the background.")
        self.unread_prompts = counter(
            "lpc_unread_prompts",
            "Conversations whose token ids could not be read; engines get predictions from lengths and times.",
            reason=[kind.reason for kind in UnreadPrompt.__subclasses__()],
        )
        self.tokenizers = gauge("lpc_tokenizers", "Tokenizers of served models, configured and offered, by state.", state=())
        self.tokenizer_offers = counter(
            "lpc_tokenizer_offers", "Tokenizers that engines have offered, by result.", result=OFFERS
        )
        self.client_conversations = counter("lpc_client_conversations", "Conversations admitted, by client.", client=())
        self.client_refusals = counter(
            "lpc_client_refusals", "Conversations refused by a limit per client.", client=(), reason=()
        )
        self.certificate_expiry = gauge(
            "lpc_certificate_expiry_timestamp_seconds",
            "Expiry of the current TLS certificate, seconds since the Unix epoch; 0 without TLS.",
        )
        self.queue_depth = gauge("lpc_queue_depth", "Conversations admitted and not answered.")
        self.queue_wait = gauge(
            "lpc_queue_wait_seconds",
            "Estimated time for all admitted conversations, on which the refusal of requests is based.",
        )
        self.queue_limit = gauge("lpc_queue_limit", "Largest number of admitted conversations.")

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
