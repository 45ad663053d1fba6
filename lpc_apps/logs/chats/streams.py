"""Streamed responses as whole ones: gateways log the events of a stream as they came, as text or as a list of objects.

Sources: OpenAI's chunks of chat completions and completions and events of responses, Anthropic's events of messages, Gemini's
chunks, Ollama's lines.
"""

from typing import Any, Final

from lpc_apps.logs.records import Record, loads

_ENDS: Final = ("response.completed", "response.incomplete", "response.done")
"""Events of the responses API that have the whole response."""
_BLOCK: Final = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def whole(value: Any) -> Any:
    """Return a streamed response as the body that it would have as a whole; any other value as it is."""
    events = _events(value) if isinstance(value, str) else value
    if not isinstance(events, list) or not events or not all(isinstance(event, dict) for event in events):
        return value
    if any(_is_delta(event) for event in events):
        return _of_chunks(events)
    if any(event.get("type") in ("message_start", "content_block_delta") for event in events):
        return _of_blocks(events)
    ended = next((event["response"] for event in reversed(events) if event.get("type") in _ENDS and "response" in event), None)
    if isinstance(ended, dict):
        return ended
    if all(isinstance(event.get("candidates"), list) for event in events):
        return _of_candidates(events)
    return value


def _events(text: str) -> list[Record] | None:
    """Return the data of server-sent events; None: it is another text."""
    if not text.lstrip().startswith(("data:", "event:", ": ")):
        return None
    found = []
    for line in text.splitlines():
        if line.startswith("data:"):
            try:
                event = loads(line.removeprefix("data:"))
            except (ValueError, RecursionError):  # the end's mark, or a line that was cut
                continue
            found += [event] if isinstance(event, dict) else []
    return found


def _is_delta(event: Record) -> bool:
    choice = _choice(event)
    return "delta" in choice or (str(event.get("object")).endswith(("text_completion", ".chunk")) and "text" in choice)


def _choice(event: Record) -> Record:
    """Return the first choice of a chunk; empty: it has none, or only others."""
    choices = event.get("choices")
    found = choices if isinstance(choices, list) else []
    return next((choice for choice in found if isinstance(choice, dict) and not choice.get("index")), {})


def _of_chunks(events: list[Record]) -> Record:
    message: Record = {"role": "assistant"}
    texts: dict[str, list[str]] = {}
    calls: dict[int, Record] = {}
    body: Record = {}
    finish = None
    for event in events:
        body |= {name: event[name] for name in ("id", "model", "created", "usage") if event.get(name)}
        choice = _choice(event)
        finish = choice.get("finish_reason") or finish
        delta = choice.get("delta") if isinstance(choice.get("delta"), dict) else {"content": choice.get("text")}
        assert isinstance(delta, dict)
        for name in ("content", "reasoning_content", "reasoning", "refusal"):
            if isinstance(delta.get(name), str):
                texts.setdefault(name, []).append(delta[name])
        listed = delta.get("tool_calls")
        for call in listed if isinstance(listed, list) else []:
            if isinstance(call, dict):
                _add_call(calls, call)
    message |= {name: "".join(pieces) for name, pieces in texts.items()}
    if calls:
        message["tool_calls"] = [calls[at] for at in sorted(calls)]
    return body | {"choices": [{"message": message, "finish_reason": finish}]}


def _add_call(calls: dict[int, Record], call: Record) -> None:
    index = call.get("index")
    known = calls.setdefault(index if isinstance(index, int) else len(calls), {"function": {"name": "", "arguments": ""}})
    function = call.get("function")
    for name in ("name", "arguments"):
        if isinstance(function, dict) and isinstance(function.get(name), str):
            known["function"][name] += function[name]


def _of_blocks(events: list[Record]) -> Record:
    body: Record = {}
    usage: Record = {}
    blocks: dict[Any, Record] = {}
    for event in events:
        started, block, delta = (
            found if isinstance(found := event.get(name), dict) else {} for name in ("message", "content_block", "delta")
        )
        if event.get("type") == "message_start":
            body |= {name: started[name] for name in ("id", "model") if name in started}
        for found in (started.get("usage"), event.get("usage")):
            usage |= {name: value for name, value in found.items() if value is not None} if isinstance(found, dict) else {}
        at = str(event.get("index"))
        if event.get("type") == "content_block_start":
            blocks[at] = {**block}
        field = _BLOCK.get(str(delta.get("type")), "")
        piece = delta.get(field)
        if field and isinstance(piece, str):
            known = blocks.setdefault(at, {"type": "text"})
            known[field] = known.get(field, "") + piece
    for found in blocks.values():
        if "partial_json" in found:
            found["input"] = found.pop("partial_json")
    return body | {"role": "assistant", "content": list(blocks.values())} | ({"usage": usage} if usage else {})


def _of_candidates(events: list[Record]) -> Record:
    parts: list[Any] = []
    for event in events:
        first = event["candidates"][0] if event["candidates"] and isinstance(event["candidates"][0], dict) else {}
        content = first.get("content")
        found = content.get("parts") if isinstance(content, dict) else None
        for part in found if isinstance(found, list) else []:
            before = parts[-1] if parts else None
            texts = [one.get("text") if isinstance(one, dict) and one.keys() == {"text"} else None for one in (before, part)]
            if isinstance(texts[0], str) and isinstance(texts[1], str):
                parts[-1] = {"text": texts[0] + texts[1]}
            else:
                parts.append(part)
    return events[-1] | {"candidates": [{"content": {"role": "model", "parts": parts}}]}
