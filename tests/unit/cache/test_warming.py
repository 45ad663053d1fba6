"""Warming the caches from a file: counts, invalid lines and failures."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lpc.cache.warming import FAILURES, Warmed, WarmError, warm

LINES = [{"question": f"q{i}", "answer": "a"} for i in range(6)]


class Sidecar:
    """Stores answers, and fails from a given request on."""

    def __init__(self, fails_from: int = 1000) -> None:
        self.asked: list[str] = []
        self.fails_from = fails_from

    def __call__(self, body: Mapping[str, Any], answer: str | None) -> str:
        text = body["messages"][-1]["content"]
        if len(self.asked) >= self.fails_from:
            raise WarmError("away")
        self.asked.append(text)
        return "there" if text == "q0" else "temperature" if text == "q1" else "stored"


def written(folder: Path, lines: list[Any] = LINES) -> Path:
    path = folder / "faq.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(path: Path, sidecar: Sidecar) -> Warmed:
    return list(warm(path, {"model": "m", "temperature": 0}, sidecar, rate=1000))[-1]


def test_the_outcome_of_each_line_is_counted(tmp_path: Path) -> None:
    path = written(tmp_path)
    done = run(path, Sidecar())
    assert (done.lines, done.there, done.stored, done.refused) == (6, 1, 4, {"temperature": 1})
    failed = run(path, Sidecar(fails_from=3))
    assert (failed.failure, failed.refused) == ("away", {"temperature": 1, "failed": 3})


@pytest.mark.parametrize("line", [[], {"answer": "a"}, {"messages": 1}])
def test_the_error_of_an_invalid_line_names_the_line_and_does_not_quote_it(tmp_path: Path, line: Any) -> None:
    with pytest.raises(WarmError, match="line 2: expected") as caught:
        run(written(tmp_path, [LINES[0], line]), Sidecar())
    assert "q0" not in str(caught.value)


@pytest.mark.parametrize(
    "more", [{"prompt": "q1"}, {"top_p": float("nan")}, {"messages": [{"role": "user", "content": "\ud800"}]}]
)
def test_the_error_of_an_invalid_request_names_the_line_and_does_not_quote_it(tmp_path: Path, more: dict[str, Any]) -> None:
    line = {"messages": [{"role": "user", "content": "q1"}], **more}
    with pytest.raises(WarmError, match="line 2: not a valid request") as caught:
        run(written(tmp_path, [LINES[0], line]), Sidecar())
    assert "q1" not in str(caught.value)


def test_a_line_needs_a_model(tmp_path: Path) -> None:
    with pytest.raises(WarmError, match="no model"):
        list(warm(written(tmp_path), {}, Sidecar(), rate=1))


def test_consecutive_failures_stop_the_run(tmp_path: Path) -> None:
    with pytest.raises(WarmError, match="away"):
        run(written(tmp_path, LINES * 2), Sidecar(fails_from=12 - FAILURES))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WarmError, match="is empty"):
        run(written(tmp_path, []), Sidecar())
