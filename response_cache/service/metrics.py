"""Prometheus metrics of the response caches. Only scopes with own settings are labels, since callers may send any name."""

from collections.abc import Callable, Sequence
from functools import partial
from math import nan
from typing import Final, get_args

from prometheus_client import Counter, Gauge, Histogram

from lpc.wire.metrics import registered
from predictor_service.metrics import SECONDS, Metrics
from response_cache.service.outcomes import SOURCES, CacheHit, CacheMiss, InForce, Reason
from response_cache.store.answers import REFUSALS, Refusal
from response_cache.store.store import Put

BOUNDS: Final = ("entries", "bytes", "tenant_entries", "tenant_bytes")
"""Limits that evict answers, in the order of the counts of `Put`."""
VERDICTS: Final = ("right", "wrong", "other_question", "incorrect", "outdated")
"""Verdicts of users: the last three are reasons why an answer was wrong."""


class CacheMetrics:
    """Metrics of the response caches, in the sidecar's registry; one entry each. ``scopes`` are all labels of scopes."""

    def __init__(self, metrics: Metrics, scopes: Sequence[str]) -> None:
        counter = partial(registered, Counter, metrics.registry)
        gauge = partial(registered, Gauge, metrics.registry)
        seconds = partial(registered, partial(Histogram, buckets=SECONDS), metrics.registry)
        self.lookups = counter(
            "lpc_cache_lookups",
            "Lookups in the response caches by result: the tier of a hit, or the reason of a miss.",
            scope=scopes,
            result=(*SOURCES, *get_args(Reason)),
        )
        self.stores = counter(
            "lpc_cache_stores",
            "Answers sent to the response caches by result: stored, or the refusal.",
            scope=scopes,
            result=("stored", *REFUSALS),
        )
        self.evictions = counter(
            "lpc_cache_evictions",
            "Answers evicted because a client's scope, or a tenant in it, had too many entries or bytes.",
            scope=scopes,
            bound=BOUNDS,
        )
        self.invalidations_refused = counter(
            "lpc_cache_invalidations_refused", "Calls of Invalidate refused by the rate limit of their client or tenant."
        )
        self.tokens_spared = counter(
            "lpc_cache_tokens_spared",
            "Tokens of answers served from the cache, as the engine counted them.",
            scope=scopes,
            kind=("prompt", "completion"),
        )
        self.seconds_spared = counter(
            "lpc_cache_engine_seconds_spared", "Seconds that engines took for the answers served from the cache.", scope=scopes
        )
        self.lookup_seconds = seconds(
            "lpc_cache_lookup_seconds",
            "Duration of a lookup in the response caches, without the wait for another caller's answer.",
        )
        self.unreadable = counter(
            "lpc_cache_unreadable",
            "Records of the response caches that could not be decrypted: another key or location, or damaged.",
        )
        self.forged = counter(
            "lpc_cache_forged",
            "Forged or outdated values in the Redis of the response caches by kind, which are ignored.",
            what=("generation", "evidence"),
        )
        self.feedback = counter(
            "lpc_cache_feedback",
            "Feedback on served answers: right, wrong, or the reason why it was wrong.",
            scope=scopes,
            verdict=VERDICTS,
        )
        self.redis_up = gauge("lpc_cache_redis_up", "1 while the Redis of the response caches answers, else 0.")
        self.threshold = gauge(
            "lpc_cache_threshold",
            "Lowest score that the semantic tier serves in a client's scope: a probability, or the similarity that is set; "
            "NaN if it serves nothing.",
            client=(),
            scope=(),
        )
        self.error_bound = gauge(
            "lpc_cache_error_bound",
            "Upper bound on the share of wrong answers among semantic hits; NaN if the tier serves nothing.",
            client=(),
            scope=(),
        )
        self.bound = gauge(
            "lpc_cache_bound",
            "Limit on the share of wrong answers among semantic hits: the scope's, or less after complaints.",
            client=(),
            scope=(),
        )
        self.labels = gauge("lpc_cache_labels", "Labels in the semantic tier's window of evidence.", client=(), scope=())
        self.judgements = counter(
            "lpc_cache_judgements",
            "Pairs of answers by verdict of the judge; unasked: the judge failed.",
            scope=scopes,
            verdict=("same", "different", "unasked"),
        )

    def watch_redis(self, up: Callable[[], bool]) -> None:
        """Report whether Redis responds, at every scrape."""
        self.redis_up.set_function(up)

    def looked_up(self, scope: str, outcome: CacheHit | CacheMiss) -> None:
        """Count a lookup. ``scope`` is a label."""
        self.lookups.labels(scope, outcome.reason if isinstance(outcome, CacheMiss) else outcome.source).inc()
        if isinstance(outcome, CacheHit):
            self.tokens_spared.labels(scope, "prompt").inc(outcome.answer.prompt_tokens)
            self.tokens_spared.labels(scope, "completion").inc(outcome.answer.completion_tokens)
            self.seconds_spared.labels(scope).inc(max(0.0, outcome.answer.engine_s))

    def in_force(self, client: str, scope: str, in_force: InForce) -> None:
        """Report the threshold of a client's scope. ``scope`` is a label."""
        threshold = in_force.threshold
        self.threshold.labels(client, scope).set(nan if threshold is None else threshold)
        self.error_bound.labels(client, scope).set(nan if threshold is None else in_force.error_bound)
        self.bound.labels(client, scope).set(nan if in_force.bound is None else in_force.bound)
        self.labels.labels(client, scope).set(in_force.labels)

    def judged(self, scope: str, same: bool | None) -> None:
        """Count a verdict. ``scope`` is a label."""
        self.judgements.labels(scope, "unasked" if same is None else "same" if same else "different").inc()

    def evicted(self, scope: str, put: Put) -> None:
        """Count evictions. ``scope`` is a label."""
        for bound, count in zip(BOUNDS, put[1:], strict=True):
            if count:
                self.evictions.labels(scope, bound).inc(count)

    def stored(self, scope: str, refusal: Refusal | None) -> None:
        """Count an answer that was stored or refused."""
        self.stores.labels(scope, refusal or "stored").inc()
