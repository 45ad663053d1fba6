"""The gateway repairs bodies by named rules: what engines get, who stays as they are, and what is counted."""

import json
import re
from contextlib import AsyncExitStack
from typing import Any

import pytest
from pydantic import ValidationError

from lpc.requests.repair import RULES as EVERY_RULE
from response_cache.gateway.clients import Tenants
from response_cache.gateway.metrics import Metrics
from response_cache.gateway.repairing import Repairing
from response_cache.gateway.request import Reader
from response_cache.gateway.settings import GatewaySettings
from tests.engine_double import EngineDouble, serve_double
from tests.integration.response_cache.gateway.conftest import CHAT, a_gateway

RULES = ("move-time", "tool-order")
USAGE = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 80}}
LINE = "Current time: 2026-11-30T11:{:02}:01Z"


def turn(conversation: int, number: int, **more: Any) -> dict[str, Any]:
    """Return the request of a conversation with so many earlier turns, with a time at its head."""
    said = [
        {"role": role, "content": f"{conversation} {at} {role}"} for at in range(number + 1) for role in ("user", "assistant")
    ]
    system = {"role": "system", "content": f"You help.\n{LINE.format(number)}\nBe brief."}
    return {"model": "m", "messages": [system, *said[:-1]], **more}


def is_repaired(body: dict[str, Any]) -> bool:
    return body["messages"][0]["content"] == "You help.\nBe brief."


async def test_engines_get_repaired_bodies_and_all_other_bytes_as_they_were() -> None:
    async with serve_double(EngineDouble(usage=USAGE)) as engine, a_gateway(engine, gateway_repair=RULES) as gateway:
        raw = json.dumps(
            turn(1, 1, stream=True, stream_options={"include_usage": True}, n=1, x=[1.0, 1e300]), indent=2
        ).replace("1e+300", "1E300")
        for body in (raw, raw.replace("Current", "Lunch")):
            answer = await gateway.client.post(CHAT, content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 200
        repaired, other = (one.body.decode() for one in engine.completions)
        salted = re.compile(r'"cache_salt":"[^"]*",')
        expected = raw.replace(f"\\n{LINE.format(1)}", "").replace("1 1 user", f"1 1 user\\n\\n{LINE.format(1)}")
        assert salted.sub("", repaired) == expected
        assert salted.sub("", other) == raw.replace("Current", "Lunch")
        assert await gateway.metric('lpc_gateway_repair_requests_total{group="repaired",rule="move-time"}') == 1
        assert await gateway.metric('lpc_gateway_repair_requests_total{group="repaired",rule="any"}') == 1
        assert await gateway.metric('lpc_gateway_repair_requests_total{group="repaired",rule="tool-order"}') == 0
        assert await gateway.metric('lpc_gateway_repair_prompt_tokens_total{found="cached",group="repaired"}') == 80
        assert await gateway.metric('lpc_gateway_repair_prompt_tokens_total{found="computed",group="repaired"}') == 20


async def test_a_dry_run_counts_and_changes_nothing() -> None:
    async with (
        serve_double(EngineDouble(usage=USAGE)) as engine,
        a_gateway(engine, gateway_repair=RULES, gateway_repair_dry_run=True) as gateway,
    ):
        assert (await gateway.ask(turn(1, 0))).status_code == 200
        (sent,) = engine.completions
        assert sent.json["messages"] == turn(1, 0)["messages"]
        assert await gateway.metric('lpc_gateway_repair_requests_total{group="dry_run",rule="move-time"}') == 1
        assert await gateway.metric('lpc_gateway_repair_prompt_tokens_total{found="cached",group="dry_run"}') == 80


@pytest.mark.parametrize("header", [None, "x-session-id", "session_id"])
async def test_the_share_that_is_left_is_the_same_conversations_in_all_turns_and_gateways(header: str | None) -> None:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(serve_double(EngineDouble(usage=USAGE)))
        share = {"gateway_repair": RULES, "gateway_repair_left_share": 0.5}
        gateways = [await stack.enter_async_context(a_gateway(engine, **share)) for _ in range(2)]
        groups: dict[int, set[bool]] = {}
        for conversation in range(16):
            for number in range(4):
                gateway = gateways[(conversation + number) % 2]
                headers = {} if header is None else {header: f"s{conversation}"}
                answer = await gateway.client.post(CHAT, json=turn(conversation, number), headers=headers)
                assert answer.status_code == 200
                groups.setdefault(conversation, set()).add(is_repaired(engine.completions[-1].json))
        assert all(len(found) == 1 for found in groups.values())
        repaired = sum(True in found for found in groups.values())
        assert 0 < repaired < 16
        counted = [
            sum(
                [
                    await gateway.metric(f'lpc_gateway_repair_requests_total{{group="{group}",rule="any"}}')
                    for gateway in gateways
                ]
            )
            for group in ("repaired", "left")
        ]
        assert counted == [4 * repaired, 4 * (16 - repaired)]


async def test_rules_of_a_scope_stand_in_place_of_those_of_all() -> None:
    scopes = {"gateway_scopes": {"*": ("code", "faq")}, "gateway_repair_scopes": {"code": ("drop-billing",), "faq": ()}}
    async with (
        serve_double(EngineDouble(usage=USAGE)) as engine,
        a_gateway(engine, gateway_repair=RULES, **scopes) as gateway,
    ):
        for scope, repaired in (("", True), ("code", False), ("faq", False)):
            headers = {"x_lpc_scope": scope} if scope else {}
            assert (await gateway.ask(turn(1, 0), **headers)).status_code == 200
            assert is_repaired(engine.completions[-1].json) is repaired


async def test_turns_of_a_repaired_conversation_stay_at_its_engine() -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(serve_double(EngineDouble(usage=USAGE))) for _ in range(3)]
        gateway = await stack.enter_async_context(a_gateway(*engines, gateway_repair=RULES, gateway_cache=False))
        for conversation in range(6):
            for number in range(3):
                assert (await gateway.ask(turn(conversation, number, stream=True))).status_code == 200
        for conversation in range(6):
            homes = [sum(f"{conversation} 0 user" in one.body.decode() for one in engine.completions) for engine in engines]
            assert sorted(homes) == [0, 0, 3]
        assert await gateway.metric('lpc_gateway_routes_total{route="home"}') == 12


