"""`lpc why --repair`: planted causes of twelve kinds and more, what their repair hits, and logs that no rule concerns."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lpc.requests.repair import RULES
from lpc_apps.logs.chats import chat
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.why.prompts import Prompts
from lpc_apps.why.repairs import IN_PLACE_OF, Repairs, repaired_request, repairs_of
from tests.unit.why.test_command import figures, lpc
from tests.unit.why.traffic import PLANTS, Record, clean, each, tool, words, write

Change = Callable[[random.Random, int, Record], Record]


def long(seed: int = 0, *, sessions: int = 8, turns: int = 6) -> list[Record]:
    """Return chats with a system prompt as long as an agent's, whose tools are sorted."""
    rng = random.Random(seed)
    system = words(rng, 7000)
    tools = [tool(rng, name) for name in ("calendar", "mail", "search", "weather")]
    for one in tools:
        one["function"]["parameters"] = {
            "properties": {name: {"description": words(rng, 5), "type": "string"} for name in ("body", "query", "to")},
            "required": ["body", "query"],
            "type": "object",
        }
    found: list[Record] = []
    for session in range(sessions):
        messages: list[Record] = [{"role": "system", "content": system}]
        for turn in range(turns):
            messages.append({"role": "user", "content": words(rng, 30)})
            answer: Record = {"role": "assistant", "content": words(rng, 30)}
            record = {
                "time": 1.7e9 + 600 * turn + session,
                "messages": list(messages),
                "tools": tools,
                "session_id": f"s{session}",
            }
            found.append({**record, "response": answer})
            call = {"name": "mail", "arguments": json.dumps({"body": words(rng, 10), "to": "a"})}
            calls = [{"id": "c", "type": "function", "function": call}]
            messages += [answer, {"role": "assistant", "content": None, "tool_calls": calls}]
            messages.append({"role": "tool", "tool_call_id": "c", "content": words(rng, 20)})
    return sorted(found, key=lambda record: record["time"])


def head(line: Callable[[random.Random, int], str]) -> Change:
    def change(rng: random.Random, number: int, record: Record) -> Record:
        first, *rest = record["messages"]
        return {**record, "messages": [{**first, "content": f"{line(rng, number)}\n{first['content']}"}, *rest]}

    return change


def shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(value[key], rng) for key in rng.sample(list(value), len(value))}
    return rng.sample(value, len(value)) if isinstance(value, list) else value


def tools(change: Callable[[random.Random, list[Any]], list[Any]]) -> Change:
    return lambda rng, _, record: {**record, "tools": change(rng, record["tools"])}


def schemas(rng: random.Random, given: list[Any]) -> list[Any]:
    return [
        {**one, "function": {**one["function"], "parameters": shuffled(one["function"]["parameters"], rng)}} for one in given
    ]


def keys(rng: random.Random, given: list[Any]) -> list[Any]:
    return [{**one, "function": {key: one["function"][key] for key in rng.sample(list(one["function"]), 3)}} for one in given]


def ends(rng: random.Random, number: int, record: Record) -> Record:
    del number
    first, *rest = record["messages"]
    return {**record, "messages": [{**first, "content": first["content"] + " " * rng.randrange(4)}, *rest]}


def arguments(rng: random.Random, number: int, record: Record) -> Record:
    del number

    def turned(message: Any) -> Any:
        if not message.get("tool_calls"):
            return message
        (call,) = message["tool_calls"]
        found = json.dumps(shuffled(json.loads(call["function"]["arguments"]), rng))
        return {**message, "tool_calls": [{**call, "function": {**call["function"], "arguments": found}}]}

    return {**record, "messages": [turned(message) for message in record["messages"]]}


def digits(rng: random.Random) -> str:
    return f"{rng.getrandbits(64):016x}"


def todo(rng: random.Random, number: int) -> str:
    del number
    return "# Tasks\n" + "\n".join(f"- [{rng.choice(' x')}] {word}" for word in words(rng, 5).split())


def stamp(number: int) -> str:
    return f"2026-11-30T{10 + number // 60 % 12}:{number % 60:02}:01Z"


