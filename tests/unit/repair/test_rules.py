"""What each rule changes, and what it leaves."""

import copy
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lpc.errors import UsageError
from lpc.requests.repair import RULES, SAFETY, repair, repair_bytes, repaired, rules_of

Body = dict[str, Any]
ALL = [rule.name for rule in RULES]
MOVES = [rule.name for rule in RULES if rule.safety == "B"]


def chat(system: Any, user: Any = "hello", **more: Any) -> Body:
    return {"model": "m", "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}], **more}


MOVED = [
    ("move-time", "Go.\nCurrent time: 2026-11-30T11:39:01Z\nBe brief.", "Go.\nBe brief.", "Current time: 2026-11-30T11:39:01Z"),
    ("move-time", "Go. The current date is May 30, 2026. Be brief.", "Go. Be brief.", "The current date is May 30, 2026."),
    ("move-time", "You help. Today is Monday, 30. November 2026", "You help.", "Today is Monday, 30. November 2026"),
    ("move-time", "<env>\nToday's date: 2026-11-30\n</env>\nGo.", "<env>\n</env>\nGo.", "Today's date: 2026-11-30"),
    ("move-time", "Go.\n<current_time>11:39</current_time>\n", "Go.\n", "<current_time>11:39</current_time>"),
    ("move-time", "Go.\n- Timestamp: 1796040000\n", "Go.\n", "- Timestamp: 1796040000"),
    ("move-time", "Los. Heute ist der 30.11.2026. Sei knapp.", "Los. Sei knapp.", "Heute ist der 30.11.2026."),
    ("move-time", "你好。\n当前时间：2026-11-30 11:39\n", "你好。\n", "当前时间：2026-11-30 11:39"),
    ("move-id", "x-request-id: 8f3e91aa77\nYou help.", "You help.", "x-request-id: 8f3e91aa77"),
    ("move-id", "You help. Your session id is 0b7f6c1e-12ab-4cde-9f00-112233445566. Go.", "You help. Go.",
     "Your session id is 0b7f6c1e-12ab-4cde-9f00-112233445566."),
    ("move-id", "Go.\n<trace_id>req_01H8XGJW2Z</trace_id>", "Go.", "<trace_id>req_01H8XGJW2Z</trace_id>"),
    ("move-user", "You help.\nuser: customer1@example.com\nGo.", "You help.\nGo.", "user: customer1@example.com"),
    ("move-user", "Go.\nUser name: Ada L.\nTime zone: Europe/Paris\n", "Go.\n", "User name: Ada L.\nTime zone: Europe/Paris"),
    ("move-user", "You help. You are talking to ada@example.com. Go.", "You help. Go.", "You are talking to ada@example.com."),
    ("move-counter", "Go.\nTurn: 17 of 20\nTokens used: 12,345\n", "Go.\n", "Turn: 17 of 20\nTokens used: 12,345"),
    ("move-counter", "You help. Request #42. Go.", "You help. Go.", "Request #42."),
    ("move-digest", "x-anthropic-billing-header: cc_version=2.1.37.f31; cc_entrypoint=cli; cch=a1b2c;\nYou help.", "You help.",
     "x-anthropic-billing-header: cc_version=2.1.37.f31; cc_entrypoint=cli; cch=a1b2c;"),
    ("move-digest", "You help.\nPrompt hash: 9f8e7d6c\nGo.", "You help.\nGo.", "Prompt hash: 9f8e7d6c"),
    ("move-tasks", "Go.\n# Tasks\n- [ ] a\n- [x] b\n\nBe brief.", "Go.\n\nBe brief.", "# Tasks\n- [ ] a\n- [x] b"),
    ("move-tasks", "Go.\n<todo>\n1. [ ] a\n2. [x] b\n</todo>\nSo.", "Go.\nSo.", "<todo>\n1. [ ] a\n2. [x] b\n</todo>"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "system", "left", "moved"), MOVED)
def test_a_statement_goes_to_the_end_of_the_last_users_message(rule: str, system: str, left: str, moved: str) -> None:
    for body, head in (
        (chat(system), lambda b: b["messages"][0]["content"]),
        ({"system": system, "messages": [{"role": "user", "content": "hello"}]}, lambda b: b["system"]),
        ({"instructions": system, "input": [{"role": "user", "content": "hello"}]}, lambda b: b["instructions"]),
    ):
        before = copy.deepcopy(body)
        found = repair(body, [rule])
        assert body == before
        assert head(found) == left
        messages = found.get("messages") or found["input"]
        assert messages[-1]["content"] == f"hello\n\n{moved}"
        assert repair(found, [rule]) == found


KEPT = [
    "The policy of 2024-01-01 holds. Answer as of version 2.1.153.",
    "Release date of the product: see 2024. Knowledge cutoff: 2024-06.",
    "Example:\n```\nCurrent time: 2026-11-30 11:39\nRequest ID: 8f3e91aa77\n- [ ] task\n```\nDone.",
    '{"now": "2026-11-30T11:39:01Z", "request_id": "8f3e91aa77"}',
    '  "request_id": "8f3e91aa77",',
    "Step 1: read. Step 2: write. Rule #3: be brief.",
    'Use <env date="2026-11-30"> as it is.',
    "Call id: short. Session id: admin. The id is 12.",
    "Ask at 11:30. Meetings (today or 2026) are fine.",
    "User: hello\nAssistant: hi\nUser: what is a name: a word\nWrite to help@example.com if in doubt.",
    "Name: the name of the file. Domain name: example.com. Set `time zone: UTC` in the file.",
    "Port: 8080\nMax tokens: 4096\nTemperature: 0.7\nUser age: 42",
    "See https://host/a?id=1234567890abcdef and https://host/time=1796040000 for more.",
]


@pytest.mark.parametrize("system", KEPT)
def test_text_that_only_looks_like_a_statement_stays(system: str) -> None:
    body = chat(system)
    assert repaired(body, rules_of(ALL)).fields is body


def test_texts_of_users_replies_and_tools_are_never_searched() -> None:
    text = "\n".join(case[1] for case in MOVED)
    body = chat("You help.", text)
    body["messages"] += [
        {"role": "assistant", "content": text, "reasoning_content": text},
        {"role": "tool", "tool_call_id": "c", "content": text},
        {"role": "system", "content": text},
        {"role": "user", "content": [{"type": "text", "text": text}]},
    ]
    raw = json.dumps(body).encode()
    assert repair_bytes(raw, [*MOVES, "drop-billing", "round-time-hour", "round-time-day", "stable-id"]) == raw


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], (0, "content")),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}]}], (0, "content", 0, "text")),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}], (0, "content", 1, "text")),
        ([{"role": "user", "content": "a"}, {"role": "tool", "tool_call_id": "c", "content": "r"}], (1, "content")),
        (
            [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}]}],
            (0, "content", 0, "content"),
        ),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "r"}]}],
                }
            ],
            (0, "content", 0, "content", 0, "text"),
        ),
        ([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}], (0, "content", 0, "content")),
    ],
)
def test_the_end_is_in_the_last_text_or_in_the_tools_result(messages: list[Body], where: tuple[Any, ...]) -> None:
    found: Any = repair({"messages": [{"role": "system", "content": "Go.\nCurrent time: 11:39\n"}, *messages]}, ["move-time"])[
        "messages"
    ][1:]
    for name in where:
        found = found[name]
    assert found.endswith("Current time: 11:39")


