"""Calls to LMCache nodes over real HTTP, and failures of nodes."""

import asyncio
import base64
import gzip
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse

from eviction_client.transport.scripted_predictor import ScriptedPredictor
from lpc_apps.lmcache import loop as loops
from lpc_apps.lmcache import node as nodes
from lpc_apps.lmcache.events import Event
from lpc_apps.lmcache.gate import front
from lpc_apps.lmcache.loop import Loop
from lpc_apps.lmcache.metrics import exposition, status
from lpc_apps.lmcache.node import Node, NodeError
from lpc_apps.lmcache.tier_cache import DELETION_TIMEOUT_S
from tests.eventually import patiently
from tests.integration.lmcache.lmcache_node import NodeServer, serving
from tests.unit.lmcache.nodes import MIB, Prompt, event, words
from tests.unit.lmcache.test_service import DISK, MEMORY, World, prompts

PROMPT = Prompt(*words(1, 2))
OBJECTS = [object_ for objects in PROMPT.objects for object_ in objects]


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient() as client:
        yield client


async def _without_end() -> AsyncIterator[bytes]:
    while True:
        yield b" " * 65_536
        await asyncio.sleep(0)


FAULTS: dict[str, Callable[[Request], Response]] = {
    "refuses": lambda _: PlainTextResponse(f"bad body: {PROMPT.tokens}", 422),
    "breaks": lambda _: PlainTextResponse("", 500),
    "is no JSON": lambda _: PlainTextResponse("<html>"),
    "is a list": lambda _: PlainTextResponse("[1]"),
    "redirects": lambda _: RedirectResponse("/healthcheck"),
    "redirects and answers": lambda _: PlainTextResponse('{"skipped": 0, "ok": true}', 307, {"location": "/healthcheck"}),
    "is deep": lambda _: PlainTextResponse("[" * 50_000),
    "is no gzip": lambda _: PlainTextResponse("{}", headers={"content-encoding": "gzip"}),
    "is too long": lambda _: StreamingResponse(_without_end()),
    "is packed and too long": lambda _: Response(gzip.compress(bytes(64 << 20)), headers={"content-encoding": "gzip"}),
    "is half": lambda _: Response(b'{"ok": tr', headers={"content-length": "20"}),
    "skips more than asked": lambda _: PlainTextResponse('{"skipped": 1000000, "ok": true}'),
    "skips less than none": lambda _: PlainTextResponse('{"skipped": -3, "ok": true}'),
    "skips without end": lambda _: PlainTextResponse('{"skipped": 1e999, "ok": true}'),
    "skips no number": lambda _: PlainTextResponse('{"skipped": NaN, "ok": true}'),
    "could not": lambda _: PlainTextResponse('{"deleted": 0, "skipped": 0, "ok": false, "error": "disk"}'),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_malformed_answer_is_an_error_without_tokens(client: httpx2.AsyncClient, fault: str) -> None:
    server = NodeServer()
    server.fault = FAULTS[fault]
    async with serving(server.app) as address:
        with pytest.raises(NodeError) as error:
            await Node(client, address).delete("l1", OBJECTS)
    assert str(PROMPT.tokens[0]) not in str(error.value)


async def _trickle() -> AsyncIterator[bytes]:
    while True:
        yield b" "
        await asyncio.sleep(0.01)


async def test_a_node_that_answers_byte_by_byte_does_not_hold_up_the_next_deletions(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """httpx2 bounds the time between two bytes: such a call lasted for ever, and the tier was busy until then."""
    monkeypatch.setattr(nodes, "TIMEOUT_S", 0.2)
    world, _ = filled()
    server = NodeServer()
    server.fault = lambda _: StreamingResponse(_trickle())
    async with serving(server.app) as address:
        loop = Loop(world.service, ScriptedPredictor(), lambda _: Node(client, address))
        await loop.tick()
        await asyncio.wait_for(loop.settled(), patiently())
        assert loop.failures["delete"] == 1
        server.fault = None
        world.pass_(DELETION_TIMEOUT_S)
        await loop.tick()
        await loop.settled()
    assert len(server.deleted) == 1


@pytest.mark.parametrize("ip", ["", "a b", "::zz", "exa\nmple", "x" * 300, "[", "1.2.3.4:x@y/?#"])
async def test_a_node_that_registers_under_a_malformed_address_is_an_error_of_the_node(
    client: httpx2.AsyncClient, ip: str
) -> None:
    with pytest.raises(NodeError):
        await Node(client, f"{ip}:0").delete("l1", OBJECTS)


async def test_a_node_that_vanishes_during_a_deletion_leaves_no_state(client: httpx2.AsyncClient) -> None:
    world, _ = filled()
    begun, gone = asyncio.Event(), asyncio.Event()

    class Vanishing(Node):
        async def delete(self, tier: str, objects: Any) -> int:
            begun.set()
            await gone.wait()
            raise NodeError("ReadError")

    loop = Loop(world.service, ScriptedPredictor(), lambda _: Vanishing(client, "127.0.0.1:1"))
    await loop.tick()
    await begun.wait()
    loop.fence(MEMORY.node)
    await loop.tick()
    gone.set()
    await loop.settled()
    await loop.tick()
    assert MEMORY not in world.service.caches
    assert loop.failures == {"tick": 0, "delete": 1, "refit": 0}


def filled(**settings: Any) -> tuple[World, list[Prompt]]:
    world = World(**settings)
    all_ = prompts(4)
    for prompt in all_:
        world.serve(prompt)
        world.pass_(10)
    world.pass_(20)
    return world, all_


async def test_a_tick_deletes_from_the_node_and_requests_predictions(client: httpx2.AsyncClient) -> None:
    world, all_ = filled()
    server, sidecar = NodeServer(), ScriptedPredictor(record=True)
    async with serving(server.app) as address:
        loop = Loop(world.service, sidecar, lambda _: Node(client, address))
        await loop.tick()
        await loop.settled()
    assert [entry["chunk_hash_hex"] for entry in server.deleted[0]["keys"]] == [
        all_[0].objects[1][0].hash,
        all_[0].objects[0][0].hash,
    ]
    cache = world.service.caches[MEMORY]
    assert (cache.used, cache.deleted) == (6 * MIB, 2 * MIB)
    assert len(sidecar.asked) == 4
    first = next(iter(sidecar.asked.values()))
    assert (list(first.token_ids), first.served_model) == (all_[0].tokens, "llama")


def nonsense(_: Request) -> Response:
    return PlainTextResponse('{"deleted": 1, "skipped": "some of 1000", "ok": true}')


@pytest.mark.parametrize("fault", ["breaks", "nobody", "unregistered", "nonsense"])
async def test_failures_of_a_node_are_counted_and_logged_once_without_tokens(
    client: httpx2.AsyncClient, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    world, all_ = filled()
    server = NodeServer()
    server.fault = nonsense if fault == "nonsense" else FAULTS["refuses"]
    async with serving(server.app) as address:
        where = "127.0.0.1:1" if fault == "nobody" else address
        loop = Loop(world.service, ScriptedPredictor(), lambda _: None if fault == "unregistered" else Node(client, where))
        with caplog.at_level(logging.DEBUG):
            for _ in range(3):
                await loop.tick()
                await loop.settled()
                world.pass_(10)
    assert loop.failures["delete"] == (0 if fault == "unregistered" else 3)
    ours = [record for record in caplog.records if record.name.startswith("lpc")]
    assert len(ours) == (0 if fault == "unregistered" else 1)
    assert not any(str(all_[0].tokens[1]) in record.getMessage() for record in caplog.records)
    assert world.service.caches[MEMORY].used == 8 * MIB


async def test_malformed_events_are_counted_and_others_are_applied(client: httpx2.AsyncClient) -> None:
    world, all_ = filled()
    loop = Loop(world.service, ScriptedPredictor(), lambda _: None)
    loop.report(Event("store", "l1", "a", False, 0.0, [None]))  # type: ignore[list-item]
    loop.report(event("access", all_[3].entries(), world.now))
    loop.declare(DISK, 5)
    await loop.tick()
    assert loop.failures["tick"] == 1
    assert world.service.counters.turns == 1
    assert world.service.caches[DISK].capacity == 5


async def test_many_events_do_not_block_the_coordinator(client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes wait two seconds for the coordinator to accept a report, then drop it."""
    monkeypatch.setattr(loops, "EVENTS_SLICE_S", 0.0)
    world = World()
    loop = Loop(world.service, ScriptedPredictor(), lambda _: None)
    turns = [0]
    seen = []

    async def serves() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(world.service, "apply", lambda _: seen.append(turns[0]))
    for seed in range(1, 9):
        loop.report(event("access", Prompt(*words(seed, 1)).entries(), world.now))
    others = asyncio.create_task(serves())
    await loop.tick()
    others.cancel()
    assert len(seen) == len(set(seen)) == 8


async def test_capacities_and_restarts_are_never_dropped(client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost capacity would leave a node's memory unlimited; a lost restart would leave its old contents."""
    monkeypatch.setattr(loops, "MAX_EVENTS", 3)
    world, _ = filled()
    loop = Loop(world.service, ScriptedPredictor(), lambda _: None)
    loop.fence("a")
    loop.declare(MEMORY, 5 * MIB)
    for seed in range(1, 9):
        loop.report(event("store", Prompt(*words(seed, 1)).entries(size=MIB), world.now))
    loop.declare(MEMORY, 6 * MIB)
    await loop.tick()
    cache = world.service.caches[MEMORY]
    assert (cache.capacity, cache.used, loop.dropped) == (6 * MIB, MIB, 7)


async def test_metrics_contain_counts_and_no_hashes(client: httpx2.AsyncClient) -> None:
    world, all_ = filled(rule="mq")
    loop = Loop(world.service, ScriptedPredictor(), lambda _: None)
    await loop.tick()
    now = status(loop, sidecar=True)
    text = exposition(now).decode()
    assert 'lpc_lmcache_used_bytes{node="a",tier="l1"} 8.388608e+06' in text
    assert [line for line in text.splitlines() if line.startswith("lpc_lmcache_rule{") and line.endswith(" 1.0")] == [
        'lpc_lmcache_rule{node="a",rule="mq"} 1.0'
    ]
    assert 'lpc_lmcache_ghost_chunks_total{cache="asked",node="a"} 4.0' in text, "the first new chunk of each turn"
    for output in (text, str(now)):
        assert not any(object_.hash in output for prompt in all_ for objects in prompt.objects for object_ in objects)


TOKEN = "s3cret"
BASIC = base64.b64encode(f"lpc:{TOKEN}".encode()).decode()


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"Basic {BASIC}", 200),  # what a node sends with http://lpc:TOKEN@host:9300
        (None, 401),
        ("Bearer other", 401),
        (f"Basic {base64.b64encode(b'lpc:other').decode()}", 401),
        ("Basic ???", 401),
        ("Basic é", 401),
        (TOKEN, 401),
        ("Bearer é".encode("latin-1").decode("latin-1"), 401),
    ],
)
async def test_only_requests_with_the_token_are_forwarded(client: httpx2.AsyncClient, header: str | None, code: int) -> None:
    server = NodeServer()
    async with serving(server.app) as address, serving(front(address, TOKEN)) as gate:
        headers = [] if header is None else [(b"Authorization", header.encode("latin-1"))]
        answer = await client.request("DELETE", f"http://{gate}/cache/objects", json={"keys": [1, 2]}, headers=headers)
        assert answer.status_code == code
        if code == 200:
            assert answer.json()["deleted"] == 2
            assert "authorization" not in server.headers[0]
        assert len(server.deleted) == (code == 200)


async def test_probes_need_no_token_and_an_unreachable_node_is_502(client: httpx2.AsyncClient) -> None:
    server = NodeServer()
    async with serving(server.app) as address, serving(front(address, TOKEN)) as gate:
        assert (await client.get(f"http://{gate}/healthcheck")).text == "ok"
        assert (await client.get(f"http://{gate}/nowhere", headers={"Authorization": f"Bearer {TOKEN}"})).status_code == 404
    async with serving(front("127.0.0.1:1", TOKEN)) as gate:
        answer = await client.get(f"http://{gate}/status", headers={"Authorization": f"Bearer {TOKEN}"})
        assert (answer.status_code, "ConnectError" in answer.text) == (502, True)


async def test_half_an_answer_of_a_node_is_not_passed_on_as_a_whole_one(client: httpx2.AsyncClient) -> None:
    server = NodeServer()
    server.fault = FAULTS["is half"]
    async with serving(server.app) as address, serving(front(address, TOKEN)) as gate:
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.request("DELETE", f"http://{gate}/cache/objects", headers={"Authorization": f"Bearer {TOKEN}"})
        server.fault = None
        answer = await client.get(f"http://{gate}/healthcheck")
    assert answer.text == "ok"
