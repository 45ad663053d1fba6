"""Names of conversations for the engine, if the client does not send one.

The messages before the last user turn are the state of the conversation after the previous answer. The gateway stores the
conversation's name under a digest of that state. So two users with the same beginning have two conversations from the first
answer that differs. If another gateway served the previous turn, or this one has restarted, the name is a digest of the
messages up to the first answer, which every gateway computes alike.

Turns answered from the cache do not reach an engine. They are reported to the predictor, because those conversations would
otherwise seem to have ended.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import grpc
import grpc.aio

from lpc.v1 import predictor_pb2, predictor_pb2_grpc
from lpc_apps.gateway.metrics import Metrics
from lpc_apps.gateway.request import Asked, next_state

AT_ONCE: Final = 64
"""Concurrent reports; further ones are dropped."""
TIMEOUT_S: Final = 5.0
Channel = Callable[[], tuple[grpc.aio.Channel, tuple[tuple[str, str], ...]]]


class Conversations:
    """The names of recent conversations, as digests and random names without text. Belongs to one event loop.

    Args:
        capacity: number of names.
        channel: to the sidecar.
    """

    def __init__(self, capacity: int, channel: Channel, metrics: Metrics) -> None:
        self._capacity = capacity
        self._channel = channel
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()
        self._names: OrderedDict[bytes, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def name(self, asked: Asked, states: Sequence[bytes]) -> str | None:
        """Return the name of a request's conversation; None if it cannot have one. ``states``: from `states_of`."""
        if asked.session is not None:
            return asked.session
        if not asked.messages:
            return None
        last = _last_reply(asked.messages)
        if last is None:
            return f"lpc-{secrets.token_hex(16)}"
        known = self._names.get(states[last])
        if known is not None:
            return known
        first = next(i for i, message in enumerate(asked.messages) if message["role"] == "assistant")
        return f"lpc-{states[first].hex()}"

    def answered(self, asked: Asked, states: Sequence[bytes], name: str | None, reply: str | None) -> None:
        """Store a conversation's new state. ``reply``: the answer's text; None if it is unknown."""
        if name is None or reply is None or asked.session is not None or not asked.messages:
            return
        state = next_state(states[-1], {"role": "assistant", "content": reply})
        self._names[state] = name
        self._names.move_to_end(state)
        while len(self._names) > self._capacity:
            self._names.popitem(last=False)

    def report(self, conversation: predictor_pb2.Conversation) -> None:
        """Report a user turn to the predictor, in the background."""
        if len(self._tasks) >= AT_ONCE:
            self._metrics.told.labels("dropped").inc()
            return
        task = asyncio.get_running_loop().create_task(self._report(conversation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Finish the reports in flight."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _report(self, conversation: predictor_pb2.Conversation) -> None:
        try:
            channel, metadata = self._channel()
            predict = predictor_pb2_grpc.ContinuationPredictorStub(channel).Predict
            await predict(predictor_pb2.PredictRequest(conversation=conversation), timeout=TIMEOUT_S, metadata=metadata)
        except Exception:
            self._metrics.told.labels("failed").inc()
        else:
            self._metrics.told.labels("sent").inc()


def _last_reply(messages: Sequence[Mapping[str, Any]]) -> int | None:
    return next((i for i in reversed(range(len(messages))) if messages[i]["role"] == "assistant"), None)
