"""Spans with reuse classes alone."""

from itertools import pairwise

from eviction_client.policy.request import Span, Spans


def spans_of(*classes: tuple[int, int]) -> Spans:
    """Return the spans of a chain, each given by its end and its class."""
    starts = pairwise((0, *(end for end, _ in classes)))
    return Spans(Span(start, end, number) for (start, end), (_, number) in zip(starts, classes, strict=True))
