"""Callers' names are bounded in the engine's memory, whatever callers send."""

from types import SimpleNamespace

import pytest

from eviction_client.background import AtOnce
from eviction_client.tenants import digest_of
from eviction_client.transport.scripted_predictor import ScriptedPredictor
from testing.bare_scheduler import BLOCK, Engine
from tests.reachable import reached, weigh

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="names of a megabyte and of invalid characters")

MEBIBYTE = 1 << 20
SETTINGS = {"hints_share": 0.5, "pooling": "shared", "rule": "auto", "background": AtOnce}


def serve(engine: Engine, number: int, name: str, tokens: int = 2 * BLOCK) -> None:
    arguments = (
        {"lpc_retain_seconds": name, "lpc_done": name, "lpc_category": name}
        if number % 2
        else {"session_id": name, "lpc_done": True, "lpc_category": name}
    )
    salt = f"{number}{name}" if number % 4 < 2 else None
    request = engine.add(f"{name}{number}", range(6, 6 + tokens), 2, arguments, salt, session_id=name)
    request.lora_request = SimpleNamespace(lora_name=name)
    while engine.scheduler.has_unfinished_requests():
        engine.step()


def test_names_of_a_mebibyte_take_no_memory_once_their_requests_have_ended(window: int | None) -> None:
    engine = Engine(60, window=window, tenant_floors={digest_of("a"): 0.1}, **SETTINGS)
    hooks = engine.scheduler.lpc
    for number in range(80):  # by then each table of bounded size has grown to that size
        serve(engine, number, f"{number:0{MEBIBYTE}}")
    assert not [path for path, one in reached(hooks) if isinstance(one, str | bytes) and len(one) > 1024]
    before = weigh(hooks, beyond=[engine.scheduler.requests])
    for number in range(80, 120):
        serve(engine, number, f"{number:0{MEBIBYTE}}")
    assert weigh(hooks, beyond=[engine.scheduler.requests]) - before < 40 * 4096
    assert hooks.plugin.failures == 0 and hooks.plugin.ended["prediction"] + hooks.plugin.ended["unanswered"] == 120


@pytest.mark.parametrize("name", ["\ud800", "a\udfff" * 3000, "\x00\n\x1b[2J", "\U0010ffff" * 2000, ""])
def test_names_of_any_characters_raise_nowhere(name: str) -> None:
    engine = Engine(60, tenant_floors={digest_of("a"): 0.1}, **SETTINGS)
    predictor = engine.scheduler.lpc.plugin.predictor = ScriptedPredictor(record=True)
    for number in range(3):
        serve(engine, number, name, BLOCK - 5)  # vLLM itself cannot hash a full block with such a salt
    assert engine.scheduler.lpc.plugin.failures == 0
    assert len(predictor.asked) == 3
    names = {name for question in predictor.asked.values() for name in (question.category, question.conversation_id)}
    assert all(name.isascii() and len(name) in (0, 32) for name in names)
