"""Bodies of an adversary: a repair changes one line, and all other bytes are as they were, in every API and form of JSON."""

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc.requests.repair import repair, repair_bytes, statements
from lpc.requests.repair.reading import read_object
from tests.unit.repair.test_rules import ALL, MOVES, chat, function

LINE = "Current time: 2026-11-30T11:39:01Z"
MOVED = f"\\n\\n{LINE}"
PADDING = "Be brief, and name the file that you have read. " * 40
NUMBERS = '"f":1.0,"big":123456789012345678901234567890,"e":1E2,"z":-0.0'


# By name: a body with @ where the line is and # where it goes, and the rules; without # nothing may change.
CASES: dict[str, str] = {
    "Responses with thoughts, calls and their results": (
        '{"model":"m","instructions":"Go.@","input":[{"type":"message","role":"user",'
        '"content":[{"type":"input_text","text":"a"}]},'
        '{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAAA\\/x=="},'
        '{"type":"function_call","call_id":"c","name":"f","arguments":"{\\"b\\": 1.0, \\"a\\": 1}"},'
        '{"type":"function_call_output","call_id":"c","output":"r#"}],"store":false,"include":["reasoning.encrypted_content"]}'
    ),
    "Responses with a plain text": '{"input":"hello#","instructions":"Go.@\\nBe brief.","stream":true, "x" : 1.50}',
    "Responses with a file": (
        '{"instructions":"Go.@","input":[{"role":"user","content":[{"type":"input_file","file_data":"data:;base64,AA=="},'
        '{"type":"input_text","text":"read#"}]}]}'
    ),
    "Messages with signatures, an error of a tool and a cache mark": (
        '{"system":[{"type":"text","text":"Go.@","cache_control":{"type":"ephemeral","ttl":"1h"}}],"messages":['
        '{"role":"user","content":"a"},'
        '{"role":"assistant","content":[{"type":"thinking","thinking":"Turn: 5","signature":"Eq+/=="},'
        '{"type":"redacted_thinking","data":"AB\\/="},{"type":"tool_use","id":"t","name":"f","input":{"b":1.0,"a":1e400}}]},'
        '{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","is_error":true,"content":"r#"}]}],"max_tokens":10}'
    ),
    "options of streams and numbers in all forms": (
        '{"messages":[{"role":"system","content":"Go.@"},{"role":"user","content":"a#"}],"stream":true,'
        '"stream_options":{"include_usage":true},"n":2,"logit_bias":{"1":-1e2},"seed":18446744073709551616,' + NUMBERS + "}"
    ),
    "the members in another order": (
        '{"tools":[{"function":{"name":"f","parameters":{"maximum":1.0,"a":[1,1.0,1e0]}}}],'
        '"metadata":{"messages":[{"role":"user",'
        '"content":"x"}]},"messages":[{"content":"Go.@","role":"system"},'
        '{"content":"a#","name":"n","role":"user"}],"model":"m"}'
    ),
    "tools behind the messages": (
        '{"messages":[{"role":"system","content":"Go.@"},{"role":"user","content":"a#"}],'
        '"tools":[{"type":"function","function":{"name":"b"}},{"type":"function","function":{"name":"a"}}]}'
    ),
    "white space everywhere": (
        '\n{ "messages" :\t[ { "role" : "system" , "content" : "Go.@" } ,\r\n { "role" : "user" ,'
        ' "content" : "a#" }\n ]\n , "x" : 1.0 }\n'
    ),
    "a last message that quotes a whole body": (
        '{"messages":[{"role":"system","content":"Go.@"},{"role":"user","content":"{\\"role\\": \\"user\\", \\"content\\": '
        '\\"}]} {\\\\\\"role\\\\\\"\\"}#"}],"y":2.0}'
    ),
    "parts that begin as messages do": (
        '{"messages":[{"role":"system","content":"Go.@"},{"role":"user","content":[{"role":"user","x":{"role":1}},'
        '{"type":"text","text":"a#"}],"role2":{"role":"user"}}]}'
    ),
    "an answer that is to be continued": (
        '{"messages":[{"role":"system","content":"Go.@"},{"role":"user","content":"a#"},{"role":"assistant","content":"b { "}]}'
    ),
    "escapes in front of the line": (
        '{"messages":[{"role":"system","content":"\\u00e9\\ud83d\\ude00\\\\@"},{"role":"user","content":"a#"}]}'
    ),
    "letters of the line as escapes of others": (
        '{"messages":[{"role":"system","content":"a\\\\nb\\\\u0041 \\"c\\".@\\nd"},{"role":"user","content":"\\\\\\\\#"}]}'
    ),
    "raw UTF-8": '{"messages":[{"role":"system","content":"é😀 Los.@\\nüß"},{"role":"user","content":"日本#"}],"u":"\\u00e9"}',
    "an instruction of a developer behind one of the system": (
        '{"messages":[{"role":"system","content":"A."},{"role":"developer","content":"Go.@"},{"role":"user","content":"a#"}]}'
    ),
    "other tenants' fields": (
        '{"cache_salt":"red","user":"u","safety_identifier":"Session ID: 8f3e91aa77","metadata":{"user_id":"Turn: 5"},'
        '"messages":[{"role":"system","content":"Go.@"},{"role":"user","content":"a#"}],"vllm_xargs":{"a":1.0}}'
    ),
    "a name twice in a message": (
        '{"messages":[{"role":"system","content":"Go.\\nTurn: 5","content":"Go.\\nTurn: 6"},{"role":"user","content":"a"}]}'
    ),
    "a name twice in a schema": (
        '{"messages":[{"role":"system","content":"Go.\\nTurn: 5"},{"role":"user","content":"a"}],'
        '"tools":[{"function":{"name":"b","parameters":{"a":1,"a":2}}},{"function":{"name":"a"}}]}'
    ),
    "functions of the former API": (
        '{"messages":[{"role":"user","content":"a"}],"functions":[{"name":"b"},{"name":"a","parameters":{"b":1,"a":1.0}}],'
        '"function_call":"auto"}'
    ),
    "texts to embed": '{"model":"m","input":["Current time: 11:39\\nGo.","Turn: 5"],"dimensions":64.0}',
    "a list of prompts": '{"prompt":["Current time: 11:39\\nGo."],"best_of":1}',
    "a line that is the whole prompt": (
        f'{{"messages":[{{"role":"system","content":"{LINE}"}},{{"role":"user","content":"a"}}]}}'
    ),
    "a conversation without a user": (
        f'{{"messages":[{{"role":"system","content":"Go.\\n{LINE}"}},{{"role":"assistant","content":"a"}}]}}'
    ),
    "a user's content of an unknown kind": (
        f'{{"messages":[{{"role":"system","content":"Go.\\n{LINE}"}},{{"role":"user","content":{{"a":1.0}}}}]}}'
    ),
    "a line between fences": (
        f'{{"messages":[{{"role":"system","content":"Go.\\n```\\n{LINE}\\n```\\nSo."}},{{"role":"user","content":"a"}}]}}'
    ),
    "a thought of the model at the head": (
        f'{{"messages":[{{"role":"assistant","content":"Go.\\n{LINE}"}},{{"role":"user","content":"a"}}]}}'
    ),
}