PLANTED: dict[str, tuple[str, Change]] = {
    "a time stamp": ("move-time", head(lambda _, n: f"Current time: {stamp(n)}")),
    "a date in a sentence": (
        "move-time",
        head(lambda rng, _: f"You help. Today is May {rng.randrange(1, 29)}, 2026. Go."),
    ),
    "seconds of an epoch": ("move-time", head(lambda _, n: f"<timestamp>{1796038743 + n}</timestamp>")),
    "a request's id": ("move-id", head(lambda rng, _: f"x-request-id: {digits(rng)}")),
    "a UUID": ("move-id", head(lambda rng, _: f"Session ID: {digits(rng)[:8]}-12ab-4cde-9f00-{digits(rng)[:12]}")),
    "a user's address": ("move-user", head(lambda rng, _: f"user: customer{rng.randrange(900)}@example.com")),
    "a counter": ("move-counter", head(lambda _, n: f"Request #{n}")),
    "tokens that are left": ("move-counter", head(lambda _, n: f"Tokens left: {200_000 - 731 * n:,}")),
    "a billing line": (
        "move-digest",
        head(lambda rng, _: f"x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch={digits(rng)[:5]};"),
    ),
    "a digest": ("move-digest", head(lambda rng, _: f"Prompt hash: {digits(rng)}")),
    "a list of tasks": ("move-tasks", head(todo)),
    "the order of tools": ("tool-order", tools(lambda rng, given: rng.sample(given, len(given)))),
    "keys of schemas": ("schema-keys", tools(schemas)),
    "keys of functions": ("function-keys", tools(keys)),
    "keys of arguments": ("argument-keys", arguments),
    "white space at an end": ("trailing-space", ends),
}


def log_of(path: Path, records: list[Record]) -> Path:
    write(path, records)
    return path


def requests_of(records: list[Record]) -> list[LoggedRequest]:
    return [request for record in records for request in chat.read(record)]


def repaired_log(records: list[Record]) -> Repairs:
    return repairs_of(requests_of(records), Prompts("sglang"))


@pytest.fixture(scope="module")
def without_cause() -> float:
    return repaired_log(long()).before.rate


@pytest.mark.parametrize("planted", PLANTED)
def test_a_repaired_log_hits_as_much_as_one_without_the_cause(planted: str, without_cause: float) -> None:
    rule, change = PLANTED[planted]
    found = repaired_log(each(change)(long()))
    assert found.proposed == [rule]
    assert found.before.rate < without_cause - 0.01
    assert found.after.rate > without_cause - 0.01, (found.before.rate, found.after.rate, without_cause)
    (row,) = [row for row in found.matched if row.proposed]
    assert row.alone == row.with_others == found.after


def called(model: str, form: str) -> list[Record]:
    """Return the log with new ids of all calls in each request, in the messages of a form of API."""
    rng = random.Random(4)

    def change(record: Record) -> Record:
        found: list[Any] = []
        for message in record["messages"]:
            if message.get("tool_calls"):
                name = f"call_{digits(rng)}"
                (call,) = message["tool_calls"]
                block = {"type": "tool_use", "id": name, "name": "mail", "input": json.loads(call["function"]["arguments"])}
                own = {"tool_calls": [{**call, "id": name}]} if form == "chat" else {"content": [block]}
                found.append({**message, **own} if form == "chat" else {"role": "assistant", **own})
            elif message["role"] == "tool":
                result = {"type": "tool_result", "tool_use_id": name, "content": message["content"]}
                found.append({**message, "tool_call_id": name} if form == "chat" else {"role": "user", "content": [result]})
            else:
                found.append(message)
        return {**record, "model": model, "messages": found}

    return [change(record) for record in long(sessions=4)]


@pytest.mark.parametrize("form", ["chat", "messages"])
def test_ids_of_calls_are_repaired_where_a_template_prints_them(form: str) -> None:
    found = repaired_log(called("mistralai/Mistral-Small-3.2", form))
    assert found.proposed == ["call-ids"]
    clean_rate = repaired_log([{**record, "model": "mistralai/Mistral-Small-3.2"} for record in long(sessions=4)])
    assert found.before.rate < clean_rate.before.rate - 0.01 < found.after.rate
    unread = repaired_log(called("Qwen/Qwen3-8B", form))
    assert unread.matched == [] and unread.before.rate > clean_rate.before.rate - 0.01


