"""Things that benchmarks and tests start: processes, real engines without a model, tiny engines, LMCache's stack."""

from lpc.errors import LpcError


class Unavailable(LpcError):
    """A process or an environment does not run. The message gives the cause and the remedy."""
