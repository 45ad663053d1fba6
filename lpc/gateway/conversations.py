"""How a conversation is named to the engine if its client does not name it.

A request's messages before its last user turn are the conversation as it stood after the answer before. When that answer ends,
the gateway remembers the conversation's name under a digest of them, its state. So two users who begin alike are two
conversations, from the first answer that differs on. If another gateway served the turn before, or this one was restarted, the
name is a digest of the beginning up to the first answer, which is the same for every gateway.
"""

import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from lpc.gateway.request import Asked, digest


class Conversations:
    """The names of the conversations served last. Digests and random names only, never text. Lives on one event loop.

    Args:
        capacity: names remembered.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
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
        state = _next(states[-1], {"role": "assistant", "content": reply})
        self._names[state] = name
        self._names.move_to_end(state)
        while len(self._names) > self._capacity:
            self._names.popitem(last=False)


def _last_reply(messages: Sequence[Mapping[str, Any]]) -> int | None:
    return next((i for i in reversed(range(len(messages))) if messages[i]["role"] == "assistant"), None)


def states_of(asked: Asked, tenant: str) -> Sequence[bytes]:
    """Return the state of a conversation after each of its messages: digests, each of the one before and a message."""
    state = digest("conversation", tenant, asked.body.get("model"))
    states: list[bytes] = []
    for message in asked.messages:
        state = _next(state, message)
        states.append(state)
    return states


def _next(state: bytes, message: Mapping[str, Any]) -> bytes:
    # White space at the ends is what clients trim before they send an answer back.
    return digest(state.hex(), message["role"], _spoken(message.get("content")))


def _spoken(content: object) -> object:
    return content.strip() if isinstance(content, str) else content