def test_several_causes_are_repaired_together_and_rounding_is_compared(without_cause: float) -> None:
    records = long()
    for planted in ("a time stamp", "a request's id", "the order of tools", "a billing line"):
        records = each(PLANTED[planted][1])(records)
    found = repaired_log(records)
    assert found.proposed == ["tool-order", "move-time", "move-id", "move-digest"]
    assert found.after.rate > without_cause - 0.01
    rows = {row.rule.name: row for row in found.matched}
    assert all(row.alone.rate < found.after.rate - 0.2 for row in rows.values())
    for name in ("round-time-day", "stable-id", "drop-billing"):
        assert not rows[name].proposed and rows[name].with_others.rate >= found.after.rate, name


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_clean_log_is_changed_by_no_rule(engine: str, tmp_path: Path) -> None:
    found = figures(log_of(tmp_path / "log.jsonl", long(sessions=2)), "--repair", "--engine", engine)
    assert found["repair"]["rules"] == [] and found["repair"]["settings"] is None
    assert found["repair"]["hit_rate"] == found["repair"]["hit_rate_repaired"]
    assert lpc("why", tmp_path / "log.jsonl", "--repair", "--fail-on", "0", "--engine", engine).exit_code == 0


def test_a_rule_that_an_engine_does_not_need_is_left_out(tmp_path: Path) -> None:
    path = log_of(tmp_path / "log.jsonl", each(PLANTED["keys of functions"][1])(long(sessions=3)))
    assert figures(path, "--repair", "--engine", "vllm")["repair"]["rules"] == []
    assert figures(path, "--repair")["repair"]["settings"] == "LPC_GATEWAY_REPAIR=function-keys"


def test_exit_codes_and_text_only_if_asked_for(tmp_path: Path) -> None:
    path = log_of(tmp_path / "log.jsonl", each(head(lambda rng, n: f"Request ID: zebra{digits(rng)}"))(long(sessions=3)))
    assert lpc("why", path, "--repair", "--fail-on", "20").exit_code == 3
    assert lpc("why", path, "--repair", "--fail-on", "99").exit_code == 0
    silent = lpc("why", path, "--repair", "--output", tmp_path / "figures.json")
    written = (tmp_path / "figures.json").read_text()
    assert "zebra" not in silent.output + written and "LPC_GATEWAY_REPAIR=move-id" in silent.output
    assert json.loads(written)["repair"]["rules"][0]["places"][0]["place"] == "system prompt"
    assert "zebra" in lpc("why", path, "--repair", "--show-text").output
    assert lpc("export", path, "--anonymous", "--to", tmp_path / "trace.jsonl").exit_code == 0
    refused = lpc("why", tmp_path / "trace.jsonl", "--repair")
    assert refused.exit_code == 2 and "--repair needs the text of prompts" in " ".join(refused.output.split())


def test_each_prompt_has_a_verdict(tmp_path: Path) -> None:
    found = figures(log_of(tmp_path / "log.jsonl", PLANTS["time"](clean(0, sessions=6))))
    verdicts = found["verdicts"]
    assert len(verdicts) == found["requests"]
    assert sum(one["hit_tokens"] for one in verdicts) / found["prompt_tokens"] == pytest.approx(found["hit_rate"], abs=1e-3)
    expected = sum(one["expected_tokens"] for one in verdicts) / found["prompt_tokens"]
    assert expected == pytest.approx(found["hit_rate_without_causes"], abs=1e-3)
    lost = [one for one in verdicts if one["expected_tokens"] > one["hit_tokens"]]
    assert lost and all((one["cause"], one["place"]) == ("time", "system prompt") for one in lost)
    assert all(one["cause"] is None for one in verdicts if one not in lost)


def test_requests_without_a_match_are_the_same_objects_and_thoughts_and_media_stay() -> None:
    for request in requests_of(long(sessions=2)):
        assert repaired_request(request, RULES, "sglang") is request
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    record = clean(0, sessions=1, turns=2)[1]
    record["messages"][0]["content"] += "\nCurrent time: 11:39"
    record["messages"][1]["content"] = [{"type": "text", "text": "look"}, picture]
    record["messages"][2]["reasoning_content"] = "I think"
    (request,) = requests_of([record])
    found = repaired_request(request, [rule for rule in RULES if rule.name == "move-time"], "any")
    assert found.messages[1:-1] == request.messages[1:-1]
    assert found.messages[-1].text == f"{request.messages[-1].text}\n\nCurrent time: 11:39"
    assert repairs_of([request], Prompts("any")).matched
    names = {rule.name for rule in RULES}
    assert names >= set(IN_PLACE_OF) | set(IN_PLACE_OF.values())
