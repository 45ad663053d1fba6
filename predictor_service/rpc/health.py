"""gRPC's health service.

`grpc_health.v1.health.aio.HealthServicer` writes to each watcher while it holds a lock that a change of status needs, so a
watcher that does not read would stop all changes, and the shutdown.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeAlias

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

Status: TypeAlias = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it has no types
    """Reports which services work. Use it from one event loop only."""

    def __init__(self) -> None:
        self._statuses: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._shut_down = False

    def show(self, services: Iterable[str], *, serving: bool) -> None:
        """Report whether services work; ignored after :meth:`shut_down`. The empty name stands for the whole sidecar."""
        if not self._shut_down:
            self._set(services, Status.SERVING if serving else Status.NOT_SERVING)

    def shut_down(self) -> None:
        """Report all services as not serving, for good."""
        self._shut_down = True
        self._set(list(self._statuses), Status.NOT_SERVING)

    def _set(self, services: Iterable[str], status: int) -> None:
        self._statuses.update(dict.fromkeys(services, status))
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> Status:
        """Return a service's status."""
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "the sidecar does not have this service")
        return Status(status=status)

    async def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> AsyncIterator[Status]:
        """Send a service's status, and each change of it."""
        del context
        sent = None
        while True:
            changed = self._changed
            status = self._statuses.get(request.service, Status.SERVICE_UNKNOWN)
            if status != sent:
                yield Status(status=status)
                sent = status
            await changed.wait()
