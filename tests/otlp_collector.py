"""A collector of traces: OTLP's service over real gRPC. It stores the received spans."""

import threading
from concurrent import futures
from types import TracebackType
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from lpc.wire.certificates import CertificateFiles


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Listens on a free port of 127.0.0.1, with TLS if files are given."""

    def __init__(self, files: CertificateFiles | None = None) -> None:
        self.requests: list[trace_service_pb2.ExportTraceServiceRequest] = []
        self._came = threading.Condition()
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        if files is None:
            self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        else:
            assert files.key is not None and files.certificate is not None
            pair = (files.key.read_bytes(), files.certificate.read_bytes())
            port = self._server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
            self.endpoint = f"https://127.0.0.1:{port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.stop(0).wait()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        with self._came:
            self.requests.append(request)
            self._came.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for r in self.requests
            for resource in r.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def wait_for(self, count: int, timeout_s: float = 20) -> list[Span]:
        with self._came:
            self._came.wait_for(lambda: len(self.spans) >= count, timeout_s)
            return self.spans


def attributes(span: Span) -> dict[str, str | int]:
    found: dict[str, str | int] = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        assert kind in ("string_value", "int_value"), kind
        found[pair.key] = getattr(pair.value, kind)
    return found
