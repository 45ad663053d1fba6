"""Metrics of a plug-in, in the engine's own /metrics.

The scheduler counts in plain integers; once a second the scorer's thread copies them into prometheus_client's. These are
seen by the server of /metrics in the same process, or, under PROMETHEUS_MULTIPROC_DIR, in another. An engine whose API
server is a process of its own and that does not use that directory (vLLM with one API server) needs :func:`register`, which
vLLM calls in each of its processes (entry point ``vllm.general_plugins``): the first one makes a folder, tells the others of
it in the environment, and shows what they write there.
"""

import atexit
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

FOLDER: Final = "LPC_METRICS_DIR"
"""Set by :func:`register` for the processes that it starts; no setting for operators."""

LABEL: Final = "engine"

Values = dict[tuple[str, str], float]
"""(metric, values of its own labels with commas between or "") to value."""

# Name: (kind, help, its own labels with commas between).
METRICS: Final[dict[str, tuple[type[Counter] | type[Gauge], str, str]]] = {
    "lpc_predictions": (Counter, "Requests asked of the predictor, and what became of them.", "fate"),
    "lpc_prediction_failures": (
        Counter,
        "Failed requests to the predictor by cause: `too_large` (for a proxy or the sidecar), `http_...` (a proxy's status), a "
        "status of gRPC, or `invalid`.",
        "cause",
    ),
    "lpc_requests_ended": (Counter, "Finished requests by what their group came from.", "by"),
    "lpc_rule": (Gauge, "1 for the rule that orders the cache, else 0; in a dry run lru.", "rule"),
    "lpc_lru_forced": (Gauge, "1 while the operator's file forces the engine's own order.", ""),
    "lpc_reuse_classes": (Gauge, "Reuse classes with a curve of their own.", ""),
    "lpc_reuses": (Counter, "Reuses of blocks that the curves are learned from.", ""),
    "lpc_refits": (Counter, "Times that the curves were fitted again.", ""),
    "lpc_ghost_blocks": (
        Counter,
        "Sampled blocks of prompts: all (asked), and those that the ghost cache of each rule hit; chosen: that of the rule "
        "which was in force, or would have been.",
        "cache",
    ),
    "lpc_tier_rule": (Gauge, "1 for the rule that orders an offload tier, else 0.", "tier,rule"),
    "lpc_fallback_share": (Gauge, "Share of the completed requests that ended without a prediction.", ""),
    "lpc_prompt_tokens": (Counter, "Prompt tokens: cached, or why they were not.", "source"),
    "lpc_hit_by_one_tokens": (
        Counter,
        "Prompt tokens that only the engine hit, and those that only LRU would have hit in its place, by a sample.",
        "who",
    ),
    "lpc_hit_tokens": (Gauge, "Tokens that a prompt must have in common with an earlier one for a hit.", ""),
    "lpc_tenant_prompt_tokens": (
        Counter,
        "The same for requests with a cache salt, by digest of the salt; after 20 salts the rest is `others`.",
        "tenant,source",
    ),
    "lpc_tenant_ghost_blocks": (
        Counter,
        "As lpc_ghost_blocks, of requests with a cache salt, by digest of the salt.",
        "tenant,cache",
    ),
    "lpc_tenant_blocks": (Gauge, "Blocks of tenants with a floor in the cache, by digest of the salt.", "tenant"),
    "lpc_evicted_tokens": (Counter, "Prompt tokens that were evicted, by seconds since their last use, at most.", "unused"),
    "lpc_evicted_blocks": (
        Counter,
        "Sampled blocks of prompts that were evicted: all, and those that a cache under each rule would have had.",
        "cache",
    ),
    "lpc_missed_blocks": (
        Counter,
        "Full blocks of prompts: all (asked), and those that an LRU cache of this many times the size would miss, by a sample.",
        "size",
    ),
    "lpc_changed_tokens": (
        Counter,
        "Prompt tokens behind a place where a prompt differs from an earlier one, by how, and by tokens before it, at least.",
        "change,before",
    ),
    "lpc_hints": (Counter, "Finished requests with hints by hint; off: LPC_HINTS_SHARE is 0.", "hint"),
    "lpc_hinted_blocks": (
        Counter,
        "Blocks (SGLang: tokens) that hints asked to retain, in the cache and its tiers; refused: beyond LPC_HINTS_SHARE.",
        "fate",
    ),
    "lpc_retained_blocks": (Gauge, "Blocks (SGLang: tokens) that hints retain in the cache and its tiers, at most.", ""),
    "lpc_pooled_raises": (Counter, "Spans of blocks that have got the claim of a conversation of another engine.", ""),
    "lpc_pooled_refused": (
        Counter,
        "Values in the store that no engine would have written, which were ignored: another clock, for example.",
        "",
    ),
    "lpc_repeated_prefill": (Gauge, "Share of the latest prefill that computed what the cache had before and has evicted.", ""),
    "lpc_warm_first": (
        Gauge,
        "1: while the cache thrashes, warm waiting requests go first. 0: first come, first served.",
        "",
    ),
    "lpc_overtaken_tokens": (
        Gauge,
        "Tokens by which the oldest waiting request has been overtaken; see LPC_OVERTAKE_S.",
        "",
    ),
    "lpc_overtaking": (Counter, "Requests served before one that had arrived earlier.", ""),
    "lpc_queue_runs": (Gauge, "Runs in the free queue: blocks of a class that were freed together.", ""),
    "lpc_waited_requests": (
        Counter,
        "Requests that have waited: warm (half of the prompt or more was cached then), or cold. Of the warm: those that lost "
        "cached blocks meanwhile, and those before which a cold one was served.",
        "what",
    ),
    "lpc_waited_lost_tokens": (Counter, "Cached tokens of warm requests that were evicted while these waited.", ""),
    "lpc_preempted_requests": (Counter, "Requests that vLLM preempted.", ""),
    "lpc_preempted_tokens": (
        Counter,
        "Tokens of preempted requests: those that they held then, those that the running request with the fewest held, and "
        "those that were computed again.",
        "which",
    ),
    "lpc_scheduler_seconds": (Counter, "Time that the plug-in has taken in the scheduler's thread.", ""),
    "lpc_failures": (Counter, "Exceptions of the plug-in's own code, which the engine does not see.", ""),
    "lpc_stock_fallback": (Gauge, "1 if the plug-in does not work in this engine, which runs its own LRU instead.", ""),
    "lpc_predictions_unread": (Counter, "Predictions for prompts that the sidecar could not read: by lengths and times.", ""),
    "lpc_tokenizer_state": (Gauge, "State of this engine's tokenizer in the sidecar (1 = current state).", "state"),
    "lpc_guard_switches": (Counter, "Times that the guard has chosen another rule.", ""),
    "lpc_guard_failures": (Counter, "Failures of the guard's own code: the order is LRU after each, for good after three.", ""),
    "lpc_tier_stock_fallback": (
        Gauge,
        "1 where an offload tier runs the engine's own LRU because ours does not work there.",
        "",
    ),
    "lpc_tier_evictions": (Counter, "Chunks evicted from offload tiers, by whose order.", "by"),
    "lpc_tier_choices": (
        Counter,
        "Requests of whose prompt an offload tier had more than the cache: all of that was loaded, a part, or it was computed.",
        "tier,choice",
    ),
    "lpc_tier_gained_seconds": (
        Gauge,
        "Seconds that requests have waited less for their first tokens than if all had been loaded, by a simulation of both.",
        "tier",
    ),
    "lpc_tier_loads_all": (
        Gauge,
        "1 where all that an offload tier has is loaded: too few loads are measured, or the choices have lost to that.",
        "tier",
    ),
    "lpc_tier_token_seconds": (Gauge, "Measured seconds per prompt token, to load it or to compute it.", "tier,by"),
    "lpc_advantage": (Gauge, "Sampled blocks per request that a rule's ghost cache hits more than that of LRU.", "rule"),
    "lpc_predictor_connected": (Gauge, "1 while the sidecar can be reached.", ""),
    "lpc_store_healthy": (Gauge, "1 while the store of shared claims can be used.", ""),
}

