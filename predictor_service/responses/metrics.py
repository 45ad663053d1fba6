"""Prometheus metrics of the response caches. Scopes are labels by the operator's names alone; callers may declare any."""

from collections.abc import Callable, Sequence
from math import nan
from typing import Final, get_args

from prometheus_client import Counter, Gauge, Histogram

from lpc.responses.answers import REFUSALS, Refusal
from lpc.responses.store import Put
from predictor_service.metrics import SECONDS, Metrics
from predictor_service.responses.outcomes import Hit, InForce, Miss, Reason, Source

BOUNDS: Final = ("entries", "bytes", "tenant_entries", "tenant_bytes")
"""Why answers go before their time, as `Put` counts them."""


class CacheMetrics:
    """Metrics of the response caches, in the sidecar's registry. ``scopes``: all labels of scopes."""

    def __init__(self, metrics: Metrics, scopes: Sequence[str]) -> None:
        registry = metrics.registry
        self.lookups = Counter(
            "lpc_cache_lookups",
            "Lookups of the response caches, by what came of them: a tier's hit, or why there was none.",
            ["scope", "result"],
            registry=registry,
        )
        self.stores = Counter(
            "lpc_cache_stores",
            "Answers handed in to the response caches, by what became of them: stored, or why not.",
            ["scope", "result"],
            registry=registry,
        )
        self.evictions = Counter(
            "lpc_cache_evictions",
            "Answers that went before their time, since a client's scope, or a tenant in it, held too many entries or bytes.",
            ["scope", "bound"],
            registry=registry,
        )
        self.invalidations_refused = Counter(
            "lpc_cache_invalidations_refused",
            "Calls of Invalidate that were refused since their client or tenant made too many.",
            registry=registry,
        )
        self.tokens_spared = Counter(
            "lpc_cache_tokens_spared",
            "Tokens that no engine had to compute, as the engine counted them for the answer that was served again.",
            ["scope", "kind"],
            registry=registry,
        )
        self.seconds_spared = Counter(
            "lpc_cache_engine_seconds_spared",
            "Seconds that engines took for the answers that were served again.",
            ["scope"],
            registry=registry,
        )
        self.lookup_seconds = Histogram(
            "lpc_cache_lookup_seconds",
            "Time of a lookup of the response caches, without waiting for another caller's answer.",
            buckets=SECONDS,
            registry=registry,
        )
        self.unreadable = Counter(
            "lpc_cache_unreadable",
            "Records of the response caches that did not open: of another key or place, or damaged.",
            registry=registry,
        )
        self.forged = Counter(
            "lpc_cache_forged",
            "Values in the Redis of the response caches that are not what a sidecar wrote there, by kind; taken for absent.",
            ["what"],
            registry=registry,
        )
        self.feedback = Counter(
            "lpc_cache_feedback", "What callers said of answers that were served.", ["scope", "verdict"], registry=registry
        )
        self.redis_up = Gauge(
            "lpc_cache_redis_up", "1 while the Redis of the response caches answers, else 0.", registry=registry
        )
        self.threshold = Gauge(
            "lpc_cache_threshold",
            "Similarity from which the semantic tier serves a client's scope; NaN: it serves nothing.",
            ["client", "scope"],
            registry=registry,
        )
        self.error_bound = Gauge(
            "lpc_cache_error_bound",
            "Upper bound on the wrong answers among those that the semantic tier serves; NaN: it serves nothing.",
            ["client", "scope"],
            registry=registry,
        )
        self.labels = Gauge(
            "lpc_cache_labels", "Labels in the semantic tier's window of evidence.", ["client", "scope"], registry=registry
        )
        self.judgements = Counter(
            "lpc_cache_judgements",
            "Pairs of answers that were compared, by what the judge said; unasked: it could not be asked.",
            ["scope", "verdict"],
            registry=registry,
        )
        # From the start, so that the first event of each kind is an increase.
        for what in ("generation", "evidence"):
            self.forged.labels(what)
        for scope in scopes:
            for result in (*get_args(Source), *get_args(Reason)):
                self.lookups.labels(scope, result)
            for kind in ("prompt", "completion"):
                self.tokens_spared.labels(scope, kind)
            self.seconds_spared.labels(scope)
            for result in ("stored", *REFUSALS):
                self.stores.labels(scope, result)
            for bound in BOUNDS:
                self.evictions.labels(scope, bound)
            for verdict in ("right", "wrong"):
                self.feedback.labels(scope, verdict)
            for verdict in ("same", "different", "unasked"):
                self.judgements.labels(scope, verdict)

    def watch_redis(self, up: Callable[[], bool]) -> None:
        """Report at every scrape whether Redis answers."""
        self.redis_up.set_function(up)

    def looked_up(self, scope: str, outcome: Hit | Miss) -> None:
        """Count a lookup. ``scope``: a label."""
        self.lookups.labels(scope, outcome.reason if isinstance(outcome, Miss) else outcome.source).inc()
        if isinstance(outcome, Hit):
            self.tokens_spared.labels(scope, "prompt").inc(outcome.answer.prompt_tokens)
            self.tokens_spared.labels(scope, "completion").inc(outcome.answer.completion_tokens)
            self.seconds_spared.labels(scope).inc(max(0.0, outcome.answer.engine_s))

    def in_force(self, client: str, scope: str, in_force: InForce) -> None:
        """Report what a client's scope serves by evidence. ``scope``: a label."""
        shut = in_force.threshold is None
        self.threshold.labels(client, scope).set(nan if in_force.threshold is None else in_force.threshold)
        self.error_bound.labels(client, scope).set(nan if shut else in_force.error_bound)
        self.labels.labels(client, scope).set(in_force.labels)

    def judged(self, scope: str, said: bool | None) -> None:
        """Count what a judge said. ``scope``: a label."""
        self.judgements.labels(scope, "unasked" if said is None else "same" if said else "different").inc()

    def evicted(self, scope: str, put: Put) -> None:
        """Count what went to make room. ``scope``: a label."""
        for bound, count in zip(BOUNDS, put[1:], strict=True):
            if count:
                self.evictions.labels(scope, bound).inc(count)

    def stored(self, scope: str, refusal: Refusal | None) -> None:
        """Count an answer that was handed in."""
        self.stores.labels(scope, refusal or "stored").inc()
