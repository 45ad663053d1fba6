"""Run by LMCache's Python: receives spans over gRPC and writes them as the file exporter of OpenTelemetry's collector does.

Arguments: port, file. gRPC's limit of 4 MiB per message is also the collector's default.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """A line of JSON per message."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def Export(self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext) -> object:  # noqa: N802
        found = MessageToDict(request)
        for scope in (scope for resource in found["resourceSpans"] for scope in resource["scopeSpans"]):
            for span in scope["spans"]:
                span["traceId"] = span["spanId"] = "0" * 15 + "1"
        with self.file.open("a") as lines:
            lines.write(json.dumps(found) + "\n")
        return trace_service_pb2.ExportTraceServiceResponse()


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Collector(Path(sys.argv[2])), server)
    server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    server.start()
    server.wait_for_termination()


main()
