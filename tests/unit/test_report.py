"""What `lpc report` makes of pages and answers that servers send, over real HTTP on loopback."""

import base64
import gzip
import http.server
import json
import re
import socket
import threading
import urllib.parse
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from eviction_client.observability.misses import SOURCES
from eviction_client.observability.repeated_text import CHANGES
from eviction_client.policy.rules import RULES
from eviction_client.settings import ClientSettings
from lpc.wire.addresses import without_secrets
from lpc_cli import pages
from lpc_cli.checks import examine
from lpc_cli.cli import app
from lpc_cli.engines import Finding
from lpc_cli.report import CHANGED, LABELS

PASSWORD = "s3cret-zebra"
GOOD = 'lpc_prompt_tokens_total{source="cached"} 75\nlpc_prompt_tokens_total{source="new"} 25\n'


class Server(http.server.ThreadingHTTPServer):
    """Sends scripted answers by path, and records the headers of requests."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), Handler)
        self.answers: dict[str, tuple[int, bytes, dict[str, str]]] = {}
        self.seen: list[tuple[str, str | None]] = []
        self.raw = b""
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.host = f"[{host}]" if ":" in host else host
        self.netloc = f"{self.host}:{self.server_address[1]}"

    def sends(self, body: bytes | str, path: str = "/metrics", status: int = 200, **headers: str) -> str:
        """Set an answer; return the server's URL."""
        data = body.encode() if isinstance(body, str) else body
        self.answers[path] = status, data, {name.replace("_", "-"): value for name, value in headers.items()}
        return f"http://{self.netloc}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("Authorization")))
        if self.server.raw:
            self.wfile.write(self.server.raw)
            return
        status, body, headers = self.server.answers.get(self.path.partition("?")[0], (404, b"", {}))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "Content-Type": "text/plain", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made
        made.shutdown()


@pytest.fixture
def other() -> Iterator[Server]:
    with Server() as made:
        yield made
        made.shutdown()


def lpc(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["--debug", "report", *arguments])


def figures(*arguments: str) -> dict[str, Any]:
    """Figures of a report, read by a parser that refuses NaN."""
    found = lpc(*arguments, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout, parse_constant=lambda name: pytest.fail(f"JSON has no {name}"))


def refused(found: Result, why: str, code: int = 1) -> None:
    assert found.exit_code == code, found.output
    lines = [line for line in found.stderr.splitlines() if line.startswith("lpc: ")]
    assert len(lines) == 1 and why in lines[0], found.stderr
    assert "internal error" not in found.output and PASSWORD not in found.output


