"""All turns of a conversation go to one engine under one name, whatever form a client gives to what engines read alike."""

import asyncio
import json
from collections import Counter

import pytest

from response_cache.gateway.clients import ANONYMOUS, Tenants
from response_cache.gateway.engines import Engines
from response_cache.gateway.metrics import Metrics
from response_cache.gateway.request import Reader, Reading, user_of
from tests.client_behaviours import BEHAVIOURS, MESSAGES, RESPONSES, Turn, billed, said

READER = Reader(Tenants(b"k" * 32), 10_000)
ENGINES = Engines([f"http://engine-{number}:8000" for number in range(4)], Metrics())
CONVERSATIONS, TURNS = 40, 5


async def reading_of(turn: Turn, tenant: str = "t") -> Reading:
    path, body, headers = turn
    fields = [(name.encode(), value.encode()) for name, value in headers.items()]
    return await READER.read(path, fields, json.dumps(body).encode(), "", tenant, None)


def read(turn: Turn, tenant: str = "t") -> Reading:
    return asyncio.run(reading_of(turn, tenant))


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
async def test_no_turn_moves_and_no_name_changes(behaviour: str) -> None:
    moved, names, homes = 0, set(), Counter[str]()
    for conversation in range(CONVERSATIONS):
        readings = [await reading_of(BEHAVIOURS[behaviour](conversation, turn)) for turn in range(TURNS)]
        engines = [ENGINES.ranked(reading.route.key)[0].url for reading in readings]
        moved += sum(engine != engines[0] for engine in engines)
        homes[engines[0]] += 1
        if "compacted" not in behaviour:  # a summary begins another prompt
            (name,) = {reading.session for reading in readings}
            names.add(name)

    assert moved == 0
    assert len(homes) == len(ENGINES.all)  # conversations are still told apart
    assert len(names - {None}) in (0, CONVERSATIONS)


def test_agents_of_one_session_share_an_engine_and_have_names_of_their_own() -> None:
    path, body, headers = billed(1, 0, "header")
    main, agent = read((path, body, headers)), read((path, {**body, "system": "You search files."}, headers))
    assert main.route.key == agent.route.key and main.session != agent.session
    assert main.route.key != read((path, body, headers), "another tenant").route.key


def test_the_user_of_claude_code_is_named_without_the_session() -> None:
    users = [user_of(billed(conversation, 0, form)[1]) for form in ("text", "json") for conversation in (1, 2)]
    assert users[0] == users[1] == "user_0a_account_0b" and users[2] == users[3] != users[0]
    assert user_of({"metadata": {"user_id": "{not JSON"}}) == "{not JSON"


@pytest.mark.parametrize("field", ["session_id", "conversation_id", "x-session-affinity"])
def test_header_fields_of_other_clients_name_the_conversation(field: str) -> None:
    first, later = ((RESPONSES, {"input": text}, {field: "one"}) for text in ("a", "b"))
    assert read(first).session == read(later).session is not None
    assert read(first).route.key == read(later).route.key != read((RESPONSES, {"input": "a"}, {field: "two"})).route.key


def test_requests_that_engines_read_apart_have_different_keys() -> None:
    def key(**fields: object) -> bytes:
        return read((MESSAGES, {"model": "m", "messages": said(1, 0), **fields}, {})).route.key

    image = [{"type": "image", "source": {"type": "base64", "data": data}} for data in ("aa", "bb")]
    asked = [[{"role": "user", "content": [part, {"type": "text", "text": "What is it?"}]}] for part in image]
    keys = [key(), key(model="n"), key(system="a"), key(system="b"), *(key(messages=messages) for messages in asked)]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("odd", [7, {"a": 1}, [7], [None], [{"role": "user"}], [{"role": 7, "content": {"text": 1}}], [[]]])
def test_an_odd_body_has_a_key(odd: object) -> None:
    for field in ("messages", "input", "prompt", "system", "instructions", "metadata", "model"):
        assert read((MESSAGES, {field: odd}, {}), ANONYMOUS).route.key
