"""Measurements for `python -m benchmarks`. Each is a module with a function `run` that returns the figures."""

from lpc.errors import LpcError


class BenchmarkError(LpcError):
    """A benchmark cannot run. The message gives the cause and the remedy."""
