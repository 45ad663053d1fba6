"""Request logs with time stamps, in the formats of publishers and gateways."""

from lpc_apps.logs.records import TraceError
from lpc_apps.logs.traces.request import Trace, TracedRequest

__all__ = ["Trace", "TraceError", "TracedRequest"]
