"""The gateway names a request's user to plug-ins, by its tenant."""

import asyncio
import json
from typing import Any

import pytest

from response_cache.gateway.clients import ANONYMOUS, Tenants
from response_cache.gateway.request import ARGUMENTS, USER_FIELDS, Reader

TENANTS = Tenants(b"k" * 32)


def sent(fields: dict[str, Any], tenant: str = "t", engine: str | None = "vllm") -> dict[str, Any]:
    reader = Reader(TENANTS, 1000, None if engine is None else ARGUMENTS[engine])
    reading = asyncio.run(reader.read("/v1/chat/completions", [], json.dumps(fields).encode(), "", tenant, None))
    found: dict[str, Any] = json.loads(reading.body)
    return found


def named(path: tuple[str, ...], name: object) -> dict[str, Any]:
    fields: Any = name
    for part in reversed(path):
        fields = {part: fields}
    return {"messages": [], **fields}


@pytest.mark.parametrize("path", USER_FIELDS, ids=".".join)
@pytest.mark.parametrize("engine", ARGUMENTS)
def test_each_apis_user_reaches_the_plugin_under_its_tenant(path: tuple[str, ...], engine: str) -> None:
    users = {
        tenant: sent(named(path, "alice"), tenant, engine)[ARGUMENTS[engine]]["user_id"] for tenant in ("t", "u", ANONYMOUS)
    }

    assert len(set(users.values())) == 3 and users[ANONYMOUS] == "alice"
    assert all(len(users[tenant]) == 64 for tenant in ("t", "u"))
    assert (
        users["t"] == sent({"messages": [], ARGUMENTS[engine]: {"user_id": "alice"}}, "t", engine)[ARGUMENTS[engine]]["user_id"]
    )


@pytest.mark.parametrize("odd", ["", None, 7, ["alice"], {"id": "alice"}])
def test_an_invalid_name_is_ignored(odd: object) -> None:
    for path in USER_FIELDS:
        assert "vllm_xargs" not in sent(named(path, odd))


def test_without_hints_the_body_does_not_change() -> None:
    assert "vllm_xargs" not in sent({"messages": [], "user": "alice"}, engine=None)


def test_the_clients_own_argument_stays() -> None:
    own = sent({"messages": [], "user": "alice", "vllm_xargs": {"user_id": "bob"}})["vllm_xargs"]["user_id"]

    assert own == sent({"messages": [], "user": "bob"})["vllm_xargs"]["user_id"]
