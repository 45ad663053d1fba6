"""What `lpc report` says of a fleet behind the gateway, from pages and answers over real HTTP on loopback."""

import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lpc_cli.fleet_report import LABELS, MOST_ENGINES, RESULTS, fleet_of, lines_of
from response_cache.gateway.check_verdict import Result
from tests.unit.test_report import API, GOOD, Server, answered, figures, lpc, refused, series

FLEET = """\
lpc_gateway_engine_requests_total{engine="a:1",status="2xx"} 60
lpc_gateway_engine_requests_total{engine="a:1",status="5xx"} 100
lpc_gateway_engine_requests_total{engine="b:1",status="2xx"} 30
lpc_gateway_engine_requests_total{engine="c:1",status="2xx"} 30
lpc_gateway_engine_up{engine="a:1"} 1
lpc_gateway_engine_up{engine="b:1"} 1
lpc_gateway_engine_up{engine="c:1"} 1
lpc_gateway_prompt_tokens_total{engine="a:1",found="cached"} 800
lpc_gateway_prompt_tokens_total{engine="a:1",found="computed"} 200
lpc_gateway_prompt_tokens_total{engine="b:1",found="cached"} 300
lpc_gateway_prompt_tokens_total{engine="b:1",found="computed"} 100
lpc_gateway_prompt_tokens_total{engine="c:1",found="cached"} 100
lpc_gateway_prompt_tokens_total{engine="c:1",found="computed"} 300
lpc_gateway_routes_total{route="home"} 90
lpc_gateway_routes_total{route="moved"} 6
lpc_gateway_routes_total{route="new"} 24
lpc_gateway_moves_total{move="away"} 3
lpc_gateway_moves_total{move="on"} 1
lpc_gateway_moves_total{move="back"} 2
lpc_gateway_routed_tokens_total{believed="here"} 1300
lpc_gateway_routed_tokens_total{believed="elsewhere"} 100
lpc_gateway_routed_tokens_total{believed="nowhere"} 600
lpc_gateway_router{router="hash"} 1
lpc_gateway_compared_requests_total{choice="same"} 90
lpc_gateway_compared_requests_total{choice="other"} 10
lpc_gateway_compared_seconds_total{router="hash",part="waiting"} 200
lpc_gateway_compared_seconds_total{router="hash",part="missing"} 50
lpc_gateway_compared_seconds_total{router="cost",part="waiting"} 60
lpc_gateway_compared_seconds_total{router="cost",part="missing"} 65
lpc_gateway_held_seconds_bucket{le="0.1"} 90
lpc_gateway_held_seconds_bucket{le="5.0"} 99
lpc_gateway_held_seconds_bucket{le="+Inf"} 100
lpc_gateway_held_seconds_count 100
lpc_gateway_held_seconds_sum 42
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made
        made.shutdown()


def shown(url: str) -> str:
    found = lpc("--engine", url)
    assert found.exit_code == 0, found.output
    return " ".join(found.stdout.split())


def test_hits_imbalance_moves_copies_queue_and_the_other_router_are_reported(server: Server) -> None:
    url = server.sends(GOOD + FLEET)
    found = figures("--engine", url)
    fleet = found["fleet"]
    assert found["prompt_tokens"] == 100 and found["ignored_series"] == 0
    assert {engine: row["hit_rate"] for engine, row in fleet["engines"].items()} == {"a:1": 0.8, "b:1": 0.75, "c:1": 0.25}
    assert fleet["imbalance"] == pytest.approx({"requests": 1.5, "computed_tokens": 1.5})
    assert fleet["moves"] == {"away": 3, "on": 1, "back": 2}
    assert fleet["copied_share"] == 0.05
    assert fleet["held"] == {"requests": 100, "mean_s": 0.42, "p99_s": 5.0, "p99_above_s": None}
    assert fleet["router"] == "hash" and fleet["compared"]["other_share"] == 0.1
    assert fleet["compared"]["seconds_a_request"]["cost"] == {"waiting": 0.6, "missing": 0.65}
    text = shown(url)
    for words in (
        "3 engines behind the gateway",
        "the fullest engine has 1.50 times the mean of requests, 1.50 times the mean of computed tokens",
        "3 times a conversation left its engine (2.5% of 120 requests), 1 times it went on to a third one, and 2 times it came "
        "back",
        "Copies: 5.0% of the prompt tokens",
        "held 100 requests for 0.42 s in the mean, 99% at most 5 s",
        "cost would have chosen another one for 10.0% of 100 requests that were compared",
        "a request has 2.50 s (2.00 s of wait, 0.50 s of missing prefill)",
        "With cost it would have 1.25 s (0.60 s of wait, 0.65 s of missing prefill)",
    ):
        assert words in text, words


def test_a_fleet_of_stock_engines_is_reported_without_the_plug_in(server: Server) -> None:
    url = server.sends(FLEET)
    found = lpc("--engine", url)
    assert found.exit_code == 0 and "no engine with the plug-in" in found.stderr and "behind the gateway" in found.stdout
    assert figures("--engine", url)["prompt_tokens"] == 0
    refused(lpc("--engine", server.sends("up 1\n")), "no engine with the plug-in")


def test_engines_alone_have_no_fleet(server: Server) -> None:
    url = server.sends(GOOD)
    assert figures("--engine", url)["fleet"] is None
    assert "gateway" not in shown(url)


STRANGE = {
    "no engine": ("".join(line for line in FLEET.splitlines(True) if "engine=" not in line), "name no engine"),
    "an engine down": (
        FLEET.replace('_up{engine="b:1"} 1', '_up{engine="b:1"} 0.25'),
        "Down for a share of the time: b:1 75.0%",
    ),
    "an engine that nobody asked": (FLEET + 'lpc_gateway_engine_up{engine="d:1"} 0\n', "d:1 100.0%"),
    "NaN": (FLEET.replace('_up{engine="b:1"} 1', '_up{engine="b:1"} NaN').replace("sum 42", "sum NaN"), "0.00 s in the mean"),
    "unreported": (FLEET.replace('c:1",found="cached"', 'c:1",found="unreported"'), "c:1 does not report cached tokens"),
    "no usage": ("".join(line for line in FLEET.splitlines(True) if "found=" not in line), "No answer has reported"),
    "both routers": (FLEET + 'lpc_gateway_router{router="cost"} 1\n', "Both routers chose"),
    "longer than the last bucket": (
        FLEET.replace('le="5.0"} 99', 'le="5.0"} 90'),
        "over 1% longer than 5 s",
    ),
    "one engine": (
        "".join(line for line in FLEET.splitlines(True) if "b:1" not in line and "c:1" not in line),
        "1 engine behind",
    ),
    "zeros": ("".join(line.rpartition(" ")[0] + " 0\n" for line in FLEET.splitlines()), "3 engines"),
    "markup": (FLEET.replace("a:1", "[/bold]"), "[/bold]"),
}


@pytest.mark.parametrize("strange", STRANGE)
def test_a_fleet_with_gaps_is_a_report_with_a_clear_line(server: Server, strange: str) -> None:
    page, words = STRANGE[strange]
    url = server.sends(page)
    assert words in shown(url)
    figures("--engine", url)


def test_series_with_unknown_values_are_ignored_and_counted(server: Server) -> None:
    more = 'lpc_gateway_moves_total{move="up"} 5\nlpc_gateway_engine_up 1\nlpc_gateway_held_seconds_bucket{le="x"} 1\n'
    found = figures("--engine", server.sends(FLEET + more))
    assert found["ignored_series"] == 3
    assert found["fleet"]["moves"] == {"away": 3, "on": 1, "back": 2}


def test_many_engines_are_one_bounded_table(server: Server) -> None:
    page = "".join(
        f'lpc_gateway_engine_requests_total{{engine="e{n}:1",status="2xx"}} {n}\n'
        f'lpc_gateway_engine_up{{engine="e{n}:1"}} 0\nlpc_gateway_prompt_tokens_total{{engine="e{n}:1",found="unreported"}} 9\n'
        for n in range(1, 1001)
    )
    text = shown(server.sends(page))
    assert "968 engines with fewer requests are left out" in text and "e1000:1" in text
    assert text.count("and 968 others") == 2 and len(text) < 250 * MOST_ENGINES


def test_a_prometheus_is_asked_for_the_worst_view_of_each_engine(server: Server) -> None:
    url = server.sends(answered(series(source="cached"), series("0.5", engine="a:1")), path=API)
    found = figures("--prometheus", url, "--hours", "1")
    assert found["fleet"]["engines"]["a:1"]["up"] == 0.5
    asked = [path for path, _ in server.seen]
    assert any("min+by+%28engine%29+%28avg_over_time%28lpc_gateway_engine_up%5B3600s" in path for path in asked)


VALUES = st.one_of(st.floats(), st.floats(0, 1e18), st.integers(0, 1000).map(float))
WORDS = st.sampled_from(
    [
        "a:1",
        "b:1",
        "2xx",
        "cached",
        "computed",
        "unreported",
        "home",
        "away",
        "back",
        "here",
        "hash",
        "cost",
        "same",
        "0.1",
        "+Inf",
    ]
)


@given(
    st.lists(
        st.sampled_from(sorted(LABELS)).flatmap(lambda name: st.tuples(st.just(name), *(WORDS for _ in LABELS[name]))),
        max_size=30,
    ),
    st.data(),
)
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_any_counts_are_a_report(keys: list[Any], data: st.DataObject) -> None:
    from lpc_cli.report import Counted

    counted = Counted()
    for name, *labels in keys:
        counted.add(name, dict(zip(LABELS[name], labels, strict=True)), data.draw(VALUES))
    fleet = fleet_of(counted.sums)
    if fleet is not None:
        json.dumps(fleet, allow_nan=False)
        lines_of(fleet)


REPAIRED = """\
lpc_gateway_repair_requests_total{rule="any",group="repaired"} 90
lpc_gateway_repair_requests_total{rule="move-time",group="repaired"} 90
lpc_gateway_repair_requests_total{rule="tool-order",group="repaired"} 30
lpc_gateway_repair_requests_total{rule="any",group="left"} 10
lpc_gateway_repair_requests_total{rule="move-time",group="left"} 10
lpc_gateway_repair_prompt_tokens_total{group="repaired",found="cached"} 900
lpc_gateway_repair_prompt_tokens_total{group="repaired",found="computed"} 100
lpc_gateway_repair_prompt_tokens_total{group="left",found="cached"} 20
lpc_gateway_repair_prompt_tokens_total{group="left",found="computed"} 80
"""


CHECKED = """\
lpc_gateway_checks_total{engine="a:1",result="equal"} 1200
lpc_gateway_checks_total{engine="b:2",result="equal"} 34
lpc_gateway_checks_total{engine="b:2",result="tie"} 2
lpc_gateway_checks_total{engine="b:2",result="blocks"} 1
lpc_gateway_checks_total{engine="a:1",result="blocks"} 0
lpc_gateway_checks_skipped_total{reason="no_hit"} 400
lpc_gateway_checks_skipped_total{reason="refused"} 7
"""


def test_the_report_has_the_results_of_hit_checks(server: Server) -> None:
    url = server.sends(FLEET + CHECKED)
    assert (
        "Hit checks: 1,234 equal, 2 equal but for a tie of two tokens, 1 in which cached blocks differ. Drawn and not "
        "checked: 407 (7 refused). b:2 does not answer from the cache as computed"
    ) in shown(url)
    checks = figures("--engine", url)["fleet"]["checks"]
    assert checks["results"] == {"equal": 1234, "tie": 2, "blocks": 1}
    assert checks["engines_that_differ"] == ["b:2"]
    assert figures("--engine", server.sends(FLEET))["fleet"]["checks"] is None


def test_the_report_names_each_result_of_a_check() -> None:
    assert set(RESULTS) == set(get_args(Result))


def test_the_report_has_the_hits_with_and_without_repair(server: Server) -> None:
    url = server.sends(FLEET + REPAIRED)
    assert (
        "Repair: 90 requests repaired hit 90.0% of 1,000 prompt tokens; 10 requests left as they are hit 20.0% of 100 prompt "
        "tokens. Requests by rule: move-time 100, tool-order 30."
    ) in shown(url)
    repair = figures("--engine", url)["fleet"]["repair"]
    assert repair["groups"]["left"] == {"requests": 10, "tokens": 100, "hit_rate": 0.2}
    assert repair["requests_by_rule"] == {"move-time": 100, "tool-order": 30}
