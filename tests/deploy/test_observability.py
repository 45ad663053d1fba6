"""Rules and dashboard against promtool, and against a real Prometheus that scrapes a real sidecar under every kind of call."""

import asyncio
import json
import os
import re
import subprocess
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import yaml
from prometheus_client import generate_latest

from eviction_client.transport.scripted_predictor import ScriptedPredictor
from lpc.cache.v1 import response_cache_pb2 as cache_pb
from lpc.cache.v1 import response_cache_pb2_grpc as cache_rpc
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc_apps.lmcache.events import Location
from lpc_apps.lmcache.loop import Loop
from lpc_apps.lmcache.metrics import exposition, status
from lpc_apps.lmcache.service import Service
from lpc_apps.lmcache.settings import LMCacheSettings
from predictor_service.metrics import Metrics
from response_cache.gateway.metrics import Metrics as GatewayMetrics
from response_cache.service.running import running
from response_cache.service.settings import CacheSettings
from response_cache.store.scopes import ScopeSettings
from testing.processes import RedisServer
from tests.deploy.prometheus_server import Prometheus, prometheus, vllm_metrics
from tests.eventually import until
from tests.response_cache import KEY_LINES
from tests.unit.lmcache.nodes import KEYS

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/rules.yml"
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboards/lpc.json").read_text())
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
RECORDED = {rule["record"]: rule["expr"] for group in GROUPS for rule in group["rules"] if "record" in rule}
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}
PANELS = {
    panel["title"]: [target["expr"] for target in panel["targets"]] for panel in DASHBOARD["panels"] if panel["type"] != "row"
}
OPERATORS_DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboards/lpc-operator.json").read_text())
OPERATORS_PANELS = {panel["title"]: [t["expr"] for t in panel["targets"]] for panel in OPERATORS_DASHBOARD["panels"]}
EXPRESSIONS = [
    *RECORDED.values(),
    *(rule["expr"] for rule in ALERTS.values()),
    *(e for panels in (PANELS, OPERATORS_PANELS) for panel in panels.values() for e in panel),
]

# Series that appear with the first event or the first named client, and neither happens in the scrape below.


def lmcache_metrics() -> str:
    service = Service(LMCacheSettings(), clock=time.time, keys=KEYS)
    service.declare(Location("l1", "node-a"), 1 << 30)
    return exposition(status(Loop(service, ScriptedPredictor(), lambda _: None), sidecar=True)).decode()


OF_THE_GATEWAY = set(re.findall(r"# TYPE (\S+)", generate_latest(GatewayMetrics().registry).decode()))
"""Metrics of a process that is not scraped below."""
OF_LMCACHE = set(re.findall(r"# TYPE (\S+)", lmcache_metrics()))
"""The same, of LMCache's coordinator."""
NEVER_SEEN = {
    *OF_THE_GATEWAY,
    *OF_LMCACHE,
    *(f"{name}_bucket" for name in OF_THE_GATEWAY),
    "lpc_model_reloads_total",
    "lpc_client_conversations_total",
    "lpc_client_refusals_total",
    "lpc_certificate_expiry_timestamp_seconds",
}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GOGC": "800"}  # a third less time than with Go's own pace of collections
    return subprocess.run(["promtool", *arguments], env=environment, capture_output=True, text=True)


def metrics_of(expression: str) -> set[str]:
    """Return the names of metrics in an expression, those in a __name__ matcher too."""
    return set(re.findall(r"\b(?:lpc_\w+|lpc:[\w:]+|vllm:\w+|up)\b(?=[\[{)|\s\"]|$)", expression))