@pytest.mark.parametrize(
    "body",
    [
        chat("Current time: 11:39"),  # nothing would be left of the system prompt
        {"messages": [{"role": "system", "content": "Go.\nCurrent time: 11:39"}]},
        {"messages": [{"role": "system", "content": "Go.\nCurrent time: 11:39"}, {"role": "user", "content": None}]},
        {"messages": [{"role": "system", "content": "Go.\nCurrent time: 11:39"}, 5]},
        {"prompt": "Current time: 11:39\nGo."},
        {"messages": "x"},
        {"messages": {"role": "system"}},
        {"messages": [], "tools": {}, "system": 5},
        {},
    ],
)
def test_a_body_that_is_not_understood_stays(body: Body) -> None:
    assert repaired(body, rules_of([*MOVES, "drop-billing", "tool-order", "call-ids"])).fields is body


def test_a_part_or_a_message_of_its_own_goes_whole() -> None:
    line = "x-anthropic-billing-header: cch=a1b2c;"
    system = [{"type": "text", "text": line}, {"type": "text", "text": "You help."}]
    body = {"system": system, "messages": [{"role": "user", "content": "hello"}]}
    assert repair(body, ["drop-billing"])["system"] == system[1:]
    two = {"messages": [{"role": "system", "content": "Current time: 11:39"}, *chat("You help.")["messages"]]}
    found = repair(two, ["move-time"])["messages"]
    assert found == [{"role": "system", "content": "You help."}, {"role": "user", "content": "hello\n\nCurrent time: 11:39"}]


