"""Streams in logs, with members that are of no type that any program writes."""

import pytest

from lpc.requests.repair.places import head_paths
from lpc_apps.logs.chats.streams import whole


@pytest.mark.parametrize("odd", [["response.done"], {"a": 1}, None, 3])
def test_a_type_that_is_no_name_ends_no_stream(odd: object) -> None:
    events = [{"type": "response.created"}, {"type": odd, "response": {"id": "x"}}]
    assert whole(events) == events
    assert whole([*events, {"type": "response.completed", "response": {"id": "y"}}]) == {"id": "y"}


@pytest.mark.parametrize("odd", [["system"], {"a": 1}, None, 3])
def test_a_role_that_is_no_name_ends_the_instructions(odd: object) -> None:
    system = {"role": "system", "content": "a"}
    assert head_paths({"messages": [{"role": odd, "content": "b"}, system]}) == []
    assert len(head_paths({"messages": [system, {"role": odd, "content": "b"}, system]})) == 1
