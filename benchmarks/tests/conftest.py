"""Fixtures of the project's tests that those of the benchmarks use as well."""

from tests.conftest import tiny_models

__all__ = ["tiny_models"]
