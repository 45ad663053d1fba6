"""Asks a sidecar for its health over gRPC; exit status 0 means that it serves. The image's health check and exec probe.

The address is the argument if there is one, else the Unix socket of LPC_UNIX_SOCKET, which speaks plain gRPC even where the TCP
port asks for TLS, else 127.0.0.1 and the port of LPC_PORT.
"""

import os
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 3.0


def main() -> int:
    """Ask once."""
    socket = os.environ.get("LPC_UNIX_SOCKET")
    address = f"unix://{socket}" if socket else f"127.0.0.1:{os.environ.get('LPC_PORT', '50051')}"
    if len(sys.argv) > 1:
        address = sys.argv[1]
    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            print(f"no answer from {address}: {error.code().name}", file=sys.stderr)
            return 1
    return 0 if answer.status == health_pb2.HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    sys.exit(main())
