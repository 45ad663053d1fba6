"""`lpc why` finds the causes that kvlint and Prefixwise document, in logs of our own.

kvlint 0.1.1 documents eight rules on a page of its repository, with the values that each finds. Prefixwise (release
notes and PyPI pages of 0.4 to 0.12) documents changes of a request, and causes in engines, which a log cannot show.
"""

import random
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.why.test_command import figures
from tests.unit.why.test_why import analysed, causes
from tests.unit.why.traffic import PLANTS, Record, clean, words, write

MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ZONES = ("Europe/Paris", "Asia/Tokyo", "America/Lima")
LOCALES = ("en-US", "de-DE", "fr-FR", "pt-BR", "ja-JP", "sv-SE")
EXAMPLES = [f"Input: {word} order\nOutput: {word} label\n" for word in ("red", "green", "late", "lost", "paid", "torn", "odd")]
HEADS: dict[str, tuple[Callable[[random.Random, int], str], str]] = {
    "an ISO date": (lambda _, i: f"Date: 2026-09-{1 + i % 28:02}", "time"),
    "a clock time": (lambda _, i: f"It is {i % 24:02}:{i * 7 % 60:02}.", "time"),
    "an epoch": (lambda _, i: f"Now {1_796_000_000 + 61 * i}.", "time"),
    "a weekday and a month": (lambda _, i: f"Today is {DAYS[i % 7]}, {1 + i % 28} {MONTHS[i % 9]}.", "time"),
    "a UUID": (lambda rng, _: f"Ref {digits(rng, 8)}-12ab-4cde-9f00-{digits(rng, 12)}.", "id"),
    "a hex digest": (lambda rng, _: f"Build {digits(rng, 40)}.", "id"),
    "a request's id": (lambda rng, _: f"Request id: req_{digits(rng, 10)}", "id"),
    "a trace's id": (lambda rng, _: f"trace_{digits(rng, 12)} is open.", "id"),
    "a counter of six digits": (lambda _, i: f"Ticket {100_000 + 37 * i}.", "number"),
    "an e-mail address": (lambda _, i: f"user: customer{i}@example.com", "text"),
    "a user's locale": (lambda rng, i: f"user: {words(rng, 2)} locale: {LOCALES[i % 6]}", "text"),
    "a phone number": (lambda rng, _: f"Call +1 555 {rng.randrange(100, 999)} {rng.randrange(1000, 9999)}.", "number"),
    "another system prompt": (lambda rng, _: words(rng, 30), "text"),
}
"""By kvlint's `dynamic_time`, `dynamic_id` and `user_in_system`, and Prefixwise's changed system prompt."""


def digits(rng: random.Random, count: int) -> str:
    return f"{rng.getrandbits(4 * count):0{count}x}"


def log(system: Callable[[random.Random, int, str], str], number: int = 60) -> list[Record]:
    rng = random.Random(5)
    rules = words(rng, 120)
    return [
        {
            "time": 1.7e9 + i,
            "messages": [{"role": "system", "content": system(rng, i, rules)}, {"role": "user", "content": words(rng, 20)}],
        }
        for i in range(number)
    ]


@pytest.mark.parametrize("name", HEADS)
def test_a_value_at_the_head_is_found_and_named(name: str) -> None:
    head, cause = HEADS[name]
    found = analysed(log(lambda rng, i, rules: f"{head(rng, i)}\n{rules}"))
    named = [kind for kind, _ in causes(found)]
    assert named and (cause in named or (cause in ("text", "number") and set(named) & {"id", "text", "number", "lines"})), named
    assert found.fixed > found.hit_rate + 0.3


@pytest.mark.parametrize("name", ["line ends", "trailing spaces", "Unicode forms"])
def test_text_that_differs_in_white_space_or_form_is_found(name: str) -> None:
    def system(rng: random.Random, i: int, rules: str) -> str:
        text = "Le caf\u00e9 est ouvert.\n" + rules.replace(". ", ".\n", 9)
        if name == "line ends":
            return text.replace("\n", "\r\n") if i % 2 else text
        if name == "trailing spaces":
            return text.replace(".\n", "." + " " * (i % 3) + "\n", 4)
        return unicodedata.normalize("NFD" if i % 2 else "NFC", text)

    found = analysed(log(system))
    assert [cause for cause, _ in causes(found)] == ["space"]


def test_json_between_fences_with_keys_in_another_order_is_found() -> None:
    def system(rng: random.Random, i: int, rules: str) -> str:
        settings = [f'"{name}": {at}' for at, name in enumerate(("depth", "mode", "retries", "timeout", "width"))]
        return f"Use\n```json\n{{{', '.join(rng.sample(settings, 5))}}}\n```\n{rules}"

    assert "keys" in [cause for cause, _ in causes(analysed(log(system)))]


def test_examples_in_another_order_are_found() -> None:
    found = analysed(log(lambda rng, i, rules: f"{rules}\n{''.join(rng.sample(EXAMPLES, 5))}\nAnswer with a label. {rules}"))
    assert "lines" in [cause for cause, _ in causes(found)]


def test_prompts_that_share_nothing_and_heads_that_end_inside_a_block_are_counted() -> None:
    rng = random.Random(3)
    alone = [{"time": 1.7e9 + i, "messages": [{"role": "user", "content": words(rng, 60)}]} for i in range(40)]
    assert analysed(alone).unshared == 40
    assert analysed(log(lambda rng, i, rules: rules)).edges > 0


CHANGES = {
    "tools in another order": "tool_order",
    "keys of tools in another order": "keys",
    "another list of tools": "tools",
    "an earlier message is edited": "edited",
    "earlier messages are left out": "truncated",
    "earlier messages become a summary": "compacted",
    "another image": "media",
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_conversations_request_is_found(name: str) -> None:
    cause = CHANGES[name]
    assert cause in [found for found, _ in causes(analysed(PLANTS[cause](clean(0, sessions=12))))]


def test_turns_that_only_append_have_no_cause() -> None:
    assert causes(analysed(clean(3, sessions=12))) == []


@pytest.mark.parametrize("field", ["model", "cache_salt"])
def test_a_conversation_that_goes_to_another_model_or_salt_is_a_warning(field: str, tmp_path: Path) -> None:
    def of(number: int) -> Record:
        return {field: f"m{number // 2 % 2}"}

    records = clean(1, sessions=8)
    moved = [{**record, **of(len(record["messages"]))} for record in records]
    apart = [{**record, **of(2 * int(record["session_id"][1:]))} for record in records]
    counts = []
    for name, log_ in (("moved", moved), ("apart", apart)):
        write(tmp_path / name, log_)
        warned = figures(tmp_path / name, "--engine", "vllm")["warnings"]
        counts.append(sum(one["requests"] for one in warned if one["warning"] == "other_scope"))
    assert counts == [8 * 7, 0]


@pytest.mark.parametrize("name", ["a weekday", "a month", "a locale", "a time zone"])
def test_a_value_that_comes_again_costs_one_miss_each(name: str) -> None:
    values = {"a weekday": DAYS, "a month": MONTHS, "a locale": LOCALES, "a time zone": ZONES}[name]
    found = analysed(log(lambda rng, i, rules: f"{name}: {values[i % len(values)]}\n{rules}", 200))
    without = analysed(log(lambda rng, i, rules: rules, 200))
    assert without.hit_rate - 0.05 < found.hit_rate < without.hit_rate
