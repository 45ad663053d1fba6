"""`lpc report` on the metrics of a plug-in and of a gateway: read from them, and from a real Prometheus that scrapes them."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY, start_http_server
from typer.testing import CliRunner

from eviction_client.observability.metrics import EngineMetrics
from eviction_client.plugin_metrics import values_of_plugin
from eviction_client.policy.rules import RULES
from lpc_cli.cli import app
from testing.processes import free_port
from tests.deploy.prometheus_server import prometheus
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import until
from tests.integration.response_cache.gateway.conftest import a_gateway, chat
from tests.unit.test_misses import Engine, words


@pytest.fixture(scope="module")
def engine() -> Iterator[tuple[Engine, EngineMetrics, str]]:
    """An engine with a plug-in that has served three prompts, and the address of its metrics."""
    served, metrics = Engine(40), EngineMetrics("0")
    served.serve(words(121), salt="a")
    served.serve(words(161, 1000), salt="b")
    served.serve(words(121), salt="a")
    metrics.update(values_of_plugin(served.plugin))
    server, thread = start_http_server(port := free_port(), addr="127.0.0.1", registry=REGISTRY)
    yield served, metrics, f"127.0.0.1:{port}"
    server.shutdown()
    server.server_close()
    thread.join()


def lpc(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_report_of_an_engine_says_what_was_missed_why_and_who_would_have_had_it(
    engine: tuple[Engine, EngineMetrics, str],
) -> None:
    found = lpc("report", "--engine", f"http://{engine[2]}")
    assert found.exit_code == 0, found.output
    for words_of_it in ("403 prompt tokens", "twice", "30.0%", "up to 10 s", "what each rule would have hit"):
        assert words_of_it in found.stdout

    figures = json.loads(lpc("report", "--engine", f"http://{engine[2]}", "--json").stdout)
    assert {source: row["tokens"] for source, row in figures["by_source"].items() if row["tokens"]} == {
        "new": 280,
        "evicted": 120,
        "short": 3,
    }
    assert figures["evicted_by_seconds_unused"] == {"10": 120}
    had = figures["evicted_share_that_other_rules_had"]
    assert had.keys() == {*RULES} and had["lru"] == 0.0
    # The third of three prompts of 30, 40 and 30 blocks returns, and its blocks fit beside the second's into twice the cache.
    assert figures["hit_share_by_size"] == pytest.approx({"0.5": 0.0, "1": 0.0, "2": 0.3, "4": 0.3, "8": 0.3})
    assert sorted(sum(tokens.values()) for tokens in figures["tenants"].values()) == [161, 242]
    ghosts = engine[0].plugin.policy.ghosts
    assert {rule: row["hit_share"] for rule, row in figures["rules"].items()} == {
        rule: ghosts.hits[rule] / ghosts.asked for rule in RULES
    }
    assert [rule for rule, row in figures["rules"].items() if row["in_force"] == 1.0] == [engine[0].plugin.rule]
    judged = figures["rules_by_tenant"]
    assert judged.keys() == figures["tenants"].keys()
    assert sum(rules["sampled_blocks"] for rules in judged.values()) == figures["sampled_blocks"] == ghosts.asked


def test_a_report_of_a_prometheus_has_the_last_hours(engine: tuple[Engine, EngineMetrics, str], tmp_path: Path) -> None:
    served, metrics, address = engine
    (tmp_path / "rules.yml").write_text("groups: []\n")
    with prometheus(tmp_path, tmp_path / "rules.yml", {"engine": address}) as server:
        until(lambda: server.query("lpc_prompt_tokens_total"))
        for _ in range(50):
            served.serve(words(121))
            served.serve(words(161, 1000))
        metrics.update(values_of_plugin(served.plugin))

        def counted() -> Any:
            found = lpc("report", "--prometheus", server.address, "--hours", "0.1", "--json")
            return found if found.exit_code == 0 and json.loads(found.stdout)["prompt_tokens"] > 12_000 else None

        figures = json.loads(until(counted).stdout)
    assert figures["by_source"]["evicted"]["share"] > 0.7
    assert figures["rules"][served.plugin.rule]["in_force"] > 0
    assert sum(row["in_force"] for row in figures["rules"].values()) == pytest.approx(1.0)
    assert figures["rules"][figures["best_rule"]]["above_lru"] >= 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "either --prometheus"),
        (("--engine", "127.0.0.1:8000"), 2, "must begin with http://"),
        (("--engine", "http://127.0.0.1:1"), 1, "refused"),
        (("--prometheus", "http://127.0.0.1:1"), 1, "refused"),
    ],
)
def test_an_unreadable_source_is_one_clear_line(arguments: tuple[str, ...], code: int, said: str) -> None:
    found = lpc("report", *arguments)
    assert found.exit_code == code
    assert said in found.stderr and len(found.stderr.splitlines()) == 1


async def test_a_report_of_a_prometheus_that_scrapes_a_gateway_has_the_fleet(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text("groups: []\n")
    usage = {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 600}}
    engines, ending = [EngineDouble(usage=usage) for _ in range(2)], contextlib.AsyncExitStack()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(serve_double(engines[0]))
        await ending.enter_async_context(serve_double(engines[1]))
        gateway = await stack.enter_async_context(a_gateway(*engines, gateway_cache=False))
        scraped = prometheus(tmp_path, tmp_path / "rules.yml", {"gateway": gateway.metrics_url.split("/")[2]})
        server = await asyncio.to_thread(stack.enter_context, scraped)
        await asyncio.to_thread(until, lambda: server.query("lpc_gateway_engine_up"))
        for number in range(20):
            await gateway.ask(chat(f"{number} " + "word " * 500))
        await ending.aclose()  # the second engine is down from now on
        await gateway.ask(chat("another " * 500))

        def counted() -> Any:
            found = lpc("report", "--prometheus", server.address, "--hours", "0.1", "--json")
            fleet = json.loads(found.stdout)["fleet"] if found.exit_code == 0 else None
            rows = None if fleet is None else [fleet["engines"].get(engine.url.removeprefix("http://")) for engine in engines]
            complete = rows and all(rows) and all(row["prompt_tokens"] for row in rows) and rows[1]["up"] < 0.9
            return fleet if complete else None

        fleet = await asyncio.to_thread(until, counted)
        shown = await asyncio.to_thread(lpc, "report", "--prometheus", server.address, "--hours", "0.1")
    assert fleet["router"] == "cost"
    assert [row["hit_rate"] for row in fleet["engines"].values()] == pytest.approx([0.6, 0.6])
    assert fleet["compared"]["requests"] >= 1
    assert (
        shown.exit_code == 0 and "Down for a share of the time" in shown.stdout and "no engine with the plug-in" in shown.stderr
    )