@pytest.mark.parametrize("rules", [["move-time"], ["move-time", "move-id", "move-counter", "move-user"]])
@pytest.mark.parametrize("name", CASES)
def test_one_line_moves_and_all_other_bytes_stay(name: str, rules: list[str]) -> None:
    template = CASES[name]
    body = template.replace("@", f"\\n{LINE}").replace("#", "")
    expected = template.replace("@", "").replace("#", MOVED) if "#" in template else body
    found = repair_bytes(body.encode(), rules).decode()
    assert found == expected
    assert repair_bytes(found.encode(), rules).decode() == expected


PICTURE = '{"type":"image_url","image_url":{"url":"data:image/png;base64,' + "iVBORw0KGgo\\/" * 20_000 + '"}}'


def test_a_large_picture_stays_and_text_goes_behind_it() -> None:
    body = f'{{"messages":[{{"role":"system","content":"Go.\\n{LINE}"}},{{"role":"user","content":[{PICTURE}]}}],"n":1.0}}'
    found = repair_bytes(body.encode(), MOVES).decode()
    assert PICTURE in found and found.endswith('"n":1.0}')
    assert json.loads(found)["messages"][1]["content"][1] == {"type": "text", "text": LINE}


def test_schemas_that_are_nested_keep_their_numbers_and_data() -> None:
    inner = '{"type":"number","minimum":1.0,"maximum":1e3,"default":{"z":1.0,"a":-0}}'
    schema = (
        f'{{"type":"object","properties":{{"b":{inner},"a":{{"$ref":"#/$defs/x"}}}},"$defs":{{"x":{inner}}},"oneOf":[{inner}]}}'
    )
    body = f'{{"tools":[{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}],"messages":[],"x":1.0}}'
    found = repair_bytes(body.encode(), ["schema-keys"]).decode()
    assert json.loads(found, parse_float=str, parse_int=str) == json.loads(body, parse_float=str, parse_int=str)
    assert sorted(re.findall(r"-?\d[\d.e]*", found)) == sorted(re.findall(r"-?\d[\d.e]*", body))
    assert '{"z":1.0,"a":-0}' in found.replace(" ", "") and found.endswith('"messages":[],"x":1.0}')