def test_times_are_rounded_in_their_place() -> None:
    system = "Current time: 2026-11-30T11:39:01Z\nNow: 11:39 AM, November 30, 2026\nTimestamp: 1796038743\nCall at 11:39."
    hour = repair(chat(system), ["round-time-hour"])["messages"][0]["content"]
    assert hour == "Current time: 2026-11-30T11:00:00Z\nNow: 11:00 AM, November 30, 2026\nTimestamp: 1796036400\nCall at 11:39."
    day = repair(chat("Today is 2026-11-30 11:39:01 UTC. Go.\nCurrent time: 2026-11-30T11:39:01.25Z"), ["round-time-day"])
    assert day["messages"][0]["content"] == "Today is 2026-11-30. Go.\nCurrent time: 2026-11-30"


def test_an_id_gets_a_name_unless_the_conversation_has_it_as_well() -> None:
    system = "Request ID: 8f3e91aa77\nSession ID: 77aa11ff00. Go."
    assert repair(chat(system), ["stable-id"])["messages"][0]["content"] == "Request ID: id-1\nSession ID: id-2. Go."
    assert repair(chat(system, "look at 8f3e91aa77"), ["stable-id"])["messages"][0]["content"] == (
        "Request ID: 8f3e91aa77\nSession ID: id-1. Go."
    )


def function(name: str, **more: Any) -> Body:
    return {"type": "function", "function": {"name": name, **more}}


def test_tools_are_sorted_by_name_unless_two_have_one_name() -> None:
    tools = [function("b"), {"type": "web_search"}, {"name": "a", "input_schema": {}}]
    assert repair(chat("s", tools=tools), ["tool-order"])["tools"] == [tools[2], tools[0], tools[1]]
    for same in ([function("b"), function("a"), function("b")], [function("b"), 5], [function("b"), {"function": {}}]):
        body = chat("s", tools=same)
        assert repaired(body, rules_of(["tool-order"])).fields is body


def test_keys_of_a_function_are_ordered_where_the_engine_reads_them() -> None:
    body = chat("s", tools=[{"type": "function", "function": {"parameters": {}, "x": 1, "description": "d", "name": "a"}}])
    found = repair(body, ["function-keys"], "sglang")["tools"][0]
    assert list(found["function"]) == ["name", "description", "parameters", "x"]
    assert list(found) == ["type", "function"]
    assert repair(body, ["function-keys"], "vllm") is not body
    assert repaired(body, rules_of(["function-keys"]), "vllm").fields is body
    deepseek = {**body, "model": "deepseek-ai/DeepSeek-V3.2"}
    assert repaired(deepseek, rules_of(["function-keys"]), "sglang").fields is deepseek


def test_keys_of_schemas_are_sorted_but_not_their_data() -> None:
    schema = {
        "type": "object",
        "required": ["b", "a"],
        "properties": {
            "b": {
                "type": "object",
                "default": {"z": 1, "a": 2},
                "properties": {"default": {"type": "string", "enum": ["z", "a"]}},
            },
            "a": {"type": "array", "items": {"type": "string", "description": "x"}},
        },
    }
    found = repair(chat("s", tools=[function("f", parameters=schema)]), ["schema-keys"])["tools"][0]["function"]["parameters"]
    assert found == {**schema, "required": ["a", "b"]}
    assert json.dumps(found["properties"]["b"]) == (
        '{"default": {"z": 1, "a": 2}, "properties": {"default": {"enum": ["z", "a"], "type": "string"}}, "type": "object"}'
    )
    assert list(found) == ["properties", "required", "type"] and list(found["properties"]) == ["a", "b"]
    assert list(found["properties"]["a"]["items"]) == ["description", "type"]


def call(arguments: Any, name: str = "c1") -> Body:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": name, "type": "function", "function": {"name": "f", "arguments": arguments}}],
    }