def test_promtool_accepts_the_rules_and_the_scrape_configuration() -> None:
    for command, file in (("rules", "rules.yml"), ("config", "prometheus.yml")):
        done = promtool("check", command, ROOT / "deploy/prometheus" / file)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_where_it_must_and_only_there() -> None:
    done = promtool("test", "rules", ROOT / "deploy/prometheus/rules_test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_unit_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    tests = yaml.safe_load((ROOT / "deploy/prometheus/rules_test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", [])]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == set(ALERTS)
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == set(ALERTS) - {"LpcQueueNearlyFull"}


def test_each_alert_names_its_section_of_the_runbook_and_each_section_is_an_alerts() -> None:
    sections = re.findall(r"(?m)^## (\w+)$", (ROOT / "docs/how-to/runbook.md").read_text())
    assert sorted(sections) == sorted(ALERTS)
    for name, rule in ALERTS.items():
        assert rule["annotations"]["runbook_url"] == f"docs/how-to/runbook.md#{name.lower()}"
        assert rule["labels"]["severity"] in {"critical", "warning"}


def test_every_recorded_name_is_used_and_every_name_used_is_recorded() -> None:
    used = {name for expression in EXPRESSIONS for name in metrics_of(expression) if name.startswith("lpc:")}
    assert used == set(RECORDED)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_models: Path) -> Iterator[Prometheus]:
    """A Prometheus after ten scrapes of a sidecar that answered, refused and dropped."""
    folder = tmp_path_factory.mktemp("prometheus")

    async def scrape() -> AsyncGenerator[Prometheus, None]:
        (folder / "keys").write_text(KEY_LINES)
        with RedisServer(folder / "redis") as redis_server, vllm_metrics() as engines:
            settings = CacheSettings(
                models=tiny_models,
                model="tiny",
                port=0,
                metrics_port=0,
                unix_socket=None,
                threads=1,
                cache_redis_url=redis_server.url,  # type: ignore[arg-type]
                cache_gateways="anonymous",  # type: ignore[arg-type]
                cache_redis_timeout_s=5.0,
                cache_keys=folder / "keys",
                cache_scopes={"faq": ScopeSettings(mode="shadow")},
            )
            async with running(settings) as addresses:
                targets = {"lpc-predictor": f"127.0.0.1:{addresses.metrics_port}", "vllm": engines}
                with prometheus(folder, RULES, targets) as made:
                    await asyncio.to_thread(wait_until_up, made, len(targets))
                    for _ in range(4):
                        await calls(f"127.0.0.1:{addresses.port}")
                        await asyncio.sleep(2)
                    yield made

    loop = asyncio.new_event_loop()
    generator = scrape()
    try:
        made = loop.run_until_complete(anext(generator))
        yield made
        loop.run_until_complete(generator.aclose())
    finally:
        loop.close()


def wait_until_up(made: Prometheus, targets: int) -> None:
    until(lambda: sum(float(s["value"][1]) for s in made.query("up")) >= targets)


async def calls(address: str) -> None:
    """Ask in every way, and be refused and dropped."""
    hello = pb.Conversation(prompt="hello")
    async with grpc.aio.insecure_channel(address) as channel:
        stub = rpc.ContinuationPredictorStub(channel)
        await stub.Predict(pb.PredictRequest(conversation=hello))
        await stub.PredictBatch(pb.PredictBatchRequest(conversations=[hello] * 5))
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Predict(pb.PredictRequest())
        long = stub.Predict(pb.PredictRequest(conversation=pb.Conversation(prompt="hello " * 100_000)))
        await asyncio.sleep(0.1)
        long.cancel()
        await stub.Predict(pb.PredictRequest(conversation=hello))
        cache = cache_rpc.ResponseCacheStub(channel)
        message = cache_pb.Message(role="user", content="hello")
        asked = cache_pb.Request(model="m", parameters_json=b'{"temperature": 0}', messages=[message], scope="faq")
        said = cache_pb.Response(body=b"{}", finish_reason="stop")
        stored = await cache.Store(cache_pb.StoreRequest(request=asked, response=said))
        await cache.Lookup(cache_pb.LookupRequest(request=asked))
        asked.messages[0].content = "hello world"
        await cache.Lookup(cache_pb.LookupRequest(request=asked))
        await cache.Feedback(cache_pb.FeedbackRequest(entry_id=stored.entry_id))


def test_every_metric_that_is_named_exists(server: Prometheus) -> None:
    known = set(server.get("label/__name__/values"))
    named = {name for expression in EXPRESSIONS for name in metrics_of(expression)} - set(RECORDED)
    assert len(named) > 15
    assert named - NEVER_SEEN <= known
    # The sidecar tells the type of a metric that has no series yet.
    typed = set(re.findall(r"# TYPE (\S+)", generate_latest(Metrics().registry).decode()))
    histograms = re.findall(r"# TYPE (\S+) histogram", generate_latest(GatewayMetrics().registry).decode())
    typed |= {*OF_LMCACHE, *OF_THE_GATEWAY, *(f"{name}_bucket" for name in histograms)}
    assert named & NEVER_SEEN <= typed


def test_every_metric_of_the_gateway_is_on_the_dashboard() -> None:
    named = {re.sub(r"_bucket$", "", name) for panel in PANELS.values() for e in panel for name in metrics_of(e)}
    assert {name for name in OF_THE_GATEWAY if not name.endswith("_created")} <= named


