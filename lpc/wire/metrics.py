"""Metrics of a process, each with the values of its labels."""

from collections.abc import Callable, Iterable
from itertools import product
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

M = TypeVar("M", Counter, Gauge, Histogram)


def registered(kind: Callable[..., M], registry: CollectorRegistry, name: str, text: str, /, **labels: Iterable[object]) -> M:
    """Return a new metric with all its series, so that the first event of each is an increase.

    Args:
        kind: the class, or one that has got its further arguments, such as the buckets.
        registry: where it is registered.
        name: its name, without the suffix of counters.
        text: its help.
        labels: values of each label. If a label has none, its values are not known before the events, and there is no series.
    """
    metric = kind(name, text, list(labels), registry=registry)
    for values in product(*labels.values()) if labels else ():
        metric.labels(*values)
    return metric
