from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lpc_apps.logs.chats.request import LoggedMessage, LoggedRequest, Part
from response_cache.gateway.gateway import LOOKUP_BYTES
from response_cache.semantic import repetition
from response_cache.semantic.repetition import Repetition


def said(*turns: str, time: float = 0.0, **fields: Any) -> LoggedRequest:
    roles = ("user", "assistant")
    messages = tuple(LoggedMessage(roles[n % 2], (Part("text", text),)) for n, text in enumerate(turns))
    return LoggedRequest(time, messages, **fields)


def counted(*requests: LoggedRequest) -> Repetition:
    found = Repetition()
    for request in requests:
        found.add(request)
    return found


def by_first_word(texts: Sequence[str]) -> Mapping[str, NDArray[Any]]:
    """Vectors that are equal for texts with one first word, and .9 alike for others."""
    words = sorted({text.split()[0] for text in texts})
    common = np.sqrt(0.9)
    return {
        text: np.array([common, *(np.sqrt(0.1) * (word == text.split()[0]) for word in words)], np.float32) for text in texts
    }


def test_exact_and_normalised_repetition_needs_the_same_context() -> None:
    found = counted(
        *(said("Where is it?"), said("Where is it?"), said("where is it"), said("Hi", "Hello", "Where is it?")),
        *(said("Where is it?", scope=("other model",)), said("Where is it?", tools=(Part("tool", "{}"),))),
        *(said("Where?", "There."), said(" ")),
    )
    assert found.shares() == {"requests": 8, "questions": 6 / 8, "exact": 1 / 8, "normalised": 2 / 8}


def test_a_question_repeats_by_meaning_what_came_before_it_unless_a_veto_stops_it() -> None:
    found = counted(
        said("pay by which card or account is possible", time=3),
        said("pay - what ways are there", time=1),
        said("pay by which card is not possible", time=4),  # negated
        said("reset it", time=2),
        said("pay", "Yes.", "pay - what other ways are there", time=5),  # in another context
    ).similar(by_first_word)
    assert [found["at"][limit] for limit in ("0.98", "0.93", "0.85")] == [1 / 5, 1 / 5, 2 / 5]
    assert found["exact"] == found["normalised"] == 0


def test_equal_texts_in_a_log_without_repetition_embed_nothing() -> None:
    def never(texts: Sequence[str]) -> Mapping[str, NDArray[Any]]:
        raise AssertionError(texts)

    found = counted(said("one"), said("Hi", "Hello", "two")).similar(never)
    assert set(found["at"].values()) == {0.0}
    assert set(Repetition().similar(never)["at"].values()) == {0.0}


def test_only_the_latest_requests_are_embedded_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetition, "EMBEDDED", 10)
    embedded: list[str] = []

    def noted(texts: Sequence[str]) -> Mapping[str, NDArray[Any]]:
        embedded.extend(texts)
        return by_first_word(texts)

    found = counted(*(said(f"w{n} question", time=n) for n in range(100, 0, -1)), said("w100 QUESTION", time=101)).similar(
        noted
    )
    assert sorted(embedded) == sorted(f"w{n} question" for n in range(91, 101))
    assert (found["requests"], found["normalised"]) == (11, 1 / 11)
    monkeypatch.setattr(repetition, "LATEST", 5)
    assert counted(*(said(f"w{n} question", time=n) for n in range(50))).similar(by_first_word)["requests"] == 5


def test_a_long_question_has_no_vector() -> None:
    found = counted(said("a " * 5000), said("a b " * 5000), said("b"), said("a")).similar(by_first_word)
    assert found["questions"] == 1 and found["at"]["0.85"] == 1 / 4 and found["at"]["0.93"] == 0


def test_of_a_text_that_no_gateway_looks_up_only_exact_repetition_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert repetition.LOOKED_UP == LOOKUP_BYTES
    monkeypatch.setattr(repetition, "LOOKED_UP", 100)
    assert counted(said("A b " * 25), said("a b " * 25)).shares()["normalised"] == 1 / 2
    longer = counted(said("A b " * 26), said("a b " * 26), said("a b " * 26)).shares()
    assert (longer["questions"], longer["exact"], longer["normalised"]) == (1.0, 1 / 3, 1 / 3)