async def test_two_tenants_share_nothing_by_a_repair() -> None:
    async with (
        serve_double(EngineDouble(usage=USAGE)) as engine,
        a_gateway(engine, gateway_repair=(*RULES, "stable-id")) as gateway,
    ):
        for tenant in ("red", "blue"):
            body = turn(1, 0)
            body["messages"][0]["content"] += f"\nRequest ID: {tenant}8f3e91aa77"
            assert (await gateway.ask(body, x_forwarded_user=tenant)).status_code == 200
        red, blue = (one.json for one in engine.completions)
        assert red["cache_salt"] != blue["cache_salt"]
        assert red["messages"] == blue["messages"] and "8f3e91aa77" not in json.dumps([red, blue])


async def test_hostile_bodies_are_answered_as_without_rules() -> None:
    names = tuple(rule.name for rule in EVERY_RULE)
    bodies = [
        b'{"messages": [{"role": "system", "content": "Current time: 11:39\\nGo."}], "messages": []}',
        b'{"messages": [{"role": "system", "content": "Current time: 11:39\\nGo."}, {"role": "user"}], "x": 1e999}',
        b'{"messages": ' + b"[" * 90 + b"]" * 90 + b"}",
        b'{"messages": [{"role": "system", "content": "\\ud800\\nTurn: 5\\nGo."}, {"role": "user", "content": "\\udfff"}]}',
        json.dumps(
            {"messages": [{"role": "system", "content": "Turn: 5\n" * 20_000}, {"role": "user", "content": "a"}]}
        ).encode(),
        b'{"messages": [{"role": "system", "content": ["Turn: 5", 1, null, {"type": "text", "text": 5}]}, {"role": "user"}]}',
        b'{"messages": {"0": {"role": "system"}}, "tools": {"a": 1}, "system": {"text": "x"}}',
    ]
    async with (
        serve_double(EngineDouble()) as engine,
        a_gateway(engine) as plain,
        a_gateway(engine, gateway_repair=names) as gateway,
    ):
        for body in bodies:
            fields = {"content-type": "application/json"}
            statuses = [
                (await each.client.post("/v1/messages", content=body, headers=fields)).status_code for each in (plain, gateway)
            ]
            assert statuses[0] == statuses[1], body[:80]
        assert await gateway.metric("lpc_gateway_repair_failures_total") == 0


async def test_an_error_of_a_rule_sends_the_request_as_it_was(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("text of a user")

    async with serve_double(EngineDouble(usage=USAGE)) as engine, a_gateway(engine, gateway_repair=RULES) as gateway:
        monkeypatch.setattr("lpc.requests.repair.moved.with_head", broken)
        assert (await gateway.ask(turn(1, 0))).status_code == 200
        assert engine.completions[0].json["messages"] == turn(1, 0)["messages"]
        assert await gateway.metric("lpc_gateway_repair_failures_total") == 1
    assert "ValueError" in caplog.text and "text of a user" not in caplog.text


def test_an_unknown_rule_is_refused_at_the_start() -> None:
    for wrong in ({"gateway_repair": "move-tim,tool-order"}, {"gateway_repair_scopes": {"code": ("move-tim",)}}):
        with pytest.raises(ValidationError, match="unknown repair rule 'move-tim': use tool-order, function-keys"):
            GatewaySettings(**wrong)
    assert GatewaySettings(gateway_repair=" move-time, tool-order ").gateway_repair == ("move-time", "tool-order")
    assert not GatewaySettings(gateway_repair_scopes={"code": ()}).repairs


async def test_caches_key_on_what_the_engine_reads() -> None:
    def body(request: str) -> bytes:
        system = {"role": "system", "content": f"You help.\nRequest ID: {request}"}
        return json.dumps({"model": "m", "messages": [system, {"role": "user", "content": "hi"}], "temperature": 0}).encode()

    async def questions(*rules: str) -> list[Any]:
        settings = GatewaySettings(gateway_repair=rules)
        reader = Reader(Tenants(b"k" * 32), 1000, repairing=Repairing(settings, Metrics(), lambda: "any"))
        bodies = [body("8f3e91aa77"), body("77aa19e3f8")]
        return [(await reader.read(CHAT, [], one, "", "tenant", "default", "default")).question for one in bodies]

    named, moved, plain = await questions("stable-id"), await questions("move-id"), await questions()
    assert named[0] == named[1]
    assert moved[0] != moved[1] and plain[0] != plain[1] and moved[0] != plain[0]
