"""The page of `lpc simulate --html` in a real browser: nothing complains or overlaps, light and dark, wide and narrow."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eviction_client.settings import ClientSettings
from lpc.commands.cli import app
from lpc.simulator.cost import Cost
from lpc.simulator.describe import describe
from lpc.simulator.policies import REGISTRY
from lpc.simulator.report.page import write_html
from lpc.simulator.report.theme import COLOURS
from lpc.simulator.summary import derived
from tests.browser import Browser, browser
from tests.integration.test_learned_policies import trace
from tests.unit.simulator.test_report import row

ROOT = Path(__file__).parents[2]

VISIBLE = """[...document.querySelectorAll('text, h1, h2, h3, p, li, legend, label, th, td, pre')]
    .filter(e => e.getClientRects().length && e.textContent.trim())"""

RECTANGLES = f"""{VISIBLE}.filter(e => e.matches('text')).map(e => {{
    const box = e.getBoundingClientRect();
    return [e.textContent, box.left, box.top, box.right, box.bottom];
}})"""

CONTRASTS = f"""{VISIBLE}.map(e => {{
    const light = text => {{
        const parts = text.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255);
        const [r, g, b] = parts.map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    }};
    const style = getComputedStyle(e);
    const under = e => getComputedStyle(e).backgroundColor;
    let ground = e;
    while (ground.parentElement && under(ground) === 'rgba(0, 0, 0, 0)') ground = ground.parentElement;
    const two = [light(e.matches('text') ? style.fill : style.color), light(under(ground))].sort((a, b) => a - b);
    return [e.textContent.trim().slice(0, 40), (two[1] + 0.05) / (two[0] + 0.05)];
}})"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every policy there is, at seven sizes: the fullest there can be."""
    path = tmp_path_factory.mktemp("page") / "gain.html"
    rows = [
        row(name, size, (0.05 + 0.012 * place) * (1 + step) / 2, capacity_fraction=size / 90_000_000)
        for place, name in enumerate(REGISTRY)
        for step, size in enumerate((875_000, 1_750_000, 2_630_000, 4_380_000, 7_000_000, 17_500_000, 43_800_000))
    ]
    write_html(derived(rows), describe(trace(300)), Cost(), path, 1)
    return path


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture(
    params=[(1300, False), (1300, True), (400, False), (400, True)], ids=lambda p: f"{p[0]}-{'dark' if p[1] else 'light'}"
)
def opened(chromium: Browser, page: Path, request: pytest.FixtureRequest) -> Browser:
    width, dark = request.param
    chromium.open(page, width=width, dark=dark)
    return chromium


def over_one_another(found: list[list[Any]]) -> list[tuple[str, str]]:
    """Return the pairs of texts whose boxes share more than a pixel each way."""
    return [
        (a[0], b[0])
        for place, a in enumerate(found)
        for b in found[place + 1 :]
        if min(a[3], b[3]) - max(a[1], b[1]) > 1 and min(a[4], b[4]) - max(a[2], b[2]) > 1.5
    ]


def test_nothing_complains_overflows_or_is_asked_of_the_network(opened: Browser, page: Path) -> None:
    assert opened.complaints == []
    width = opened.evaluate("innerWidth")
    assert opened.evaluate("document.documentElement.scrollWidth") == width
    assert opened.evaluate("performance.getEntriesByType('resource').length") == 0
    assert not re.search(r'(?:src|href)="https?:', page.read_text("utf-8"))
    outside = f"{VISIBLE}.filter(e => !e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth + 1).length"
    assert opened.evaluate(outside) == 0


def test_no_text_of_a_picture_lies_over_another_whatever_is_chosen(opened: Browser) -> None:
    width = opened.evaluate("innerWidth")
    for others in (False, True):
        opened.evaluate(f"document.querySelector('#others').checked = {json.dumps(others)}")
        for choice in range(7):
            opened.evaluate(f"document.querySelector('#choice-{choice}').click()")
            shown = opened.evaluate(RECTANGLES)
            assert {text for text, *_ in shown} >= {"plug-in", "0%"}
            assert not over_one_another(shown)
            assert [text for text, left, _, right, _ in shown if left < 0 or right > width] == []


def test_every_text_stands_out_from_its_ground(opened: Browser) -> None:
    opened.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
    found = opened.evaluate(CONTRASTS)
    assert len(found) > 100
    assert [text for text, contrast in found if contrast < 4.5] == []


def test_small_text_is_large_enough_to_read(opened: Browser) -> None:
    heights = opened.evaluate(f"{VISIBLE}.filter(e => e.matches('text')).map(e => e.getBoundingClientRect().height)")
    assert min(heights) >= 11  # of a line: letters of 10 pixels