STRANGE = {
    "NaN": 'lpc_prompt_tokens_total{source="evicted"} NaN\nvllm:request_prefill_time_seconds_sum NaN\n',
    "infinite": 'lpc_prompt_tokens_total{source="evicted"} +Inf\nlpc_evicted_tokens_total{unused="10"} -Inf\n',
    "negative": 'lpc_prompt_tokens_total{source="evicted"} -7\nlpc_evicted_blocks_total{cache="all"} -1\n',
    "without a label": "lpc_prompt_tokens_total 7\nlpc_evicted_tokens_total 7\nlpc_changed_tokens_total 7\n",
    "another label": 'lpc_prompt_tokens_total{sauce="evicted"} 7\nlpc_tenant_prompt_tokens_total{tenant="a"} 7\n',
    "unknown values": 'lpc_prompt_tokens_total{source="x"} 7\nlpc_changed_tokens_total{change="x",before="0"} 7\n'
    'lpc_evicted_tokens_total{unused="NaN"} 7\nlpc_evicted_blocks_total{cache="arc"} 7\n'
    'lpc_tenant_ghost_blocks_total{tenant="a",cache="arc"} 7\nlpc_ghost_blocks_total{cache="arc"} 7\nlpc_rule{rule="arc"} 1\n',
    "sizes": 'lpc_missed_blocks_total{size="1"} 9\nlpc_missed_blocks_total{size="3"} 9\n'
    'lpc_missed_blocks_total{size="asked"} 1e-300\n',
    "digits without end": f'lpc_changed_tokens_total{{change="value",before="{"9" * 5000}"}} 7\n'
    f'lpc_evicted_tokens_total{{unused="{"9" * 5000}"}} 7\n',
    "times that are none": 'lpc_evicted_tokens_total{unused="-1"} 7\nlpc_evicted_tokens_total{unused="1e400"} 7\n'
    'lpc_changed_tokens_total{change="value",before="\u00b2"} 7\n',
    "all but a part": 'lpc_evicted_blocks_total{cache="lru"} 9\nlpc_tenant_ghost_blocks_total{tenant="a",cache="value"} 9\n',
    "hits but no blocks": 'lpc_ghost_blocks_total{cache="lru"} 9\nlpc_rule{rule="lru"} NaN\n',
    "more hits than blocks": 'lpc_ghost_blocks_total{cache="lru"} 9\nlpc_ghost_blocks_total{cache="asked"} 1e-300\n',
    "prefill without tokens": "vllm:request_prefill_time_seconds_sum 5\nvllm:request_prefill_kv_computed_tokens_sum 1e-300\n",
    "huge": 'lpc_prompt_tokens_total{source="evicted"} 1e308\nlpc_evicted_blocks_total{cache="all"} 1.7e308\n',
    "twice": 'lpc_prompt_tokens_total{source="new"} 25\n',
    "markup": 'lpc_tenant_prompt_tokens_total{tenant="[/bold]",source="new"} 0\n',
}


@pytest.mark.parametrize("strange", STRANGE)
def test_an_invalid_count_is_absent(server: Server, strange: str) -> None:
    url = server.sends(GOOD + STRANGE[strange])
    found = figures("--engine", url)
    assert found["prompt_tokens"] == 100
    assert found["by_source"]["cached"]["share"] == 0.75
    had = (*found["evicted_share_that_other_rules_had"].values(), *found["hit_share_by_size"].values())
    assert all(share is None or 0 <= share <= 1 for share in had)
    plain = lpc("--engine", url)
    assert plain.exit_code == 0, plain.output
    assert not re.search(r"\b(nan|inf)\b", plain.output, re.IGNORECASE)


def of_ghosts(**blocks: int) -> str:
    return "".join(f'lpc_ghost_blocks_total{{cache="{cache}"}} {count}\n' for cache, count in blocks.items())


def test_rules_are_compared_with_lru_and_those_in_force_and_the_best_are_marked(server: Server, other: Server) -> None:
    ghosts = of_ghosts(asked=1000, lru=400, ttl=470, mq=390, lpc=460, wa=200, value=455, chosen=465)
    tenant = ghosts.replace("lpc_ghost_blocks_total{", 'lpc_tenant_ghost_blocks_total{tenant="a",')
    missed = 'lpc_tenant_prompt_tokens_total{tenant="a",source="new"} 25\n'
    url = server.sends(GOOD + ghosts + tenant + missed + 'lpc_rule{rule="ttl"} 1\nlpc_rule{rule="value"} 0\n')
    another = other.sends(GOOD + of_ghosts(asked=0, lru=0) + 'lpc_rule{rule="value"} 1\n')
    found = figures("--engine", url, "--engine", another)
    assert found["sampled_blocks"] == 1000 and found["best_rule"] == "ttl"
    assert found["rules"]["ttl"] == {"hit_share": 0.47, "above_lru": pytest.approx(0.07), "in_force": 0.5}
    assert found["rules"]["mq"] == {"hit_share": 0.39, "above_lru": pytest.approx(-0.01), "in_force": 0.0}
    assert found["chosen"] == {"hit_share": 0.465, "above_lru": pytest.approx(0.065)}
    of_tenant = found["rules_by_tenant"]["a"]
    assert of_tenant["best_rule"] == "ttl" and of_tenant["chosen"] == found["chosen"]
    assert of_tenant["hit_shares"] == {rule: row["hit_share"] for rule, row in found["rules"].items()}

    rows = [re.findall(r"[^\s│┃]+", line) for line in lpc("--engine", url, "--engine", another).stdout.splitlines()]
    assert ["ttl", "47.0%", "+7.0%", "50%", "best"] in rows and ["mq", "39.0%", "-1.0%"] in rows
    assert ["value", "45.5%", "+5.5%", "50%"] in rows and [
        "chosen",
        "46.5%",
        "+6.5%",
        "the",
        "rule",
        "of",
        "the",
        "time",
    ] in rows
    assert ["a", "25", "0.0%", "0.0%", "0.0%", "25", "+6.5%", "ttl"] in rows


