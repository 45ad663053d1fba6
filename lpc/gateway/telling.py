"""Tells the predictor of turns that no engine sees, those answered from the cache: else they look like ended conversations."""

import asyncio
from collections.abc import Callable
from typing import Final

import grpc
import grpc.aio

from lpc.gateway.metrics import Metrics
from lpc.v1 import predictor_pb2, predictor_pb2_grpc

AT_ONCE: Final = 64
"""Tellings in flight; what comes beyond is left out."""
TIMEOUT_S: Final = 5.0
Channel = Callable[[], tuple[grpc.aio.Channel, tuple[tuple[str, str], ...]]]


class Telling:
    """In the background; nobody waits for it. Lives on one event loop.

    ``channel``: to the sidecar.
    """

    def __init__(self, channel: Channel, metrics: Metrics) -> None:
        self._channel = channel
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, conversation: predictor_pb2.Conversation) -> None:
        """Tell that a user turn of a conversation has arrived."""
        if len(self._tasks) >= AT_ONCE:
            self._metrics.told.labels("dropped").inc()
            return
        task = asyncio.get_running_loop().create_task(self._tell(conversation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Let what is in flight come to its end."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _tell(self, conversation: predictor_pb2.Conversation) -> None:
        try:
            channel, metadata = self._channel()
            predict = predictor_pb2_grpc.ContinuationPredictorStub(channel).Predict
            await predict(predictor_pb2.PredictRequest(conversation=conversation), timeout=TIMEOUT_S, metadata=metadata)
        except Exception:
            self._metrics.told.labels("failed").inc()
        else:
            self._metrics.told.labels("sent").inc()
