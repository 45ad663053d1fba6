"""Asks a sidecar for its health over gRPC; exit status 0 means that it serves. The image's health check and exec probe.

The address is the argument if there is one, else the Unix socket of LPC_UNIX_SOCKET, which speaks plain gRPC even where the TCP
port asks for TLS, else LPC_HOST (for all addresses: 127.0.0.1) and LPC_PORT. Proxies of the environment are not used for it.
"""

import os
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lpc.wire.access import Access
from lpc.wire.addresses import bare, target, with_port

TIMEOUT_S = 3.0
EVERYWHERE = ("0.0.0.0", "::")


def main() -> int:
    """Ask once."""
    socket = os.environ.get("LPC_UNIX_SOCKET")
    host = bare(os.environ.get("LPC_HOST") or "127.0.0.1")
    own = with_port("127.0.0.1" if host in EVERYWHERE else host, int(os.environ.get("LPC_PORT") or 50051))
    address = f"unix://{socket}" if socket else own
    options = [("grpc.enable_http_proxy", 0)]
    if len(sys.argv) > 1:
        address, options = target(sys.argv[1]), []
    with Access().channel(address, options) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            print(f"no answer from {address}: {error.code().name}", file=sys.stderr)
            return 1
    return 0 if answer.status == health_pb2.HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    sys.exit(main())
