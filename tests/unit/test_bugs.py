"""Reports of bugs: where they are, never what they held."""

import logging

import pytest

from lpc.wire import bugs
from lpc.wire.bugs import log_bug

SECRET = "what a user wrote"
logger = logging.getLogger("test_bugs")


def _fail(prompt: str) -> None:
    raise KeyError(prompt)


def _caught(prompt: str = SECRET) -> Exception:
    try:
        try:
            _fail(prompt)
        except KeyError as error:
            raise ValueError(f"cannot read {prompt}") from error
    except ValueError as error:
        return error
    raise AssertionError


def test_a_report_contains_types_and_frames_but_not_values(caplog: pytest.LogCaptureFixture) -> None:
    log_bug(logger, "the guard", _caught())
    (record,) = caplog.records
    text = logging.Formatter().format(record)
    assert record.levelno == logging.ERROR
    assert "the guard" in text and "ValueError" in text and "KeyError" in text
    assert "test_bugs.py" in text and "in _fail" in text
    assert SECRET not in text


def test_a_place_is_reported_once_and_others_are_not_affected(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        log_bug(logger, "the guard", _caught())
    log_bug(logger, "the store", _caught())
    guard, store = (record.getMessage() for record in caplog.records)
    assert "the guard" in guard and "the store" in store


def test_the_next_report_counts_those_that_were_not_written(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        log_bug(logger, "the guard", _caught())
    monkeypatch.setattr(bugs, "REPEAT_S", 0.0)
    log_bug(logger, "the guard", _caught())
    assert "2 more" in caplog.records[-1].getMessage()
