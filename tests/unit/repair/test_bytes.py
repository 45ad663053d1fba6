"""The bytes of a repaired body: those of all members that no rule has changed stay, whatever the body is."""

import importlib
import json
import re
import sys
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lpc.requests.repair import RULES, repair, repair_bytes, repaired, rules_of, statements
from lpc.requests.repair.copies import Edited, ordered, replaced, replaced_all, without
from lpc.requests.repair.splicing import spliced
from tests.unit.repair.test_rules import ALL, MOVED, function

Value = Any
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4), max_leaves=12
)
STATEMENTS = st.sampled_from([case[1] for case in MOVED] + ["You help.", "", " ", "{", '"', "\ud800", "é\n"])
CONTENTS = STATEMENTS | st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"]), "text": STATEMENTS}), max_size=3
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.sampled_from("abc"),
            "function": st.fixed_dictionaries({"arguments": st.sampled_from(['{"b":1.0,"a":2}', "", "x"])}),
        }
    ),
    max_size=2,
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]), "content": CONTENTS | VALUES},
    optional={"tool_calls": CALLS | VALUES, "tool_call_id": st.sampled_from("abc")},
)
TOOLS = st.builds(function, st.sampled_from("abcd"), parameters=VALUES) | VALUES
BODIES = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGES | VALUES, max_size=5)},
    optional={
        "system": CONTENTS,
        "tools": st.lists(TOOLS, max_size=4) | VALUES,
        "model": st.sampled_from(["m", "gpt-oss", "qwen"]),
        "x": VALUES,
    },
)
FORMS = st.sampled_from([{}, {"separators": (",", ":")}, {"indent": 1}, {"ensure_ascii": False}])


def written(body: Value, form: Any) -> bytes:
    return json.dumps(body, **form).encode("utf-8", "replace")


@settings(deadline=None)
@given(BODIES, FORMS, st.sets(st.sampled_from(ALL)), st.sampled_from(["any", "vllm", "sglang"]))
def test_bytes_and_object_are_repaired_alike_and_a_second_repair_changes_nothing(
    body: Any, form: Any, names: Any, kind: Any
) -> None:
    raw = written(body, form)
    fields = json.loads(raw)
    found = repair_bytes(raw, names, kind)
    assert json.loads(found) == repair(fields, names, kind)
    assert json.dumps(json.loads(found)) == json.dumps(repair(fields, names, kind))  # members in the same order
    assert json.loads(raw) == fields
    assert repair_bytes(found, names, kind) == found
    if not repaired(fields, rules_of(names), kind).changes:
        assert found == raw


@settings(deadline=None)
@given(VALUES.filter(lambda value: isinstance(value, dict)), FORMS)
def test_a_body_without_a_conversation_keeps_its_bytes(body: Any, form: Any) -> None:
    raw = written(body, form)
    assert repair_bytes(raw, ALL) == raw


