"""The conversations of answers that an engine keeps: a request that continues one by `previous_response_id` goes to its engine.

Only this process remembers them, because an engine chooses the id. Behind several gateways, name conversations instead.
"""

import re
from collections import OrderedDict
from typing import Final, NamedTuple

REMEMBERED: Final = 10_000
"""Answers that are remembered, the latest ones."""
_ID: Final = re.compile(rb'"id"\s*:\s*"([A-Za-z0-9_-]{1,128})"')
_SEARCHED: Final = 16 * 2**10
"""Bytes at the beginning of an answer in which its id is."""


class RoutedConversation(NamedTuple):
    """What the requests of a conversation share: the key that chooses the engine, and the name that is handed on."""

    affinity: bytes
    session: str | None


class Answered:
    """Conversations by tenant and id of an answer."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._most = most
        self._known: OrderedDict[tuple[str, str], RoutedConversation] = OrderedDict()

    def add(self, tenant: str, conversation: RoutedConversation, begins: bytes) -> None:
        """Remember the conversation of an answer that ``begins`` so, in a body or a stream. One without an id is ignored."""
        found = _ID.search(begins[:_SEARCHED])
        if found is None:
            return
        self._known[tenant, found[1].decode()] = conversation
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def find(self, tenant: str, answer: str | None) -> RoutedConversation | None:
        """Return the conversation of an answer's id; None if it is not known."""
        return None if answer is None else self._known.get((tenant, answer))
