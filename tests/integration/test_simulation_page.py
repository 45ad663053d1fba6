"""The page of `lpc simulate --html`: one file that loads nothing, and shows names of a log as text."""

import html
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.simulator.policies import REGISTRY
from tests.command import lpc
from tests.eventually import patiently
from tests.unit.why.traffic import Record, clean, write

HOSTILE = "<img src=x onerror=alert(1)>&'\"{{ 7*7 }}{% raw %}.jsonl"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def log_file(path: Path) -> Path:
    """Twenty agents that return in turn, and a damaged line."""
    lines = [
        json.dumps(
            {
                "timestamp": 1000 * (20 * turn + agent),
                "input_length": 512 * (turn + 2),
                "output_length": 10,
                "hash_ids": [0, *(1000 * agent + block for block in range(1, turn + 2))],
            }
        )
        for turn in range(8)
        for agent in range(20)
    ]
    path.write_text("\n".join([*lines[:80], '{"timestamp": "<b>"}', *lines[80:]]))
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    log = log_file(folder / HOSTILE)
    with pytest.MonkeyPatch.context() as patch:
        words = ["simulate", str(log), "--html", str(folder / "page.html"), "--jobs", "1", "--policies", "all"]
        patch.setattr(sys, "argv", ["lpc", *words])
        done = lpc(*words)
    assert done.returncode == 0, done.err
    return (folder / "page.html").read_text()


def test_the_page_loads_nothing_and_runs_nothing(page: str) -> None:
    found = Elements(page)
    assert not {"script", "img", "link", "iframe", "object", "embed", "base", "form", "a"} & set(found.names)
    assert not {name for name, _ in found.attributes} & {"src", "href", "xlink:href", "srcset", "style", "action"}
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert not re.search(r"url\(|@import|//", page.replace(html.escape("//"), ""))
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in found.attributes


def test_names_of_the_log_are_text(page: str) -> None:
    assert HOSTILE not in page and "{{ 7*7 }}" in page
    assert HOSTILE in html.unescape(page)


def test_the_page_has_curves_in_words_sources_what_was_skipped_and_the_command(page: str) -> None:
    text = html.unescape(page)
    for policy in REGISTRY.values():
        assert policy.title in text
    assert page.count("<polyline") == 2 * len(REGISTRY)  # in the drawing and in its key
    assert "cached: shared prefixes" in text and "An infinite cache would serve" in text
    assert "Records skipped" in text and "lpc simulate '" in text and "--policies all" in text


def test_a_cache_in_gib_has_marks_on_the_curve_and_a_paragraph(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 128}  # 2 KiB per token
    (tmp_path / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
    words = ["simulate", str(log_file(tmp_path / "a.jsonl")), "--policies", "lru", "--capacity", "20%", "--jobs", "1", "--json"]
    words += ["--html", str(tmp_path / "a.html"), "--model", str(tmp_path), "--gpu-gib", "0.03125", "--cpu-gib", "0.0625"]
    done = lpc(*words)
    assert done.returncode == 0, done.err
    found = json.loads(done.out)
    assert found["memory"]["sizes_tokens"] == {"GPU": 32_768, "GPU + CPU": 98_304, "twice that": 196_608}
    assert found["memory"]["conversation_bytes"] == found["memory"]["conversation_tokens"] * 1024
    assert {row["capacity_tokens"] for row in found["summary"]} >= {32_768, 98_304, 196_608}
    (answer,) = found["answer"].values()
    assert "LRU serves" in answer and "with the CPU tier (98.3K)" in answer
    page = (tmp_path / "a.html").read_text()
    assert [page.count(f">{name}</text>") for name in ("GPU", "GPU + CPU", "twice that")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--gpu-gib", "1"], "needs --model as well as --gpu-gib"),
        (["--cpu-gib", "1"], "need --model and --gpu-gib"),
        (["--model", "m", "--gpu-gib", "1", "--cache", "1M"], "--cache or --gpu-gib"),
        (["--model", "m", "--gpu-gib", "1", "--gpu-hour-price", "1", "--closed"], "leave out --gpu-hour-price"),
        (["--describe", "--picture", "a.png"], "give --html"),
        (["--predictor-gib", "1"], "--predictor-gib is a part of --gpu-gib"),
        (["--model", "m", "--gpu-gib", "1", "--predictor-gib", "1"], "--predictor-gib is a part of --gpu-gib"),
        (["--gpu-gib", "nan", "--model", "m"], "gpu-gib"),
    ],
)
def test_options_that_do_not_fit_are_one_error(words: list[str], reason: str) -> None:
    done = lpc("simulate", "--workload", "loop", *words)
    assert done.returncode == 2 and reason in done.err, done.err