def test_every_metric_of_lmcaches_coordinator_is_on_the_dashboard() -> None:
    named = {name for panel in PANELS.values() for e in panel for name in metrics_of(e)}
    assert {name for name in OF_LMCACHE if not name.endswith("_created")} <= named


def test_every_metric_of_sidecar_and_plug_in_is_on_the_dashboard(server: Prometheus) -> None:
    known = {re.sub(r"_(bucket|sum|count|total|created)$", "", name) for name in server.get("label/__name__/values")}
    named = {name for panel in PANELS.values() for e in panel for name in metrics_of(RECORDED.get(e, e))}
    named |= {name for e in RECORDED.values() for name in metrics_of(e)}
    shown = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in named}
    assert {name for name in known if name.startswith("lpc_")} <= shown


def test_every_rule_is_healthy_and_every_record_has_a_value(server: Prometheus) -> None:
    for group in server.get("rules")["groups"]:
        for rule in group["rules"]:
            assert rule["health"] == "ok", rule["lastError"]
    empty = {name for name in RECORDED if not server.query(name)}
    # Nothing expired; the ratio's numerator appears with the first that does.
    assert empty <= {"lpc:expired:ratio5m"}


@pytest.mark.parametrize(("panels", "title"), [(panels, title) for panels in (PANELS, OPERATORS_PANELS) for title in panels])
def test_every_panel_shows_something(server: Prometheus, panels: dict[str, list[str]], title: str) -> None:
    for expression in panels[title]:
        query = expression.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$engine", ".*")
        found: list[dict[str, Any]] = server.query(query)
        if not metrics_of(query) & NEVER_SEEN and expression != "lpc:expired:ratio5m":
            assert found, query


def test_first_row_shows_gain_order_answers_and_alerts(server: Prometheus) -> None:
    first = [panel["title"] for panel in DASHBOARD["panels"] if panel["gridPos"]["y"] == 1]
    assert first == ["Gain over LRU now", "Order of the caches", "Who answers", "What is wrong"]
    # 25% of the tokens are gained and 5% lost; the ghost caches hit 30% under LRU, 41% without the sidecar, 45% under the rule
    # in force.
    gains = [values(server, expression) for expression in PANELS["Gain over LRU now"]]
    assert gains == [{"": pytest.approx(gain)} for gain in (0.2, 0.15, 0.04)]
    (order,) = server.query(PANELS["Order of the caches"][0].replace("$engine", ".*"))
    assert order["metric"] == {"rule": "value"} and float(order["value"][1]) == 1
    assert [values(server, e) for e in PANELS["Who answers"]] == [{"": 1}, {"": 1}, {"": 1}]
    assert values(server, PANELS["What is wrong"][0]) == {"": 0}


@pytest.mark.parametrize("panels", [PANELS, OPERATORS_PANELS], ids=["lpc", "lpc-operator"])
def test_a_panel_shows_the_share_that_each_rule_would_hit(server: Prometheus, panels: dict[str, list[str]]) -> None:
    found = server.query(panels["What each rule would hit"][0].replace("$engine", ".*"))
    shares = {series["metric"]["cache"]: float(series["value"][1]) for series in found}
    assert {cache: shares[cache] for cache in ("lru", "value", "chosen")} == pytest.approx(
        {"lru": 0.3, "value": 0.45, "chosen": 0.45}, abs=0.02
    )
    assert "asked" not in shares


def values(server: Prometheus, expression: str) -> dict[str, float]:
    """Return the value of each series by the name of its alert, "" where it has none."""
    found = server.query(expression.replace("$engine", ".*"))
    return {series["metric"].get("alertname", ""): float(series["value"][1]) for series in found}


def test_the_operators_dashboard_fits_one_screen() -> None:
    assert 8 <= len(OPERATORS_PANELS) <= 12
    # Grafana's cells are 38 pixels high with their gap.
    assert max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in OPERATORS_DASHBOARD["panels"]) * 38 <= 900


def test_no_alert_fires_at_a_sidecar_that_answers(server: Prometheus) -> None:
    firing = [alert["labels"]["alertname"] for alert in server.get("alerts")["alerts"] if alert["state"] == "firing"]
    assert firing == []


@pytest.mark.nightly
def test_a_failing_plug_in_is_named_on_the_dashboard(tmp_path: Path) -> None:
    # The last test of this file: a process has one plug-in's metrics, and these are now the failing one's.
    with vllm_metrics(failing=True) as engines, prometheus(tmp_path, RULES, {"vllm": engines}) as made:
        until(lambda: values(made, PANELS["What is wrong"][0]) == {"LpcEngineFailures": 1})