_shown: list[Counter | Gauge] = []
"""Of the engine of this process that was made last."""


class EngineMetrics:
    """The metrics of one engine. A later one of the same process takes an earlier one's place."""

    def __init__(self, engine: str) -> None:
        for metric in _shown:
            REGISTRY.unregister(metric)
        _shown.clear()
        self._engine = engine
        self._counted: Values = {}
        self._own = CollectorRegistry()
        self._metrics: dict[str, Counter | Gauge] = {}
        folder = os.environ.get(FOLDER)
        self._file = Path(folder) / f"{os.getpid()}.prom" if folder and "PROMETHEUS_MULTIPROC_DIR" not in os.environ else None
        for name, (kind, text, label) in METRICS.items():
            labels = (LABEL, *label.split(",")) if label else (LABEL,)
            metric = (
                Counter(name, text, labels) if kind is Counter else Gauge(name, text, labels, multiprocess_mode="mostrecent")
            )
            _shown.append(metric)
            self._own.register(metric)
            self._metrics[name] = metric

    def update(self, values: Values) -> None:
        """Show these values; a counter's is its total. Does nothing once another engine has taken this one's place."""
        if not _shown or _shown[0] is not next(iter(self._metrics.values())):
            return
        for (name, value_of_label), value in values.items():
            metric = self._metrics[name]
            child = metric.labels(self._engine, *(value_of_label.split(",") if METRICS[name][2] else ()))
            if isinstance(child, Gauge):
                child.set(value)
            else:
                more = value - self._counted.get((name, value_of_label), 0.0)
                self._counted[name, value_of_label] = value
                if more > 0:
                    child.inc(more)
        if self._file is not None and self._file.parent.is_dir():
            fresh = self._file.with_suffix(".new")
            fresh.write_bytes(generate_latest(self._own))
            fresh.replace(self._file)


class FolderCollector(Collector):
    """Shows what the engines in other processes have written into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are not checked against those of this process's own engine."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Merge all files but this process's."""
        families: dict[str, Metric] = {}
        for file in sorted(self._folder.glob("*.prom")):
            if file.stem == str(os.getpid()):
                continue
            for family in text_string_to_metric_families(file.read_text()):
                if family.name in families:
                    families[family.name].samples.extend(family.samples)
                else:
                    families[family.name] = family
        return families.values()


def register() -> None:
    """Show the metrics of engines that this process will start. In these themselves it does nothing.

    An engine is a child of multiprocessing. A server that some other program has started shows its own engines, even if that
    program has loaded vLLM too and the variable is inherited.
    """
    if FOLDER in os.environ and multiprocessing.parent_process() is not None:
        return
    folder = tempfile.mkdtemp(prefix="lpc-metrics-")
    os.environ[FOLDER] = folder
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child runs this too
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    REGISTRY.register(FolderCollector(Path(folder)))