@pytest.mark.parametrize(
    ("arguments", "sorted_"),
    [
        ('{"b": 1.0, "a": {"z": 1, "y": 2}}', '{"a": {"z": 1, "y": 2}, "b": 1.0}'),
        ('{"b":100000000000000000000001,"a":1e2}', '{"a": 1e2, "b": 100000000000000000000001}'),
        ('{"b": -0, "a": 1.50, "c": "\\u00e9\\/"}', '{"a": 1.50, "b": -0, "c": "\\u00e9\\/"}'),
        ('{"b": 1, "b": 2, "a": 3}', None),
        ('{"b": NaN, "a": 3}', None),
        ('{"b": 1, "a"', None),
        ('["b", "a"]', None),
        ('{"a": 1, "b": 2}', None),
        ("", None),
        (None, None),
    ],
)
def test_arguments_are_sorted_by_name_and_numbers_stay_as_they_are_written(arguments: Any, sorted_: str | None) -> None:
    body = chat("s")
    body["messages"] += [call(arguments), {"role": "tool", "tool_call_id": "c1", "content": "r"}]
    found = repair(body, ["argument-keys"])["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert found == (arguments if sorted_ is None else sorted_)


def test_white_space_of_arguments_is_left_out_for_harmony_only() -> None:
    body = chat("s")
    body["messages"] += [call('{"a": "x  y", "b":\n[1,  2.0]}')]
    assert repaired(body, rules_of(["argument-space"])).fields is body
    body["model"] = "openai/gpt-oss-20b"
    assert (
        repair(body, ["argument-space"])["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"a":"x  y","b":[1,2.0]}'
    )
    assert repaired(body, rules_of(["argument-space"]), "sglang").fields is body


def test_white_space_at_ends_is_left_out_but_of_replies() -> None:
    body = chat("s \n", [{"type": "text", "text": "a "}, {"type": "text", "text": "b\t"}])
    body["messages"] += [{"role": "assistant", "content": "reply \n"}, {"role": "user", "content": " \n"}]
    found = repair(body, ["trailing-space"])["messages"]
    assert [message["content"] for message in found] == [
        "s",
        [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}],
        "reply \n",
        " \n",
    ]
    body["model"] = "meta-llama/Llama-3.1-8B-Instruct"
    assert repaired(body, rules_of(["trailing-space"])).fields is body


def test_calls_are_named_by_number_if_every_result_has_its_call() -> None:
    body = chat("s")
    body["messages"] += [call("{}", "x-9"), {"role": "tool", "tool_call_id": "x-9", "content": "x-9"}, call("{}", "q")]
    found = repair(body, ["call-ids"])["messages"]
    assert found[2]["tool_calls"][0]["id"] == found[3]["tool_call_id"] == "call00001"
    assert found[3]["content"] == "x-9" and found[4]["tool_calls"][0]["id"] == "call00002"
    strange = copy.deepcopy(body)
    strange["messages"][3]["tool_call_id"] = "unknown"
    twice = copy.deepcopy(body)
    twice["messages"][4]["tool_calls"][0]["id"] = "x-9"
    kimi = chat("s")
    kimi["messages"] += [call("{}", "functions.f:0"), {"role": "tool", "tool_call_id": "functions.f:0", "content": "r"}]
    for same in (strange, twice, kimi, {**body, "previous_response_id": "r"}, {**body, "model": "Qwen3"}):
        assert repaired(same, rules_of(["call-ids"])).fields is same
    anthropic = {
        "messages": [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_9", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_9", "content": "r"}]},
        ]
    }
    messages = repair(anthropic, ["call-ids"])["messages"]
    assert messages[0]["content"][0]["id"] == messages[1]["content"][0]["tool_use_id"] == "call00001"


def test_all_turns_begin_alike_after_the_repair_and_without_what_was_moved() -> None:
    history: list[Body] = []
    named, heads = [], set()
    for turn in range(4):
        history.append({"role": "user", "content": f"question {turn}"})
        system = f"You help.\nCurrent time: 11:3{turn}\nRequest ID: 8f3e91aa7{turn}"
        found = repaired({"messages": [{"role": "system", "content": system}, *history]}, rules_of(MOVES))
        assert found.fields["messages"][1:-1] == history[:-1]
        heads.add(found.fields["messages"][0]["content"])
        named.append(json.dumps(found.named["messages"])[:-1])
        history.append({"role": "assistant", "content": f"answer {turn}"})
    assert heads == {"You help."}
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(named))


def test_an_unknown_rule_is_refused_and_the_order_of_names_does_not_count() -> None:
    with pytest.raises(UsageError, match="unknown repair rule 'move-tim': use tool-order, "):
        repair({}, ["move-tim"])
    body = chat(MOVED[0][1] + "\nRequest ID: 8f3e91aa77")
    assert repair(body, MOVES) == repair(body, reversed(MOVES))
    assert all(rule.safety in SAFETY and rule.change and rule.pattern for rule in RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)


PAGE = (Path(__file__).parents[3] / "docs/how-to/repair-prompts.md").read_text()


def test_the_page_has_all_rules_with_their_safety_and_its_function_runs() -> None:
    for rule in RULES:
        assert re.search(rf"^\|[^|]*`{rule.name}`[^|]*\| {rule.safety} \|", PAGE, re.MULTILINE), rule.name
    function_, callback = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(function_, "page", "exec"), {})
    program = f"import sys\n{function_}\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert not {"numpy", "grpc", "torch", "pydantic", "httpx2", "litellm"} & set(loaded)
    compile(callback, "page", "exec")
