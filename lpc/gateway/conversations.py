"""How a conversation is named to the engine if its client does not name it.

A request's messages before its last user turn are the conversation as it stood after the answer before. When that answer ends,
the gateway remembers the conversation's name under a digest of them, its state. So two users who begin alike are two
conversations, from the first answer that differs on. If another gateway served the turn before, or this one was restarted, the
name is a digest of the beginning up to the first answer, which is the same for every gateway.

Turns answered from the cache, which no engine sees, are reported to the predictor: else they look like ended conversations.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import grpc
import grpc.aio

from lpc.gateway.metrics import Metrics
from lpc.gateway.request import Asked, next_state
from lpc.v1 import predictor_pb2, predictor_pb2_grpc

AT_ONCE: Final = 64
"""Reports in flight; what comes beyond is left out."""
TIMEOUT_S: Final = 5.0
Channel = Callable[[], tuple[grpc.aio.Channel, tuple[tuple[str, str], ...]]]


class Conversations:
    """The names of the conversations served last. Digests and random names only, never text. Lives on one event loop.

    Args:
        capacity: names remembered.
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
        """Return the name of a request's conversation; None if it cannot have one. ``states``: of `states_of`."""
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
        """Note how a conversation stands now. ``reply``: the answer's text; None where it is not known."""
        if name is None or reply is None or asked.session is not None or not asked.messages:
            return
        state = next_state(states[-1], {"role": "assistant", "content": reply})
        self._names[state] = name
        self._names.move_to_end(state)
        while len(self._names) > self._capacity:
            self._names.popitem(last=False)

    def report(self, conversation: predictor_pb2.Conversation) -> None:
        """Report to the predictor, in the background, that a user turn of a conversation has arrived."""
        if len(self._tasks) >= AT_ONCE:
            self._metrics.told.labels("dropped").inc()
            return
        task = asyncio.get_running_loop().create_task(self._report(conversation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Let what is in flight come to its end."""
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