@pytest.mark.parametrize("form", [{}, {"separators": (",", ":")}, {"indent": 2}, {"ensure_ascii": False}])
def test_lines_at_both_ends_and_in_the_middle_of_a_long_prompt_move_and_the_rest_stays(form: Any) -> None:
    text = f'{LINE}\n{PADDING}\n\u00e9 \\ "\n' + PADDING * 3 + "\nRequest ID: 8f3e91aa77\n" + PADDING * 3 + "\nTurn: 5"
    body = chat(text, "hello " * 30, x=[1.0, 1e300])
    raw = json.dumps(body, **form)
    found = repair_bytes(raw.encode(), MOVES).decode()
    left = text.replace(f"{LINE}\n", "").replace("Request ID: 8f3e91aa77\n", "").replace("\nTurn: 5", "")
    moved = f"{LINE}\n\nRequest ID: 8f3e91aa77\n\nTurn: 5"
    ascii_only = form.get("ensure_ascii", True)
    expected = raw.replace(json.dumps(text, ensure_ascii=ascii_only), json.dumps(left, ensure_ascii=ascii_only))
    assert found == expected.replace(f'"{"hello " * 30}"', json.dumps(f"{'hello ' * 30}\n\n{moved}"))


def test_a_line_twice_in_the_middle_of_a_long_prompt_moves_twice() -> None:
    text = "\n".join([PADDING * 3, "Turn: 5", PADDING * 3, "Turn: 5", PADDING * 3])
    found = json.loads(repair_bytes(json.dumps(chat(text)).encode(), ["move-counter"]))
    assert found["messages"][0]["content"] == text.replace("Turn: 5\n", "")
    assert found["messages"][1]["content"] == "hello\n\nTurn: 5\nTurn: 5"


PIECES = st.sampled_from(
    [
        PADDING[:90],
        LINE,
        "Request ID: 8f3e91aa77",
        "Turn: 5",
        "\\",
        "\\n",
        '"',
        "\u00e9",
        "\U0001f600",
        "/",
        "u0041",
        "\x07",
        " ",
    ]
)


def escaped(text: str, every: int) -> str:
    """Return JSON of a text in which one of so many characters is an escape that it does not need."""
    pieces = [json.dumps(char)[1:-1] for char in text]
    return "".join(
        f"\\u{ord(char):04x}" if number % every == 0 and ord(char) < 0xD800 else piece
        for number, (char, piece) in enumerate(zip(text, pieces, strict=True))
    )


@settings(deadline=None, max_examples=150)
@given(st.lists(PIECES, min_size=2, max_size=9), st.sampled_from(["\n", "", ". "]), st.integers(2, 400), st.booleans())
def test_any_way_to_write_a_string_is_repaired_as_its_text(pieces: list[str], glue: str, every: int, is_escaped: bool) -> None:
    text = glue.join(pieces)
    written = f'"{escaped(text, every)}"' if is_escaped else json.dumps(text, ensure_ascii=every % 2 == 0)
    raw = f'{{"messages":[{{"role":"system","content":{written}}},{{"role":"user","content":{written}}}],"x":1.0}}'
    found = repair_bytes(raw.encode(), ALL)
    assert json.loads(found) == repair(json.loads(raw), ALL)
    assert found.endswith(b'],"x":1.0}')


@settings(deadline=None)
@given(st.text(alphabet='{}[]:,"\\ \n1a-', max_size=30).map(lambda text: "{" + text) | st.binary(max_size=30).map(repr))
def test_an_object_is_read_as_json_reads_it(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        expected = None
    found = read_object(text)
    if not isinstance(expected, dict):
        assert found is None
    elif found is not None:  # no name is there twice
        assert found.fields == expected
        assert all(json.loads(text[start:end]) == found.fields[name] for name, (start, end) in found.places.items())


FINDERS = (statements.times, statements.ids, statements.counters, statements.users, statements.digests, statements.tasks)
LABELS = [
    "Current time",
    "now",
    "Turn: 5",
    "- [ ] a",
    "The request id is 8f3e91aa77",
    "User:",
    "\u0421егодня",
    "今天",
    "é",
    "\n",
    ". ",
    "! ",
]
LABELS += [
    "? ",
    " ",
    "#",
    "hash:",
    "\u00a0",
    "\u0130",
    "\u017fession id",
    "your ",
    "\ud800",
    ": 11:39",
    "2026-11-30",
    "a@example.com",
]


def test_statements_are_found_alike_with_and_without_re2(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(4)
    texts = ["".join(rng.choices(LABELS, k=rng.randrange(1, 16))) for _ in range(1000)]
    found = [[list(find(text)) for find in FINDERS] for text in texts]
    monkeypatch.setattr(statements, "re2", None)
    monkeypatch.setattr(statements, "OPENINGS", tuple(re.compile(one) for one in statements.expressions()))
    assert [[list(find(text)) for find in FINDERS] for text in texts] == found
    assert sum(any(one) for one in found) > 100


def test_tools_of_two_tenants_are_sorted_alike_and_hold_nothing_of_each_other() -> None:
    def body(tenant: str) -> bytes:
        tools = [function(name, description=tenant) for name in ("b", "a", "c")]
        return json.dumps(chat(f"Of {tenant}.", tools=tools, cache_salt=tenant)).encode()

    red, blue = (repair_bytes(body(name), ALL).decode() for name in ("red", "blue"))
    assert "red" not in blue and "blue" not in red and red == blue.replace("blue", "red")
