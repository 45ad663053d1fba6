"""Values of metrics, read as a scrape reads them."""

from prometheus_client import Counter


def counted(counter: Counter) -> float:
    """Return the value of a counter: of one set of labels, if it has labels."""
    (metric,) = counter.collect()
    return next(sample.value for sample in metric.samples if sample.name.endswith("_total"))