@settings(deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
@example(b'{"messages": [], "messages": []}')
@example(b'{"messages": [{"role": "system", "content": "Current time: 11:39\\nGo."}], "a": NaN}')
@example(b"[" * 100_000)
@example(b'\xef\xbb\xbf{"messages": []}')
@example(b'{"x": ' + b"1" * 5000 + b"}")
def test_what_is_not_one_object_stays(raw: bytes) -> None:
    assert repair_bytes(raw, ALL) == raw


def test_numbers_escapes_and_white_space_of_other_members_stay() -> None:
    head = r'{ "n":1.0,"big": 123456789012345678901234567890 , "e":1E2, "z":-0.0, "s":"\u00e9\/\ud83d\ude00" ,'
    system = r'"messages":[ {"content":"Go.\nCurrent time: 11:39", "x" : 1.50,"role":"system"} ,'
    user = r' {"role":"user","content":"\u00fc", "y":  2.0 } ]'
    tail = ',\t"tools": [{"function": {"name":"b","parameters":{"maximum":1e3}}}, {"function":{"name": "a", "m": 1.00}}]}\n'
    found = repair_bytes((head + system + user + tail).encode(), ["move-time", "tool-order"]).decode()
    assert found == (
        head
        + r'"messages":[ {"content":"Go.", "x" : 1.50,"role":"system"} ,'
        + r' {"role":"user","content":"\u00fc\n\nCurrent time: 11:39", "y":  2.0 } ]'
        + ',\t"tools": [{"function":{"name": "a", "m": 1.00}}, {"function": {"name":"b","parameters":{"maximum":1e3}}}]}\n'
    )
    keys = '{"tools":[{"function":{"name":"f","parameters":{"type":"object","maximum":1.0,"default":1e400,"minimum":-0}}}]}'
    assert repair_bytes(keys.encode(), ["schema-keys"]).decode() == (
        '{"tools":[{"function":{"name":"f","parameters":{"default": 1e400, "maximum": 1.0, "minimum": -0, "type": "object"}}}]}'
    )


def test_thoughts_with_signatures_and_images_stay() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Current time: 11:39 ", "signature": "Eq\u0301=="},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"n": 1.0}},
    ]
    body = {
        "system": [{"type": "text", "text": "Go.\nCurrent time: 11:39", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "image", "source": {"data": "AA=="}}]},
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "r"}]},
        ],
        "n": 2,
        "stream": True,
    }
    raw = json.dumps(body)
    found = repair_bytes(raw.encode(), ["move-time", "trailing-space"]).decode()
    assert json.dumps(blocks) in found and json.dumps(body["messages"][0]) in found and '"n": 2, "stream": true' in found
    assert json.loads(found)["messages"][2]["content"][0]["content"] == "r\n\nCurrent time: 11:39"
    assert json.loads(found)["system"] == [{"type": "text", "text": "Go.", "cache_control": {"type": "ephemeral"}}]


def test_copies_have_the_texts_of_what_they_share() -> None:
    text = '{"a": [1.0, {"b": 1.00, "c": [2.0]}, 3.0], "d": {"e": 4.0}}'
    value = json.loads(text)
    assert spliced(text, value, replaced(value, ("a", 1, "b"), "x")) == text.replace("1.00", '"x"')
    assert spliced(text, value, without(value, ("a", 0))) == '{"a": [{"b": 1.00, "c": [2.0]}, 3.0], "d": {"e": 4.0}}'
    both = replaced_all(value, {("a", 1, "c", 0): 5, ("d", "e"): 6})
    assert spliced(text, value, both) == '{"a": [1.0, {"b": 1.00, "c": [5]}, 3.0], "d": {"e": 6}}'
    swapped = replaced(value, ("a", 1), ordered(value["a"][1], ["c", "b"]))
    assert spliced(text, value, swapped) == '{"a": [1.0, {"c": [2.0], "b": 1.00}, 3.0], "d": {"e": 4.0}}'
    assert spliced(text, value, value) == text and isinstance(swapped, Edited) and swapped.origin is value


# Hostile bodies. Work is counted in calls of functions and in what expressions may repeat, not in seconds.

LINES = [
    "Current time: 11:39",
    "Request ID: 8f3e91aa77",
    "Turn: 5",
    "hash: 9f8e7d6c",
    "- [ ] task",
    "```",
    "Current time:",
    "<a>",
    "[ ]",
]


