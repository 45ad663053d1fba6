"""What `lpc doctor` finds of a sidecar's response caches."""

from typing import Final

import grpc

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.cache.v1 import response_cache_pb2_grpc as rpc
from lpc.commands.finding import Finding
from lpc.wire.access import Access

CHECK: Final = "response caches"
TIMEOUT_S: Final = 5.0


def response_caches(channel: grpc.Channel, access: Access) -> Finding:
    """Ask a sidecar whether it has response caches, and whether it reaches their Redis."""
    message = pb.StatsRequest(scope="default", days=1)
    try:
        stats = rpc.ResponseCacheStub(channel).Stats(message, timeout=TIMEOUT_S, metadata=access.metadata)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return Finding(CHECK, "ok", "off in this sidecar (LPC_CACHE_REDIS_URL)")
        return Finding(CHECK, "fail", f"the sidecar answers {error.code().name}", "see the sidecar's log")
    if not all(scope.known for scope in stats.scopes):
        advice = "see the sidecar's log, which names the kind of error; until it is mended requests go to the engines"
        return Finding(CHECK, "fail", "on, and their Redis does not answer the sidecar", advice)
    entries = sum(scope.entries for scope in stats.scopes)
    return Finding(CHECK, "ok", f"on, {entries:,} answers of this client in the scope default")
