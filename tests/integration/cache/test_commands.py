"""`lpc cache feedback | invalidate | purge | report | warm` against a real sidecar."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lpc.cache.bodies import question
from lpc.cache.client import ResponseCacheClient
from lpc.cache.v1 import response_cache_pb2 as pb
from lpc_apps.commands.cli import app
from tests.caching_sidecar import ResponseCaches, response_caches
from tests.engine_double import EngineDouble


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory, tiny_models: Path) -> Iterator[ResponseCaches]:
    with response_caches(tmp_path_factory.mktemp("caches"), tiny_models, {"default": {}, "faq": {"kind": "faq"}}) as made:
        yield made


@pytest.fixture
def client(caches: ResponseCaches) -> Iterator[ResponseCacheClient]:
    """A client of the sidecar. Its caches are empty at the start of each test."""
    made = ResponseCacheClient(caches.sidecar.address, timeout_s=10)
    made.stats(pb.StatsRequest())  # flush pending counters
    caches.redis.ask("FLUSHALL")
    yield made
    made.close()


def run(caches: ResponseCaches, *words: str) -> Result:
    return CliRunner().invoke(app, ["cache", *words, "--address", caches.sidecar.address], env={"COLUMNS": "200"})


def asked(text: str, scope: str = "faq", **others: Any) -> pb.Request:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 0}
    return question(body, scope=scope, **others)


def store(client: ResponseCacheClient, request: pb.Request, engine_s: float = 0.5) -> str:
    body = json.dumps(
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": "It is."}, "finish_reason": "stop"}]}
    )
    response = pb.Response(body=body.encode(), finish_reason="stop", prompt_tokens=7, completion_tokens=5, engine_s=engine_s)
    stored = client.store(pb.StoreRequest(request=request, response=response))
    assert stored.stored, stored.refusal
    return stored.entry_id.hex()


def there(client: ResponseCacheClient, request: pb.Request) -> bool:
    return client.lookup(request).HasField("hit")


def test_feedback_counts_and_drops(caches: ResponseCaches, client: ResponseCacheClient) -> None:
    request = asked("feedback")
    entry = store(client, request)
    assert run(caches, "feedback", entry, "--right").output == "counted\n"
    done = run(caches, "feedback", entry, "--wrong", "--reason", "outdated", "--drop")
    assert (done.exit_code, done.output) == (0, "counted, and dropped\n")
    assert not there(client, request)
    for wrong, message in (("zz", "hexadecimal"), ("00" * 40, "no such entry")):
        refused = run(caches, "feedback", wrong)
        assert refused.exit_code != 0 and message in refused.output and "Traceback" not in refused.output
    gone = run(caches, "feedback", entry, "--drop")
    assert gone.exit_code != 0 and "nothing was dropped" in gone.output
    assert run(caches, "feedback", entry, "--reason", "dull").exit_code == 2
    figures = json.loads(run(caches, "report", "--scope", "faq", "--json").output)["scopes"][0]["feedback"]
    assert figures["right"] >= 1 and figures["wrong:outdated"] >= 1


def test_invalidate_removes_the_named_answers_and_no_others(caches: ResponseCaches, client: ResponseCacheClient) -> None:
    one, tagged, other = asked("one"), asked("tagged", tags=["news"]), asked("other", scope="default")
    entry = store(client, one)
    store(client, tagged)
    store(client, other)
    for words, gone in (
        (("--entry", entry), one),
        (("--tag", "news"), tagged),
        (("--scope", "default"), other),
    ):
        assert there(client, gone), words
        assert run(caches, "invalidate", *words).output.startswith("done"), words
        assert not there(client, gone), words
    kept = asked("kept")
    store(client, kept, engine_s=0.0)  # without a flight, only engine_s shows that the answer began after the invalidation
    run(caches, "invalidate", "--served-model", "another")
    assert there(client, kept)
    run(caches, "invalidate", "--served-model", "m")
    assert not there(client, kept)
    store(client, kept, engine_s=0.0)
    assert run(caches, "invalidate", "--scope", "faq", "--erase").output.startswith("done; ")
    assert not there(client, kept)
    for words in ((), ("--scope", "faq", "--tag", "x")):
        refused = run(caches, "invalidate", *words)
        assert refused.exit_code != 0 and "name one of" in refused.output
    for words in (("--tag", ""), ("--entry", ""), ("--scope", ""), ("--tag", "x", "--served-version", "2")):
        assert run(caches, "invalidate", *words).exit_code == 2, words


def test_purge_deletes_everything_after_a_confirmation(caches: ResponseCaches, client: ResponseCacheClient) -> None:
    for scope in ("faq", "default"):
        store(client, asked("purge", scope))
    refused = CliRunner().invoke(app, ["cache", "purge", "--address", caches.sidecar.address], input="n\n")
    assert refused.exit_code != 0 and there(client, asked("purge"))
    assert run(caches, "purge", "--yes").output == "done; 2 deleted\n"
    assert not list(caches.redis.client().scan_iter("lpc:rc:*:e:*"))


def test_report_shows_hits_and_tokens_spared(caches: ResponseCaches, client: ResponseCacheClient) -> None:
    before = _day(caches)
    request = asked("report")
    assert not there(client, request)
    store(client, request)
    assert there(client, request) and there(client, request)
    after = _day(caches)
    spared = {name: after[name] - before.get(name, 0) for name in ("asked", "stored", "completion_tokens_spared")}
    assert spared == {"asked": 3, "stored": 1, "completion_tokens_spared": 10}
    assert after["hits"]["exact"] - before.get("hits", {}).get("exact", 0) == 2
    assert after["entries"] == 1 and after["threshold"] is None
    shown = run(caches, "report")
    assert shown.exit_code == 0 and "faq" in shown.output and "tokens spared" in shown.output
    for words, message in (
        (("--day", "yesterday"), "invalid date"),
        (("--day", "2999-01-01"), "in the future"),
        (("--day", "2020-01-01"), "for 31 days"),
    ):
        refused = run(caches, "report", *words)
        assert refused.exit_code != 0 and message in refused.output


def _day(caches: ResponseCaches) -> dict[str, Any]:
    scopes = json.loads(run(caches, "report", "--json").output)["scopes"]
    return next((scope for scope in scopes if scope["scope"] == "faq"), {})


def test_a_repeated_warm_after_a_kill_requests_no_stored_answer_again(
    caches: ResponseCaches, client: ResponseCacheClient, engine: EngineDouble, tmp_path: Path
) -> None:
    path, count, stored = tmp_path / "faq.jsonl", 12, 4
    path.write_text("".join(json.dumps({"question": f"question {i}"}) + "\n" for i in range(count)))
    words = ["warm", "--file", str(path), "--served-model", "m", "--scope", "faq", "--engine", engine.url, "--rate", "1000"]
    command = [sys.executable, "-m", "lpc_apps", "cache", *words, "--address", caches.sidecar.address]
    original = engine._complete

    async def stalls(body: dict[str, Any], chat: bool, send: Any) -> None:
        if len(engine.completions) > stored:
            await asyncio.Event().wait()
        await original(body, chat, send)

    engine._complete = stalls  # type: ignore[method-assign]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    try:
        deadline = time.monotonic() + 120
        while len(engine.completions) <= stored and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(engine.completions) == stored + 1
    engine._complete = original  # type: ignore[method-assign]
    # The leader of the open flight is dead; the next run need not wait for it.
    done = run(caches, *words)
    assert done.exit_code == 0, done.output
    assert f"{count - stored} stored, {stored} already cached" in done.output
    assert len(engine.completions) == count + 1
    assert all(there(client, asked(f"question {i}")) for i in range(count))


def test_warm_fails_with_a_reason_if_nothing_was_stored(
    caches: ResponseCaches, client: ResponseCacheClient, engine: EngineDouble, tmp_path: Path
) -> None:
    path = tmp_path / "faq.jsonl"
    path.write_text('{"question": "new"}\n')
    words = ["warm", "--file", str(path), "--served-model", "m", "--scope", "faq"]
    for more, message in (
        (["--engine", "http://127.0.0.1:1"], "1 failed: http://127.0.0.1:1 does not answer"),
        (["--engine", "127.0.0.1:1"], "is not an address"),
        ([], "name an engine with --engine"),
        (["--gateway", "http://127.0.0.1:1", "--tag", "x", "--ttl", "5"], "leave out --tag, --ttl"),
        (["--token", "x"], "is for --gateway"),
    ):
        refused = run(caches, *words, *more)
        assert refused.exit_code == (2 if {"--gateway", "--token"} & {*more} else 1), refused.output
        assert message in refused.output, refused.output
    path.write_bytes(b"\xff\xfe")
    refused = run(caches, *words)
    assert refused.exit_code == 1 and "it is not UTF-8" in refused.output
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "hot"}], "temperature": 1}) + "\n")
    refused = run(caches, *words, "--engine", engine.url)
    assert refused.exit_code == 1 and "nothing was stored" in refused.output and not engine.completions
