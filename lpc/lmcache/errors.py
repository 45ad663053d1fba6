"""Errors of the part that works with LMCache, raised at its start and to its command line."""

from lpc.errors import LpcError


class LMCacheUnfit(LpcError):
    """LMCache is not there, or so configured that nothing can be done from outside. The message says what to change."""
