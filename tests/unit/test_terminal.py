"""Names and messages of others, on the terminal and in the log."""

import io
import json
import logging
import sys

import pytest
from rich.table import Table

from lpc.wire.log_lines import TEXT, JsonFormatter, TextFormatter
from lpc.wire.terminal import LONGEST, console, shown
from lpc_cli.simulation_tables import print_reading

NASTY = [
    "\x1b[2J\x1b]0;title\x07",
    "a\nERROR forged",
    "a\r\nb",
    "\x9b31m",  # C1
    "\u202etxt.exe",  # bidi override
    "\u2028next",
    "\ud800",
    "\x00\x7f\b",
    "[/red][bold]markup[/]",
    ":smile:",
    "[link=http://a]b[/link]",
]


def harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("name", NASTY)
def test_a_name_is_one_printable_line(name: str) -> None:
    assert shown(name).isprintable()


def test_printable_names_stay_as_they_are() -> None:
    for name in ("Qwen/Qwen3-0.6B", "模型 é", "a" * LONGEST):
        assert shown(name) == name


def test_a_long_name_is_cut() -> None:
    assert len(shown("\x1b" * 3_000_000)) < 5 * LONGEST


@pytest.mark.parametrize("name", NASTY)
def test_tables_and_lines_show_names_as_they_are_but_for_controls(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    table = Table(name, title=name)
    table.add_row(name)
    screen = console()
    screen.print(table)
    screen.print(f"{name}: ok")
    assert harmless(out.getvalue())
    if name.isprintable():
        assert out.getvalue().count(name) == 4


@pytest.mark.parametrize("name", NASTY)
def test_text_of_a_log_controls_no_terminal_and_forges_no_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    skipped = {name: {"records": 1, "first": f"{name}:1", "lost": True}}
    print_reading(
        {"file": name, "format": "chat", "recognised": True, "requests": 1, "skipped": skipped, "estimated": {name: 1}}
    )
    lines = capsys.readouterr().err.removesuffix("\n").split("\n")
    assert len(lines) == 4 and all(line.isprintable() for line in lines)


@pytest.mark.parametrize("name", NASTY)
def test_no_argument_of_a_message_begins_a_line_or_controls_a_terminal(name: str) -> None:
    for args in ((name,), ({"name": name},), (ValueError(name),), ([name],)):
        record = logging.LogRecord(
            "a", logging.ERROR, "f", 1, "it %s" if not isinstance(args[0], dict) else "it %(name)s", args, None
        )
        line = TextFormatter(TEXT).format(record)
        assert line.isprintable()
        assert json.loads(JsonFormatter().format(record))["message"].isprintable()


@pytest.mark.parametrize("name", NASTY)
def test_further_lines_of_a_message_and_of_a_traceback_are_indented(name: str) -> None:
    try:
        raise ValueError(name)
    except ValueError:
        record = logging.LogRecord("a", logging.ERROR, "f", 1, f"it failed {name}", (), sys.exc_info())
    first, *rest = TextFormatter(TEXT).format(record).split("\n")
    assert first.isprintable() and rest
    assert all(line.startswith("  ") and line.isprintable() for line in rest)
    assert harmless(json.loads(JsonFormatter().format(record))["exception"])


def test_numbers_keep_their_formats() -> None:
    record = logging.LogRecord("a", logging.INFO, "f", 1, "%d %.2f %r %5s", (3, 0.5, "x", "y"), None)
    assert TextFormatter("%(message)s").format(record) == "3 0.50 'x'     y"
