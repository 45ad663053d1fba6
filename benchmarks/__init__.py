"""Measurements, as `python -m benchmarks` runs them: a module each, with a function `run` that returns the figures."""

from lpc.errors import LpcError


class BenchmarkError(LpcError):
    """A benchmark cannot run. The message says why and what to do."""
