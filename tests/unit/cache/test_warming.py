"""A file of questions is worked off, and what became of each line is counted."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lpc.cache.warming import FAILURES, Warmed, WarmError, warm

LINES = [{"question": f"q{i}", "answer": "a"} for i in range(6)]


class Kept:
    """Keeps answers, and fails from some question on."""

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


def run(path: Path, kept: Kept) -> Warmed:
    return list(warm(path, {"model": "m", "temperature": 0}, kept, rate=1000))[-1]


def test_what_became_of_each_line_is_counted(tmp_path: Path) -> None:
    path = written(tmp_path)
    done = run(path, Kept())
    assert (done.lines, done.there, done.stored, done.refused) == (6, 1, 4, {"temperature": 1})
    failed = run(path, Kept(fails_from=3))
    assert (failed.failure, failed.refused) == ("away", {"temperature": 1, "failed": 3})


@pytest.mark.parametrize("line", [[], {"answer": "a"}, {"messages": 1}])
def test_a_line_that_is_none_is_named_and_not_quoted(tmp_path: Path, line: Any) -> None:
    with pytest.raises(WarmError, match="line 2: expected") as caught:
        run(written(tmp_path, [LINES[0], line]), Kept())
    assert "q0" not in str(caught.value)


@pytest.mark.parametrize(
    "more", [{"prompt": "q1"}, {"top_p": float("nan")}, {"messages": [{"role": "user", "content": "\ud800"}]}]
)
def test_a_line_that_no_cache_can_be_asked_is_named_and_not_quoted(tmp_path: Path, more: dict[str, Any]) -> None:
    line = {"messages": [{"role": "user", "content": "q1"}], **more}
    with pytest.raises(WarmError, match="line 2: no request") as caught:
        run(written(tmp_path, [LINES[0], line]), Kept())
    assert "q1" not in str(caught.value)


def test_a_model_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(WarmError, match="which model"):
        list(warm(written(tmp_path), {}, Kept(), rate=1))


def test_when_nothing_gets_through_it_gives_up(tmp_path: Path) -> None:
    with pytest.raises(WarmError, match="away"):
        run(written(tmp_path, LINES * 2), Kept(fails_from=12 - FAILURES))


def test_a_file_without_a_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WarmError, match="is empty"):
        run(written(tmp_path, []), Kept())