@pytest.mark.parametrize("pattern", [value for name, value in vars(statements).items() if isinstance(value, re.Pattern)])
def test_no_expression_repeats_without_limit_what_it_repeats_without_limit(pattern: re.Pattern[str]) -> None:
    """An expression without nested or adjacent unlimited repetitions takes time in proportion to what it sees."""
    parser: Any = importlib.import_module("re._parser")

    def unlimited(parsed: Any, *, inside: bool) -> int:
        found = 0
        for name, argument in parsed:
            if name in (parser.MAX_REPEAT, parser.MIN_REPEAT):
                _, most, inner = argument
                is_unlimited = most > 1024
                assert not (inside and is_unlimited), pattern.pattern
                found += is_unlimited + unlimited(inner, inside=inside or most > 64)
            elif name is parser.SUBPATTERN:
                found += unlimited(argument[3], inside=inside)
            elif name is parser.BRANCH:
                found += max(unlimited(branch, inside=inside) for branch in argument[1])
            elif name in (parser.ASSERT, parser.ASSERT_NOT):
                found += unlimited(argument[1], inside=inside)
        return found

    assert unlimited(parser.parse(pattern.pattern, pattern.flags), inside=False) <= 1


def calls_of(body: Any, names: list[str]) -> int:
    """Return how many functions are called to repair a body."""
    raw, counted = json.dumps(body).encode(), 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        del frame, argument
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        repair_bytes(raw, names)
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("glue", ["\n", " ", ". "])
def test_the_work_for_a_system_prompt_of_statements_is_bounded(line: str, glue: str) -> None:
    def body(times: int) -> Any:
        return {
            "messages": [{"role": "system", "content": glue.join(["Go.", *[line] * times])}, {"role": "user", "content": "a"}]
        }

    assert calls_of(body(20_000), ALL) < 150_000


def calls(arguments: str, number: int) -> Any:
    return [{"id": f"{k}", "function": {"arguments": arguments}} for k in range(number)]


MANY: dict[str, Any] = {
    "parts": lambda n: {
        "system": [{"type": "text", "text": LINES[k % 3]} for k in range(n)],
        "messages": [{"role": "user", "content": "a"}],
    },
    "systems": lambda n: {"messages": [{"role": "system", "content": LINES[k % 3]} for k in range(n)]},
    "ends": lambda n: {"messages": [{"role": "user", "content": "a "} for _ in range(n)]},
    "messages": lambda n: {"messages": [{"role": "assistant", "tool_calls": calls('{"b":1,"a":2}', 1)} for _ in range(n)]},
    "calls": lambda n: {"messages": [{"role": "assistant", "tool_calls": calls("[" * 99, n)}]},
    "tools": lambda n: {"messages": [], "tools": [function(f"{k}", parameters={"type": "x", "a": k}) for k in range(n, 0, -1)]},
    "keys": lambda n: {"messages": [], "tools": [function("f", parameters={f"{k}": 1.0 for k in range(n, 0, -1)})]},
}


@pytest.mark.parametrize("many", MANY.values(), ids=MANY)
def test_work_grows_in_proportion_to_the_body(many: Any) -> None:
    small, large = calls_of(many(300), ALL), calls_of(many(2400), ALL)
    assert large <= 10 * small + 10_000


def test_a_deep_body_is_repaired_or_stays() -> None:
    schema: Any = {"type": "object"}
    for _ in range(90):
        schema = {"type": "object", "properties": {"b": schema, "a": {}}}
    body = {"messages": [{"role": "user", "content": "a"}], "tools": [function("f", parameters=schema)]}
    found = repair(body, ALL)
    assert json.dumps(found, sort_keys=True) == json.dumps(body, sort_keys=True)
    assert calls_of(body, ALL) < 100_000


def test_rules_hold_no_state_between_bodies_of_two_tenants() -> None:
    def body(tenant: str) -> Any:
        system = f"Of {tenant}.\nRequest ID: {tenant}8f3e91aa77"
        return {"cache_salt": tenant, "messages": [{"role": "system", "content": system}, {"role": "user", "content": tenant}]}

    alone = [repair(body(name), [rule.name for rule in RULES]) for name in ("red", "blue")]
    mixed = [repair(body(name), [rule.name for rule in RULES]) for name in ("blue", "red", "blue")]
    assert mixed[0] == mixed[2] == alone[1] and mixed[1] == alone[0]
    assert "blue" not in json.dumps(alone[0])