def test_the_gain_of_the_sidecar_is_the_difference_of_value_and_own(server: Server) -> None:
    url = server.sends(GOOD + of_ghosts(asked=1000, lru=400, own=450, value=468) + 'lpc_predictions_total{fate="answered"} 9\n')
    assert figures("--engine", url)["sidecar_adds"] == pytest.approx(0.018)
    assert "The sidecar adds +1.8% of hits" in " ".join(lpc("--engine", url).stdout.split())


@pytest.mark.parametrize("answered", ["", 'lpc_predictions_total{fate="answered"} 0\n'])
def test_without_answers_nothing_is_reported_of_the_sidecar(server: Server, answered: str) -> None:
    url = server.sends(GOOD + of_ghosts(asked=1000, lru=400, own=450, value=450) + answered)
    assert figures("--engine", url)["sidecar_adds"] is None
    assert "sidecar" not in lpc("--engine", url).stdout


def test_rules_that_an_engine_does_not_count_are_absent(server: Server) -> None:
    url = server.sends(GOOD + of_ghosts(asked=100, lru=40, value=40))
    found = figures("--engine", url)
    assert found["best_rule"] == "lru" and found["rules"]["value"]["above_lru"] == 0
    assert found["rules"]["ttl"] == {"hit_share": None, "above_lru": None, "in_force": None}
    assert found["chosen"] == {"hit_share": None, "above_lru": None}
    assert "ttl" not in lpc("--engine", url).stdout
    almost = server.sends(GOOD + of_ghosts(asked=100_000, lru=40_000, ttl=39_999))
    assert "+0.0%" in lpc("--engine", almost).stdout and "-0.0%" not in lpc("--engine", almost).stdout
    assert figures("--engine", server.sends(GOOD))["best_rule"] is None


def test_a_prometheus_adds_counters_by_their_increase_and_gauges_by_their_time(server: Server) -> None:
    url = server.sends(answered(CACHED), path=API)
    figures("--prometheus", url, "--hours", "2")
    asked = [urllib.parse.unquote_plus(path) for path, _ in server.seen]
    for expression in ("(rule) (sum_over_time(lpc_rule[7200s]))", "(cache) (increase(lpc_ghost_blocks_total[7200s]))"):
        assert any(query.endswith(f"query=sum by {expression}") for query in asked), expression


def test_series_that_cannot_be_read_are_counted_and_the_first_is_named(server: Server) -> None:
    url = server.sends(GOOD + STRANGE["without a label"])
    assert figures("--engine", url)["ignored_series"] == 3
    assert (
        "3 series cannot be read and are ignored, first: lpc_prompt_tokens_total with source=''" in lpc("--engine", url).stderr
    )


OPEN_METRICS = (
    '# TYPE lpc_prompt_tokens counter\nlpc_prompt_tokens_total{source="cached"} 75 # {trace_id="a"} 1.0\n'
    'lpc_prompt_tokens_total{source="new"} 25\nlpc_prompt_tokens_created{source="new"} 1e9\n# EOF\n'
)
ENCODED = {
    "open metrics": (OPEN_METRICS, {"Content_Type": "application/openmetrics-text; version=1.0.0"}),
    "open metrics called text": (OPEN_METRICS, {}),
    "gzip": (gzip.compress(GOOD.encode()), {"Content_Encoding": "gzip"}),
    "deflate": (zlib.compress(GOOD.encode()), {"Content_Encoding": "deflate"}),
    "byte order mark": ("\ufeff" + GOOD, {}),
    "windows lines": (GOOD.replace("\n", "\r\n"), {}),
}


