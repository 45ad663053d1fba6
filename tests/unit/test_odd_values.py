"""Odd JSON in a file that a command reads ends in a counted line or in a message, and never in an internal error."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx2
import numpy as np
import pytest
from safetensors.numpy import save_file

from lpc.errors import LpcError
from lpc.model.artifact import MANIFEST, read_manifest
from lpc.model.versions import PROMOTED, read_promotion
from lpc_apps.logs.formats import FORMATS
from lpc_apps.logs.log import open_log
from lpc_apps.logs.records import Skipped
from lpc_apps.simulator.conversation_log import read_conversations
from lpc_apps.simulator.model_config import read_config
from lpc_apps.training.embedding import DESCRIPTION, encoder_sha256
from lpc_apps.training.head_file import FORMAT, HeadFile
from lpc_cli.cli import app
from lpc_cli.predict import conversation, read
from lpc_cli.report import result_of
from response_cache.gateway.recording import Recording
from response_cache.gateway.warming import Warmed, Warmer, read_requests
from response_cache.semantic.calibration import PairsError, read_pairs
from response_cache.semantic.evidence_file import read_evidence, read_judge_error

DEEP = 100_000
ODD = {
    "nan": "NaN",
    "infinite": "1e999",
    "minus infinite": "-1e999",
    "960 levels": "[" * 960 + "]" * 960,
    "objects in 450 levels": '{"data":[' * 450 + "{}" + "]}" * 450,
    "too deep": "[" * DEEP + "]" * DEEP,
    "5,000 digits": "7" * 5000,
    "a large number": "9" * 400,
    "half of a pair": '"\\ud800"',
    "other line ends": '"a\u2028b\x85c"',
    "null": "null",
    "an object": '{"a": {}}',
    "a list": '[[], {}, 7, "x"]',
}
odd = pytest.mark.parametrize("value", ODD.values(), ids=ODD.keys())

TEXTS: dict[str, str] = {
    "chat": '{"time": %d, "messages": [{"role": "user", "content": "hi"}], "usage": {"prompt_tokens": 9}}',
    "litellm": '{"startTime": %d, "call_type": "acompletion", "messages": [{"role": "user", "content": "hi"}]}',
    "langfuse": '{"start_time": %d, "type": "GENERATION", "input": [{"role": "user", "content": "hi"}]}',
    "otel": '{"startTimeUnixNano": %d, "spanId": "%d", '
    '"attributes": {"gen_ai.input.messages": [{"role": "user", "content": "hi"}]}}',
    "nginx": '{"time": %d, "body": {"messages": [{"role": "user", "content": "hi"}]}}',
    "wildchat": '{"conversation_hash": "%d", "conversation": [{"role": "user", "content": "hi"}, '
    '{"role": "assistant", "content": "yes", "timestamp": %d}]}',
    "mooncake": '{"timestamp": %d, "input_length": 600, "output_length": 9, "hash_ids": [1, 2]}',
    "qwen": '{"chat_id": %d, "parent_chat_id": -1, "timestamp": %d, "input_length": 20, "output_length": 9, "type": "a", '
    '"turn": 1, "hash_ids": [1, 2]}',
    "conversations": '{"messages": [{"role": "user", "content": "hi %d"}, {"role": "assistant", "content": "yes"}]}',
}


def _lines_with(sound: str, value: str) -> list[str]:
    """Return a sound line, and one line for each of its fields with an odd value in its place."""
    fields = json.loads(sound)
    lines = [value]
    for name in (*fields, "id", "usage", "response", "session_id", "block_size", "status", "model", "attributes", "data"):
        others = {other: field for other, field in fields.items() if other != name}
        lines.append(f"{json.dumps(others)[:-1]}, {json.dumps(name)}: {value}}}" if others else value)
    return lines


@odd
@pytest.mark.parametrize("format", TEXTS)
def test_an_odd_value_in_any_field_of_a_log_leaves_the_other_records(tmp_path: Path, format: str, value: str) -> None:  # noqa: A002
    sound = [TEXTS[format].replace("%d", str(at)) for at in range(1, 31)]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join([*sound[:15], *_lines_with(sound[0].replace('"1"', '"99"'), value), *sound[15:]]) + "\n")
    with open_log(path) as log:
        assert log.format == format
        if format == "conversations":
            assert len(read_conversations(path).found) >= len(sound)
            return
        trace = log.trace()
    assert len(trace.requests) >= len(sound)
    assert all(request.input_tokens < 10**9 and request.output_tokens < 10**9 for request in trace.requests)


@odd
def test_an_odd_line_does_not_end_a_warm_up(tmp_path: Path, value: str) -> None:
    import asyncio

    path = tmp_path / "list"
    body = '{"model": "m", "messages": [{"role": "user", "content": %s}], "seed": %s}\n'
    path.write_text(value.replace("\u2028", "") + "\n" + body % ('"hi"', value) + body % ('"ho"', "1"))
    sent: list[bytes] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.content)
        return httpx2.Response(200, headers={"x-lpc-cache": "miss"})

    async def warm() -> Warmed:
        warmed = Warmed()
        async with httpx2.AsyncClient(base_url="http://gateway", transport=httpx2.MockTransport(answer)) as client:
            await Warmer(client, rate=1e9).run(read_requests(path, warmed), warmed)
        return warmed

    warmed = asyncio.run(warm())
    assert sum(warmed.figures().values()) == 3
    assert json.loads(sent[-1])["seed"] == 1
    for content in sent:
        json.loads(content, parse_constant=pytest.fail)


def _pairs(folder: Path, value: str) -> None:
    path = folder / "pairs.jsonl"
    path.write_text(f'{{"a": {value}, "b": {value}, "label": true}}\n')
    read_pairs(path)


def _labels(folder: Path, value: str) -> None:
    path = folder / "pairs.jsonl"
    path.write_text(f'{{"a": "x", "b": "y", "label": {value}}}\n')
    read_pairs(path)


def _evidence(folder: Path, value: str) -> None:
    path = folder / "evidence.json"
    for text in (value, f'{{"version": 1, "encoder": "e", "ranking": "r", "counts": {value}, "judge": {value}}}'):
        path.write_text(text)
        for reading in (lambda: read_evidence(path), lambda: read_judge_error(path, "e")):
            with pytest.raises(LpcError):
                reading()


def _config(folder: Path, value: str) -> None:
    path = folder / "config.json"
    path.write_text(f'{{"model_type": "llama", "num_hidden_layers": {value}}}')
    read_config(str(path))


def _manifest(folder: Path, value: str) -> None:
    (folder / MANIFEST).write_text(value)
    read_manifest(folder)


def _promotion(folder: Path, value: str) -> None:
    (folder / PROMOTED).write_text(value)
    read_promotion(folder)


def _head(folder: Path, value: str) -> None:
    save_file({"a": np.zeros(1)}, folder / "head", {FORMAT: value.replace("\x85", "")})
    HeadFile.load(folder / "head")


def _embeddings(folder: Path, value: str) -> None:
    (folder / DESCRIPTION).write_text(value)
    encoder_sha256(folder)


def _prometheus(folder: Path, value: str) -> None:
    del folder
    result_of(f'{{"status": "success", "data": {{"result": [{{"metric": {{}}, "value": [1, {value}]}}]}}}}'.encode(), "p")


def _predicted(folder: Path, value: str) -> None:
    path = folder / "chats"
    path.write_text(f'{{"messages": [{{"role": "user", "content": {value}}}], "turn_count": {value}}}\n{value}\n')
    for line in read(str(path)):
        line.read()
    conversation(f'{{"messages": {value}, "user": {value}}}')


READERS = (_pairs, _labels, _evidence, _config, _manifest, _promotion, _head, _embeddings, _prometheus, _predicted)


@odd
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__.strip("_"))
def test_an_odd_file_is_refused_in_a_message(tmp_path: Path, reader: Callable[[Path, str], None], value: str) -> None:
    try:
        reader(tmp_path, value)
    except LpcError as error:
        assert str(error)


def test_line_ends_inside_of_a_text_do_not_split_a_line_of_pairs(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"a": "x\u2028y\x85z", "b": "y", "label": true}\r\n', "utf-8", newline="")
    assert [pair.a for pair in read_pairs(path)] == ["x\u2028y\x85z"]
    path.write_text('{"a": "x", "b": "\\ud800", "label": true}\n')
    with pytest.raises(PairsError, match="line 1"):
        read_pairs(path)


@pytest.mark.parametrize("value", ["[" * DEEP + "]" * DEEP, "1e999", "NaN"])
def test_an_answer_of_an_engine_that_is_not_sound_is_not_stored(value: str) -> None:
    recording = Recording(streamed=False, max_bytes=1 << 20)
    choices = '"choices": [{"finish_reason": "stop"}]'
    recording.add(f'{{{choices}, "usage": {{"prompt_tokens": {value}}}}}'.encode())
    recording.end()
    assert recording.response() is None


def test_a_settings_file_that_is_nested_too_deeply_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    path = tmp_path / "lpc.toml"
    path.write_text("port = " + "[" * DEEP + "]" * DEEP)
    monkeypatch.setenv("LPC_CONFIG", str(path))
    done = CliRunner().invoke(app, ["serve"])
    assert (done.exit_code, isinstance(done.exception, SystemExit)) == (2, True), done.output
    assert "nested too deeply" in done.output


def test_skipped_records_are_named_by_reason_and_place(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join([*[TEXTS["chat"] % 1, TEXTS["chat"] % 2], *ODD.values()]))
    skipped = Skipped()
    with open_log(path) as log:
        assert len(list(log.requests(skipped))) == 2
    assert sum(skipped.counts.values()) >= len(ODD)
    assert set(TEXTS) <= set(FORMATS)