def test_one_sentence_and_its_place_in_the_chart_are_shown_at_a_time(opened: Browser) -> None:
    sentences = "[...document.querySelectorAll('.gain')].filter(e => e.getClientRects().length).map(e => e.textContent)"
    [first] = opened.evaluate(sentences)
    assert first.startswith("With a cache of 1.8M tokens (1.9% of")
    opened.evaluate("document.querySelector('#choice-4').click()")
    [second] = opened.evaluate(sentences)
    assert second.startswith("With a cache of 7M tokens")
    values = "[...document.querySelectorAll('.value')].filter(e => e.getClientRects().length).map(e => e.textContent.trim())"
    assert all(value in second for value in opened.evaluate(values))
    assert len(opened.evaluate(values)) == 2


def test_the_other_policies_are_shown_when_asked_for(opened: Browser) -> None:
    shown = f"{VISIBLE}.filter(e => e.matches('text')).map(e => e.textContent)"
    assert "tlru" not in opened.evaluate(shown)
    opened.evaluate("document.querySelector('#others').click()")
    assert set(REGISTRY) - {"value", "lru"} <= {text.split()[-1] for text in opened.evaluate(shown)} | {"oracle"}


def test_the_page_follows_light_and_dark(chromium: Browser, page: Path) -> None:
    for dark in (False, True):
        chromium.open(page, width=1300, dark=dark)
        red = int(COLOURS["paper"][dark][1:3], 16)
        assert chromium.evaluate("getComputedStyle(document.body).backgroundColor").startswith(f"rgb({red},")


def test_what_switches_it_on_is_what_the_documentation_says(page: Path) -> None:
    shown = "\n".join(re.findall(r"(?s)<pre><code>(.*?)</code>", page.read_text("utf-8")))
    said = (ROOT / "docs/vllm.md").read_text("utf-8")
    [scheduler] = set(re.findall(r"--scheduler-cls \S+", shown))
    assert scheduler in said
    assert set(re.findall(r"'learned-prefix-cache\[\w+\]'", shown)) <= set(
        re.findall(r"'learned-prefix-cache\[\w+\]'", said + shown)
    )
    assert "'learned-prefix-cache[vllm]'" in said
    settings = {f"LPC_{name.upper()}" for name in ClientSettings.model_fields}
    assert set(re.findall(r"LPC_\w+", shown)) <= settings


def test_a_chart_by_think_time_and_one_of_a_single_size_are_drawn(chromium: Browser, tmp_path: Path) -> None:
    for rows in (
        [
            row(name, 160_000, rate, think_time_s=time)
            for time in (25.0, 100.0)
            for name, rate in (("lru", 0.1), ("value", 0.2))
        ],
        [row("lru", 160_000, 0.0), row("value", 160_000, 0.0)],
        [row("oracle", 160_000, 0.2)],
    ):
        write_html(derived(rows), describe(trace(50)), Cost(), tmp_path / "p.html")
        chromium.open(tmp_path / "p.html", width=400)
        assert chromium.complaints == []
        assert over_one_another(chromium.evaluate(RECTANGLES)) == []
        assert len(chromium.evaluate("[...document.querySelectorAll('.gain')].filter(e => e.getClientRects().length)")) == 1


def test_lpc_simulate_writes_the_page_for_the_size_that_is_yours(chromium: Browser, tmp_path: Path) -> None:
    asked = ["simulate", "--workload", "few-shot", "--policies", "lru,value,oracle", "--capacity", "2%,20%", "--cache", "5%"]
    done = CliRunner().invoke(app, [*asked, "--html", str(tmp_path / "p.html"), "--picture", str(tmp_path / "p.png")])
    assert done.exit_code == 0, done.output
    assert "(5% of this traffic's working set)" in " ".join(done.output.split())
    chromium.open(tmp_path / "p.html", width=1300)
    said = chromium.evaluate("[...document.querySelectorAll('.gain')].filter(e => e.getClientRects().length)[0].textContent")
    assert "(5% of this traffic's working set)" in said
    assert chromium.evaluate("document.querySelector('h1').textContent").startswith("few-shot")


def test_the_browser_tells_when_a_page_is_wrong(chromium: Browser, tmp_path: Path) -> None:
    """Else the tests above could not fail."""
    wrong = tmp_path / "wrong.html"
    picture = '<svg width="90" height="30"><text x="0" y="20">one</text><text x="5" y="20">two</text></svg>'
    wrong.write_text(f"<!doctype html><p style='color:#ddd;width:900px'>pale</p>{picture}<script>nothing()</script>")
    chromium.open(wrong, width=400)
    assert any("nothing" in text or "Uncaught" in text for text in chromium.complaints)
    assert chromium.evaluate("document.documentElement.scrollWidth") > 400
    assert over_one_another(chromium.evaluate(RECTANGLES)) == [("one", "two")]
    assert min(contrast for _, contrast in chromium.evaluate(CONTRASTS)) < 4.5