def test_the_configuration_of_a_model_that_is_missing_fails() -> None:
    done = lpc("simulate", "--workload", "loop", "--model", "none.json", "--gpu-gib", "1")
    assert done.returncode == 1 and "no such file" in done.err, done.err


def stamped(path: Path, records: list[Record]) -> Path:
    """Write chats whose system prompt begins with a time and a secret that looks like markup, which changes too."""
    for number, record in enumerate(records):
        system = f"Now: 2026-11-26T10:{number // 60 % 60:02}:{number % 60:02}Z. {record['messages'][0]['content']}"
        record["messages"] = [{"role": "system", "content": f"<b>zebra</b> {system}"}, *record["messages"][1:]]
    write(path, records)
    return path


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Return the page of a log with a cause, and what `lpc why` finds in it."""
    folder = tmp_path_factory.mktemp("causes")
    log = stamped(folder / "a.jsonl", clean(sessions=12, turns=5))
    words = ["simulate", str(log), "--policies", "lru", "--capacity", "50%", "--jobs", "1"]
    done = lpc(*words, "--html", str(folder / "a.html"))
    assert done.returncode == 0, done.err
    return (folder / "a.html").read_text(), json.loads(lpc("why", str(log), "--json").out)


@pytest.fixture
def page_with_causes(explained: tuple[str, dict[str, Any]]) -> str:
    return explained[0]


def test_the_page_has_the_causes_of_lpc_why_without_text(explained: tuple[str, dict[str, Any]]) -> None:
    page, found = explained
    text = " ".join(re.sub("<[^>]*>", " ", page).split())
    (cause,) = found["causes"]
    assert cause["name"] == "time stamp" and cause["pattern"] in text and cause["what_to_do"] in text
    row = [f"{cause['lost_share']:.1%}", f"{cause['hit_rate_without_it']:.1%}"]
    assert cause["lost_share"] > 0.2 and all(number in text for number in row), text
    assert f"without these causes {found['hit_rate_without_causes']:.1%}" in text
    # Two figures of an infinite cache, each with what it counts.
    assert f"An infinite cache serves {found['hit_rate']:.1%} of the prompt tokens of the whole log, with the warm-up" in text
    assert (
        "Infinite cache, after the warm-up" in text and "The requests of the warm-up, in which policies learn, are not" in text
    )
    assert "zebra" not in page and "maple" not in page


def test_a_log_without_causes_or_without_conversations_says_so(page: str, tmp_path: Path) -> None:
    assert "no names of conversations, so no cause can be named" in page
    write(tmp_path / "clean.jsonl", clean(sessions=12, turns=5))
    words = ["--policies", "lru", "--capacity", "50%", "--jobs", "1", "--html", str(tmp_path / "a.html")]
    assert lpc("simulate", str(tmp_path / "clean.jsonl"), *words).returncode == 0
    assert "No cause of misses was found" in (tmp_path / "a.html").read_text()
    assert lpc("simulate", "--workload", "loop", *words).returncode == 0
    assert "Why prompts miss" not in (tmp_path / "a.html").read_text()


def test_a_closed_loop_and_several_workloads_have_pages_too(tmp_path: Path) -> None:
    words = ["simulate", "--workload", "cliff,loop", "--policies", "lru", "--capacity", "5%,50%", "--jobs", "1"]
    assert lpc(*words, "--html", str(tmp_path / "two.html")).returncode == 0
    two = (tmp_path / "two.html").read_text()
    assert two.count('<svg class="chart"') == 2 and ">cliff" in two and ">loop" in two
    assert lpc(*words, "--closed", "--requests", "200", "--html", str(tmp_path / "closed.html")).returncode == 0
    assert "20 sessions at a time" in (tmp_path / "closed.html").read_text()


def test_a_single_size_that_hits_nothing_is_drawn(tmp_path: Path) -> None:
    words = ["simulate", str(log_file(tmp_path / "a.jsonl")), "--policies", "mru", "--capacity", "512", "--jobs", "1"]
    assert lpc(*words, "--html", str(tmp_path / "a.html")).returncode == 0
    assert "nan" not in (tmp_path / "a.html").read_text().lower()


def described_log(path: Path) -> Path:
    """Forty conversations of three turns, by names that look like markup, with a damaged line."""
    rows = []
    for turn in range(3):
        for number in range(40):
            said = [{"role": "user", "content": f"word{number} " * 200}, {"role": "assistant", "content": "well " * 200}] * (
                turn + 1
            )
            rows.append(
                {
                    "time": f"2026-03-{1 + number // 20:02}T23:{10 * (number % 6):02}:{turn:02}+02:00",
                    "messages": said[:-1],
                    "category": "<b>zebra</b>" if number % 2 else "{{ 7*7 }}",
                    "session_id": f"s{number}",
                    "user": f"u{number % 12}",
                }
            )
    path.write_text("\n".join([*map(json.dumps, rows[:60]), "damaged", *map(json.dumps, rows[60:])]))
    return path


@pytest.fixture(scope="module")
def description_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("described")
    done = lpc("simulate", str(described_log(folder / "a.jsonl")), "--describe", "--html", str(folder / "a.html"))
    assert done.returncode == 0 and f"page: {folder / 'a.html'}" in done.out, done.err
    return (folder / "a.html").read_text()


def test_a_description_loads_nothing_and_shows_names_of_types_as_text(description_page: str) -> None:
    found = Elements(description_page)
    assert not {"script", "img", "link", "b", "a"} & set(found.names)
    assert not {name for name, _ in found.attributes} & {"src", "href", "style"}
    assert "<b>" not in description_page and "{{ 7*7 }}" in html.unescape(description_page)


def test_a_description_has_a_table_for_each_chart_and_the_hour_of_the_day_in_utc(description_page: str) -> None:
    assert description_page.count('<svg class="chart"') == description_page.count("the table below has the figures") >= 15
    # A table for each chart, and those of the log, of kinds and of classes.
    assert description_page.count("<table>") == description_page.count('<svg class="chart"') + 3
    text = html.unescape(description_page)
    for title in (
        "Hits over the day",
        "Turns with a next turn, by type, over the day",
        "Stride by offset",
        "reaches the ideal",
    ):
        assert title in text
    assert "<td>21:00</td>" in text and "<td>23:00</td>" not in text  # two hours before the log's own time
    assert "Records skipped" in text and "nan" not in text.lower().replace("finance", "")


@pytest.mark.parametrize("rows", [1, 2])
def test_a_log_that_allows_hardly_any_figure_has_a_page(rows: int, tmp_path: Path) -> None:
    lines = [json.dumps({"time": n, "messages": [{"role": "user", "content": "hi"}]}) for n in range(rows)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    done = lpc("simulate", str(tmp_path / "a.jsonl"), "--describe", "--html", str(tmp_path / "a.html"))
    assert done.returncode == 0, done.err
    assert "Requests over the day" in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize(("width", "scheme", "background"), [(360, 0, "rgb(21, 24, 28)"), (1000, 1, "rgb(255, 255, 255)")])
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("name", ["page", "page_with_causes", "description_page"])
def test_the_page_fits_a_phone_and_follows_the_colour_scheme(
    request: pytest.FixtureRequest, name: str, width: int, scheme: int, background: str, tmp_path: Path
) -> None:
    """A frame of this width holds the page, and reports its width when laid out, its colour and the size of the axis' text."""
    page: str = request.getfixturevalue(name)
    outer = tmp_path / "outer.html"
    outer.write_text(
        f'<body><iframe width={width} height=800 srcdoc="{html.escape(page)}"></iframe><p></p><script>'
        "document.querySelector('iframe').onload = event => { const inner = event.target.contentDocument;"
        " const text = inner.querySelector('svg text').getBoundingClientRect().height;"
        " document.querySelector('p').textContent = [inner.documentElement.scrollWidth,"
        " getComputedStyle(inner.body).backgroundColor, text].join(';') + ';' }</script>"
    )
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--blink-settings=preferredColorScheme={scheme}",
            "--virtual-time-budget=5000",
            "--dump-dom",
            outer.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=patiently(),
        check=True,
    )
    found = re.search(r"<p>(\d+);([^;]*);([\d.]+);</p>", done.stdout)
    assert found is not None, done.stdout[-500:]
    assert int(found[1]) <= width  # wide tables scroll on their own
    assert found[2] == background
    assert float(found[3]) >= 9  # pixels: readable