@pytest.mark.parametrize("how", ENCODED)
def test_a_page_may_be_written_and_packed_in_several_ways(server: Server, how: str) -> None:
    body, headers = ENCODED[how]
    assert figures("--engine", server.sends(body, **headers))["prompt_tokens"] == 100


def test_an_engine_is_counted_once_however_often_it_is_named(server: Server) -> None:
    url = server.sends(GOOD)
    assert figures("--engine", url, "--engine", f"{url}/", "--engine", f"{url}/metrics")["prompt_tokens"] == 100


def test_engines_on_ipv6_are_read() -> None:
    with Server("::1") as server:
        url = server.sends(GOOD)
        assert figures("--engine", url)["prompt_tokens"] == 100
        assert figures("--engine", url.replace("[", "").replace("]", ""))["prompt_tokens"] == 100
        server.shutdown()


def test_no_proxy_is_asked_for_this_machine(server: Server, other: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://{other.netloc}")
    assert figures("--engine", server.sends(GOOD))["prompt_tokens"] == 100
    assert not other.seen


BAD_PAGES = {
    "a login page": (200, "<!DOCTYPE html><html>Sign in</html>", {"Content_Type": "text/html"}, "HTML page"),
    "a login page called text": (200, "\n<html>Sign in</html>", {}, "HTML page"),
    "no metrics": (200, "{not metrics", {}, "cannot be read as metrics"),
    "no text": (200, b"\xff\xfe\x00", {}, "cannot be read as metrics"),
    "an empty page": (200, "", {}, "no engine with the plug-in has counted a prompt"),
    "a broken gzip": (200, b"garbage", {"Content_Encoding": "gzip"}, "cannot be decompressed"),
    "half a gzip": (200, gzip.compress(GOOD.encode())[:-9], {"Content_Encoding": "gzip"}, "ends early"),
    "half a page": (200, GOOD, {"Content_Length": "99999"}, "ends early"),
    "unauthorised": (401, "", {"WWW_Authenticate": "Basic"}, "give user and password in the URL"),
    "forbidden": (403, "", {}, "may not read it"),
    "broken": (502, "<html>", {}, "502 Bad Gateway"),
    "a file": (302, "", {"Location": f"file://u:{PASSWORD}@h/"}, "not HTTP"),
    "itself": (302, "", {"Location": "/metrics"}, "in a circle"),
    "a secret address": (302, "", {"Location": f"ftp://u:{PASSWORD}@h/"}, "redirects to an address that cannot be read"),
}


@pytest.mark.parametrize("case", BAD_PAGES)
def test_a_page_that_cannot_be_read_is_one_clear_line(server: Server, case: str) -> None:
    status, body, headers, why = BAD_PAGES[case]
    url = server.sends(body, status=status, **headers)
    refused(lpc("--engine", url.replace("//", f"//me:{PASSWORD}@")), why)


# urllib leaves the socket to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "raw", [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"HTTP/9 x\r\n\r\n"]
)
def test_an_answer_other_than_http_is_one_clear_line(server: Server, raw: bytes) -> None:
    server.raw = raw
    refused(lpc("--engine", f"http://{server.netloc}"), server.netloc)


def test_a_page_is_read_up_to_a_limit_packed_or_not(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_BYTES", 1 << 20)
    refused(lpc("--engine", server.sends("#" * (2 << 20))), "more than 1 MiB")
    refused(lpc("--engine", server.sends(gzip.compress(b"#" * (2 << 20)), Content_Encoding="gzip")), "more than 1 MiB")


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_user_and_password_of_a_url_are_sent(server: Server) -> None:
    server.sends(GOOD)
    assert figures("--engine", f"http://me:p%40ss%3Aw%2Frd@{server.netloc}")["prompt_tokens"] == 100
    assert server.seen == [("/metrics", basic("me", "p@ss:w/rd"))]


def test_a_redirect_gets_the_password_on_the_same_server_only(server: Server, other: Server) -> None:
    server.sends("", status=307, Location="/prom/metrics")
    server.sends(GOOD, path="/prom/metrics")
    url = f"http://me:{PASSWORD}@{server.netloc}"
    assert figures("--engine", url)["prompt_tokens"] == 100
    assert [given for _, given in server.seen] == [basic("me", PASSWORD)] * 2
    other.sends(GOOD)
    server.sends("", status=302, Location=f"http://{other.netloc}/metrics")
    assert figures("--engine", url)["prompt_tokens"] == 100
    # Back again: another server has chosen this request.
    other.sends("", status=302, Location=f"http://you:{PASSWORD}@{other.netloc}/moved")
    other.sends(GOOD, path="/moved")
    assert figures("--engine", url)["prompt_tokens"] == 100
    assert {given for _, given in other.seen} == {None}


SECRET_URLS = [
    f"http://me:{PASSWORD}@127.0.0.1:1",
    f"http://me:{PASSWORD}@127.0.0.1:1/x?token={PASSWORD}#{PASSWORD}",
    f"http://me:{PASSWORD}@nowhere.invalid",
    f"http://me:{PASSWORD}@[::1",
    f"http://me:{PASSWORD}@127.0.0.1:port",
    f"http://me:{PASSWORD}@127.0.0.1:99999",
    f"http://me:{PASSWORD}/x@127.0.0.1:1",
    f"http://me:{PASSWORD}#x@127.0.0.1:1",
    f"http://me:{PASSWORD}?x@127.0.0.1:1",
    f"http://me:x@{PASSWORD}@127.0.0.1:1",
    f"http://me:{PASSWORD}@",
    f"http://{PASSWORD}@127.0.0.1:1",
    f"http://:{PASSWORD}@127.0.0.1:1",
    f"http://me:{PASSWORD}\n@127.0.0.1:1",
    f"http://me:{PASSWORD}ü@127.0.0.1:1",
    f"redis://me:{PASSWORD}@127.0.0.1:1",
    f"me:{PASSWORD}@127.0.0.1:1",
]


@pytest.mark.parametrize("url", SECRET_URLS)
@pytest.mark.parametrize("option", ["--engine", "--prometheus"])
def test_no_error_and_no_traceback_contains_a_password(option: str, url: str) -> None:
    found = lpc(option, url, "--json")
    assert found.exit_code in (1, 2)
    assert PASSWORD not in found.output and "internal error" not in found.output


def test_an_address_in_a_message_has_no_secrets() -> None:
    for url in SECRET_URLS:
        assert PASSWORD not in without_secrets(url)
    assert without_secrets("http://[::1]:9090/a/b?c=d") == "http://[::1]:9090/a/b"
    assert without_secrets("host:50051") == "host:50051"
    assert without_secrets("unix:///run/lpc.sock") == "unix:///run/lpc.sock"


def series(value: Any = "75", **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [1.0, value]}


def answered(*result: Any, **more: Any) -> str:
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": list(result)}, **more})


API = "/api/v1/query"
CACHED = series(source="cached")
PROMETHEUS = {
    "as documented": answered(CACHED),
    "a number": answered(series(75, source="cached")),
    "NaN": answered(CACHED, series("NaN", source="new")),
    "bare NaN": answered(CACHED, series(float("nan"), source="new")),
    "infinite": answered(CACHED, series("+Inf", source="new"), series("1e999", source="evicted")),
    "a falling counter": answered(CACHED, series("-12.5", source="new")),
    "without a label": answered(CACHED, series("12.5")),
    "twice": answered(CACHED, CACHED),
    "null warnings": answered(CACHED, warnings=None, infos=[]),
}


@pytest.mark.parametrize("case", PROMETHEUS)
def test_the_answer_of_a_prometheus_is_read(server: Server, case: str) -> None:
    url = server.sends(PROMETHEUS[case], path=API, Content_Type="application/json")
    found = lpc("--prometheus", url, "--json")
    # Every query gets the same answer, so that other metrics have strange labels.
    assert json.loads(found.stdout)["by_source"]["cached"]["tokens"] == 75


def test_warnings_and_partial_data_are_reported(server: Server) -> None:
    url = server.sends(answered(CACHED, warnings=["a store is \x1b[31mdown", "http://u:secret@h"], isPartial=True), path=API)
    assert figures("--prometheus", url)["warnings"] == ["a store is \x1b[31mdown", "http://***@h", "the answer is partial"]
    said = lpc("--prometheus", url).stderr
    assert said.count(r"a store is \x1b[31mdown") == said.count("the answer is partial") == 1
    assert "\x1b" not in said


BAD_ANSWERS = {
    "an error": (400, json.dumps({"status": "error", "errorType": "bad_data", "error": "too long"}), "bad_data: too long"),
    "an error that quotes an address": (
        *(400, json.dumps({"status": "error", "error": 'Get "http://user:pa/ss@host:1/x": refused'})),
        'Get "http://***@host:1/x": refused',
    ),
    "an error with 200": (200, json.dumps({"status": "error", "error": "too long"}), "error: too long"),
    "unavailable": (503, json.dumps({"status": "error", "error": "starting"}), "starting"),
    "unavailable proxy": (503, "no upstream", "not the answer of a Prometheus"),
    "text": (200, "hello", "not the answer of a Prometheus"),
    "a list": (200, "[]", "not the answer of a Prometheus"),
    "no data": (200, json.dumps({"status": "success", "data": None}), "not the answer of a Prometheus"),
    "a matrix": (200, answered({"metric": {}, "values": []}), "not the answer of a Prometheus"),
    "a word": (200, answered(series("many", source="new")), "not the answer of a Prometheus"),
    "a truth value": (200, answered(series(True, source="new")), "not the answer of a Prometheus"),
    "labels that are no object": (200, answered({"metric": [], "value": [1, "2"]}), "not the answer of a Prometheus"),
    "deep": (200, "[" * 100_000, "not the answer of a Prometheus"),
    "nothing": (200, answered(), "no engine with the plug-in has counted a prompt"),
}


@pytest.mark.parametrize("case", BAD_ANSWERS)
def test_an_answer_that_cannot_be_read_is_one_clear_line(server: Server, case: str) -> None:
    status, body, why = BAD_ANSWERS[case]
    refused(lpc("--prometheus", server.sends(body, path=API, status=status)), why)


@pytest.mark.parametrize("hours", ["nan", "inf", "1e300"])
def test_a_number_of_hours_that_no_prometheus_has_is_refused(hours: str) -> None:
    found = lpc("--prometheus", "http://127.0.0.1:1", "--hours", hours)
    assert found.exit_code == 2 and "--hours" in found.stderr and "internal error" not in found.stderr


numbers = st.one_of(st.floats(), st.integers(-5, 10**400), st.sampled_from(["NaN", "+Inf", "-Inf", "1e999", "x", "", "1_0"]))
words = st.one_of(
    st.sampled_from([*SOURCES, *RULES, "all", "asked", "chosen", "10", "+Inf", "0", "1024", ""]), st.text(max_size=5)
)
labels = st.dictionaries(
    st.sampled_from(["source", "tenant", "cache", "unused", "before", "rule", "engine"]), words, max_size=4
)


def quoted(text: str) -> str:
    return json.dumps(text.replace("\r", " ").replace("\x85", " "), ensure_ascii=False).replace("\\t", " ")


@st.composite
def lines(draw: st.DrawFn) -> str:
    if draw(st.integers(0, 9)) == 0:
        return draw(st.text(max_size=20))
    pairs = ",".join(f"{name}={quoted(value)}" for name, value in draw(labels).items())
    return f"{draw(st.sampled_from(sorted(LABELS)))}{{{pairs}}} {draw(numbers)}" + draw(
        st.sampled_from(["", " 17", ' # {a="b"} 1'])
    )


def sound(found: Result) -> None:
    """Figures that JSON has and shares that are shares, or one line."""
    assert found.exit_code in (0, 1), found.output
    if found.exit_code:
        assert len([line for line in found.stderr.splitlines() if line.startswith("lpc: ")]) >= 1
        assert "internal error" not in found.output
        return
    figures = json.loads(found.stdout, parse_constant=lambda name: pytest.fail(f"JSON has no {name}"))
    shares = [row["share"] for row in figures["by_source"].values()]
    # Without the plug-in a report is of a fleet alone, and no prompt token has a source.
    assert figures["prompt_tokens"] or figures["fleet"] is not None
    assert abs(sum(shares) - (figures["prompt_tokens"] > 0)) < 1e-6 and min(shares) >= 0
    hits = [row["hit_share"] for row in (*figures["rules"].values(), figures["chosen"])]
    hits += [share for tenant in figures["rules_by_tenant"].values() for share in tenant["hit_shares"].values()]
    had = [*hits, *figures["evicted_share_that_other_rules_had"].values(), *figures["hit_share_by_size"].values()]
    assert all(0 <= share <= 1 for share in had if share is not None)


fuzzed = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(page=st.lists(lines(), max_size=12), end=st.sampled_from(["", "# EOF\n"]), good=st.booleans())
@fuzzed
def test_any_page_of_metrics_is_a_report_or_one_line(server: Server, page: list[str], end: str, good: bool) -> None:
    url = server.sends((GOOD * good + "\n".join(page) + "\n" + end).encode(errors="replace"))
    sound(lpc("--engine", url, "--json"))
    assert lpc("--engine", url).exit_code in (0, 1)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
results = st.fixed_dictionaries(
    {"metric": st.one_of(labels, json_values), "value": st.one_of(json_values, st.tuples(st.floats(), numbers))}
)
answers = st.one_of(
    json_values,
    st.fixed_dictionaries(
        {"status": st.one_of(st.just("success"), json_values)},
        optional={
            "data": st.one_of(json_values, st.fixed_dictionaries({"result": st.lists(st.one_of(results, st.just(CACHED)))})),
            "warnings": json_values,
            "error": json_values,
            "isPartial": json_values,
        },
    ),
)


@given(answer=answers, status=st.sampled_from([200, 200, 200, 400, 422, 500, 503]))
@fuzzed
def test_any_answer_of_a_prometheus_is_a_report_or_one_line(server: Server, answer: Any, status: int) -> None:
    url = server.sends(json.dumps(answer), path=API, status=status)
    sound(lpc("--prometheus", url, "--json"))


def test_changed_tokens_are_shown_by_what_changed_with_what_to_do(server: Server) -> None:
    changed = "".join(
        f'lpc_changed_tokens_total{{change="{change}",before="{before}"}} {tokens}\n'
        for change, before, tokens in (("value", 0, 40), ("value", 1024, 2), ("order", 0, 7), ("media", 0, 0))
    )
    engine = server.sends(GOOD + changed)
    found = figures("--engine", engine)
    assert found["changed_by_what_changed"] == {"value": 42, "order": 7}
    assert found["changed_by_tokens_before"] == {"0": 47, "1024": 2}
    assert "time stamp" in lpc("--engine", engine).stdout
    assert set(CHANGED) == set(CHANGES)


def test_preempted_requests_and_what_they_compute_again_are_named(server: Server) -> None:
    assert "preempted" not in lpc("--engine", server.sends(GOOD)).output
    counts = {"held": 5000, "least": 700, "again": 1200}
    tokens = "".join(f'lpc_preempted_tokens_total{{which="{which}"}} {n}\n' for which, n in counts.items())
    url = server.sends(GOOD + "lpc_preempted_requests_total 3\n" + tokens)
    found = figures("--engine", url)
    assert found["preempted"] == {"requests": 3, **counts}
    share = 1200 / (found["prompt_tokens"] - found["by_source"]["cached"]["tokens"] + 1200)
    shown = " ".join(lpc("--engine", url).output.split())
    assert f"3 requests were preempted and computed 1,200 tokens again, {share:.1%} of the prefill" in shown
    assert "They held 5,000; the running requests with the fewest held 700." in shown


def test_a_cache_that_thrashes_and_requests_that_wait_are_named(server: Server) -> None:
    waited = "".join(
        f'lpc_waited_requests_total{{what="{what}"}} {n}\n'
        for what, n in {"warm": 30, "cold": 12, "evicted": 4, "behind_cold": 9}.items()
    )
    evicted = 'lpc_prompt_tokens_total{source="evicted"} 75\n'
    calm = server.sends(GOOD + waited)
    assert figures("--engine", calm)["repeated_share_of_prefill"] == 0.0
    assert "thrashes" not in lpc("--engine", calm).output
    url = server.sends(GOOD + evicted + waited + "lpc_overtaking_total 5\n")
    found = figures("--engine", url)
    assert found["repeated_share_of_prefill"] == 0.75
    assert found["waited"] == {"warm": 30, "cold": 12, "evicted": 4, "behind_cold": 9, "overtook": 5}
    shown = " ".join(lpc("--engine", url).output.split())
    assert "75% of the prefill computes what the cache had before: it thrashes" in shown
    assert "42 requests waited. Of 30 mostly cached ones 9 waited behind a cold one, and 4 lost cached blocks" in shown
    assert "5 overtook an older one" in shown


NEVER_HIT = {
    "other_layers": "had no state there",
    "part_block": "a hit needs 1,152 tokens",
    "not_read": "may not read it",
    "embeddings": "came as embeddings",
}


@pytest.mark.parametrize("source", NEVER_HIT)
def test_hits_that_never_come_are_named_with_what_to_check(server: Server, other: Server, source: str) -> None:
    url = server.sends(GOOD + f'lpc_prompt_tokens_total{{source="{source}"}} 25\nlpc_hit_tokens 1152\n')
    small = other.sends(GOOD + f'lpc_prompt_tokens_total{{source="{source}"}} 4\nlpc_hit_tokens 16\n')
    shown = " ".join(lpc("--engine", url).output.split())
    assert "20% of the prompt tokens" in shown and NEVER_HIT[source] in shown
    assert all(words not in shown for cause, words in NEVER_HIT.items() if cause != source)
    assert "of the prompt tokens" not in " ".join(lpc("--engine", small).output.split())
    assert figures("--engine", url, "--engine", small)["tokens_for_a_hit"] == 1152
    (warning, ok) = examine_hits(url)
    assert (warning.status, ok.status) == ("warn", "ok")
    assert NEVER_HIT[source] in warning.found and warning.advice
    assert [finding.status for finding in examine_hits(small)] == ["ok"]


def test_a_prometheus_is_asked_for_the_largest_unit(server: Server) -> None:
    url = server.sends(answered(CACHED), path=API)
    assert figures("--prometheus", url)["tokens_for_a_hit"] is not None
    asked = [urllib.parse.unquote_plus(path) for path, _ in server.seen]
    assert any("max by () (max_over_time(lpc_hit_tokens[21600s]))" in query for query in asked)


def test_the_doctor_names_an_engine_that_cannot_be_read(server: Server) -> None:
    (finding,) = examine_hits(server.sends("up 1\n"))
    assert finding.status == "fail" and "no engine with the plug-in" in finding.found
    (finding,) = examine_hits("http://127.0.0.1:1")
    assert finding.status == "fail" and finding.advice


def examine_hits(engine: str) -> list[Finding]:
    found = examine(ClientSettings(predictor_address="127.0.0.1:1"), engine)
    return [finding for finding in found if finding.check == "hits"]


def test_an_address_at_which_nothing_listens_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    refused(
        lpc("--engine", address),
        f"{address}/metrics: connection refused: nothing listens there, so start it, or name its address and port",
    )
