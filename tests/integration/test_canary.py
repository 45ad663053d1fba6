"""Text of a conversation leaves no trace: a word that is in every request is nowhere afterwards.

The sidecar is the real process at the DEBUG level. What is searched: its output (with gRPC's own log at its most talkative),
every file below its working and temporary folders, the label log, what was learnt of returns, the metrics, every status and
message that callers get, what Redis was told and holds, the memory of gaps, and the engine side's log.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import grpc
import grpc.aio
import numpy as np
import pytest

from eviction_client.settings import ClientSettings
from eviction_client.stores import BlockHash, MemoryStore, open_store
from eviction_client.stores.namespace import Namespace
from eviction_client.transport.client import PredictorClient
from lpc.cache.v1 import response_cache_pb2 as cache_pb
from lpc.cache.v1 import response_cache_pb2_grpc as cache_rpc
from lpc.model.conversation import UserTurns
from lpc.model.label_rows import FILES, metadata_of
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from predictor_service.requests.parser import RequestParser
from predictor_service.server import Parts
from testing.processes import RedisServer, free_port
from tests import tuned
from tests.chat_templates import STYLES, tokenizer_of
from tests.eventually import eventually, patiently, until
from tests.integration.test_server import one, sidecar
from tests.label_log import rows_of
from tests.redis_stores import A, ends, record
from tests.response_cache import KEY_LINES

CANARY = "canaryzebra"
NAMESPACE = Namespace("sha256_cbor", "0", 16, "a-model")


def message(role: str, content: str) -> pb.ChatMessage:
    return pb.ChatMessage(role=role, content=content)


def chat(*messages: pb.ChatMessage, **fields: object) -> pb.Conversation:
    return pb.Conversation(chat=pb.ChatMessages(messages=messages), **fields)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def served_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("served")
    tokenizer_of(STYLES["chatml"]).save_pretrained(folder)
    return {"m": str(folder)}


def ids() -> list[int]:
    tokenizer = tokenizer_of(STYLES["chatml"])
    text = tokenizer.apply_chat_template([{"role": "user", "content": CANARY}], tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def answered() -> dict[str, pb.Conversation]:
    """The three forms of input, each also with ids and classes that carry the word."""
    return {
        "chat": chat(message("user", CANARY), message("assistant", CANARY), message("user", CANARY)),
        "prompt": pb.Conversation(prompt=CANARY),
        "tokens": pb.Conversation(tokens=pb.TokenIds(ids=ids(), served_model="m")),
        "named": chat(message("user", CANARY), conversation_id=CANARY, category=CANARY),
    }


def refused() -> dict[str, pb.Conversation]:
    """Each form of input, wrong in every way that the sidecar tells apart."""
    user = message("user", CANARY)
    return {
        "no user message": chat(message("assistant", CANARY)),
        "unknown role": chat(message(CANARY, CANARY)),
        "turn count zero": chat(user, turn_count=0),
        "turn count too low": chat(user, user, turn_count=1),
        "too many messages": chat(*[user] * 5000),
        "too large": pb.Conversation(prompt=CANARY * 2**17),
        "prompt, turn count": pb.Conversation(prompt=CANARY, turn_count=-1),
        "unknown model": pb.Conversation(tokens=pb.TokenIds(ids=ids(), served_model="unknown")),
        "outside the vocabulary": pb.Conversation(tokens=pb.TokenIds(ids=[*ids(), 2**32 - 1], served_model="m")),
        "tokens without a user turn": pb.Conversation(tokens=pb.TokenIds(ids=ids()[-3:], served_model="m"), turn_count=-1),
    }


class Process:
    """A sidecar as an operator runs it, and all that it says."""

    def __init__(self, models: Path, served_models: dict[str, str], folder: Path, **settings: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.metrics = free_port()
        self.folder = folder
        self.said = ""
        environment = {
            "LPC_LOG_LEVEL": "DEBUG",
            "LPC_MODELS": str(models),
            "LPC_MODEL": "tiny",
            "LPC_PORT": self.address.rpartition(":")[2],
            "LPC_METRICS_PORT": str(self.metrics),
            "LPC_UNIX_SOCKET": "",
            "LPC_SERVED_MODELS": json.dumps(served_models),
            "LPC_MAX_REQUEST_BYTES": str(2**20),
            "LPC_LABEL_LOG": str(folder / "labels"),
            "LPC_LABEL_HORIZON_S": "0.5",
            "LPC_STATE": str(folder),
            "GRPC_VERBOSITY": "DEBUG",
            "TMPDIR": str(folder),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            **settings,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-X", "dev", "-m", *tuned.command(label_log_rows=2, refit_s=0.2)],
            cwd=folder,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._listening.wait(patiently()), self.said

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said += line
            if "listening on" in line:
                self._listening.set()

    def scrape(self) -> str:
        with urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=patiently()) as response:
            return str(response.read(), "utf-8")

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(patiently())
        self._reader.join(patiently())
        assert self._process.stdout is not None
        self._process.stdout.close()


def _code(call: Callable[[], object]) -> tuple[str, str]:
    try:
        return "OK", str(call())
    except grpc.RpcError as error:
        return error.code().name, f"{error.details()} {error.trailing_metadata()} {error.debug_error_string()}"


def test_a_word_of_every_request_is_nowhere(tiny_models: Path, served_models: dict[str, str], tmp_path: Path) -> None:
    heard: list[tuple[str, str]] = []
    process = Process(tiny_models, served_models, tmp_path)
    try:
        with grpc.insecure_channel(process.address, [("grpc.max_send_message_length", -1)]) as channel:
            stub = rpc.ContinuationPredictorStub(channel)

            def ask(conversation: pb.Conversation) -> tuple[str, str]:
                return _code(lambda: stub.Predict(one(conversation), timeout=patiently()))

            heard += [ask(conversation) for conversation in answered().values()]
            assert {code for code, _ in heard} == {"OK"}
            heard += [ask(conversation) for conversation in refused().values()]
            wrong = [c for name, c in refused().items() if name != "too large"]
            batch = pb.PredictBatchRequest(conversations=[*answered().values(), *wrong])
            heard.append(_code(lambda: stub.PredictBatch(batch, timeout=patiently())))
            heard.append(_code(lambda: stub.Predict(one(answered()["chat"]), timeout=0.0001)))
            offer = pb.OfferTokenizerRequest(offer=pb.TokenizerOffer(served_model="unknown", digest=CANARY))
            heard.append(_code(lambda: stub.OfferTokenizer(iter([offer]), timeout=patiently())))
            named = (("x-request-id", CANARY),)
            heard.append(_code(lambda: stub.Predict(one(answered()["named"]), timeout=patiently(), metadata=named)))
            for data in (CANARY.encode(), b"\x0a\x10\x12\x0e\xc3\x28" + CANARY.encode()):
                raw = channel.unary_unary("/lpc.v1.ContinuationPredictor/Predict")
                heard.append(_code(lambda d=data, call=raw: call(d, timeout=patiently())))  # type: ignore[misc]
        until(lambda: "lpc_label_memory_turns 0.0" in process.scrape())
        metrics = process.scrape()
    finally:
        process.stop()
    codes = {code for code, _ in heard}
    assert codes >= {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
    assert "INTERNAL" not in codes and "UNKNOWN" not in codes
    assert "DEBUG" in process.said, "the level under test is not on"
    assert 'lpc_requests_total{method="Predict",status="INVALID_ARGUMENT"}' in metrics
    assert CANARY not in process.said
    assert CANARY not in metrics
    assert CANARY not in str(heard)
    tokens_as_text = ", ".join(map(str, ids()))
    assert tokens_as_text not in process.said and tokens_as_text not in str(heard)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path
    rows = rows_of(tmp_path / "labels")
    assert {row["turn_count"] for row in rows} == {1, 2}
    # Read, since columns are compressed.
    assert CANARY not in f"{rows} {[metadata_of(path) for path in (tmp_path / 'labels').glob(FILES)]}"
    with np.load(tmp_path / "returns.npz") as state:
        returns = dict(state)
    assert len(returns["facts"]) > 2 and len(set(returns["category"].tolist())) == 2
    for name, values in returns.items():
        assert CANARY not in name and CANARY not in str(values.tolist()), name


async def test_an_error_of_ours_that_quotes_its_input_is_not_passed_on(
    tiny_models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A library's message may hold what it choked on: neither the caller nor the log gets it."""
    caplog.set_level(logging.DEBUG)

    class Choking(RequestParser):
        def parse(self, conversation: pb.Conversation, window: int) -> UserTurns:
            raise ValueError(f"cannot make sense of {CANARY!r}")

    async with sidecar(tiny_models, Parts(parser=Choking)) as (stub, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Predict(one(chat(message("user", CANARY))))
        results = (await stub.PredictBatch(pb.PredictBatchRequest(conversations=[chat(message("user", CANARY))]))).results
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "bug in Predict: please report these lines\nbuiltins.ValueError" in caplog.text
    assert CANARY not in caplog.text
    assert CANARY not in f"{caught.value} {results}"


@contextlib.contextmanager
def monitored(server: RedisServer) -> Iterator[list[bytes]]:
    """Everything that any client tells a Redis, scripts' commands included."""
    heard: list[bytes] = []
    command = subprocess.Popen(["redis-cli", "-p", str(server.port), "monitor"], stdout=subprocess.PIPE)
    assert command.stdout is not None
    assert command.stdout.readline().strip() == b"OK"

    def listen() -> None:
        assert command.stdout is not None
        heard.extend(command.stdout)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        time.sleep(0.2)
        command.terminate()
        command.wait(patiently())
        thread.join(patiently())
        command.stdout.close()


@pytest.mark.parametrize("kind", ["redis", "memory"])
def test_stores_get_hashes_only(redis_server: RedisServer, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    caplog.set_level(logging.DEBUG)
    settings = ClientSettings(redis_url=redis_server.url if kind == "redis" else None)  # type: ignore[arg-type]
    blocks = [BlockHash(bytes([n]) * 32) for n in range(8)]
    with monitored(redis_server) as heard, contextlib.closing(redis_server.client()) as client:
        store = open_store(settings, Namespace("sha256_cbor", "0", 16, CANARY))
        record(store, A, blocks, 1.0)
        store.claims(blocks)
        assert store.flush()
        assert ends(store, blocks) == [1.0] * 8
        store.trim(time.time())
        assert store.flush()
        store.close()
        held = b"".join(key + (client.dump(key) or b"") for key in client.scan_iter())
    assert (b"lpc:" in b"".join(heard)) is (kind == "redis")
    assert CANARY.encode() not in b"".join(heard) + held
    assert CANARY not in caplog.text
    assert isinstance(store, MemoryStore) is (kind == "memory")


async def test_the_engines_side_logs_no_prompt(
    tiny_models: Path, served_models: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    prompt = ids()
    async with sidecar(tiny_models, served_models=served_models) as (_, addresses):
        client = PredictorClient(f"127.0.0.1:{addresses.port}", served_model="m", timeout_s=30)
        client.ask("good", token_ids=prompt, conversation_id=CANARY, category=CANARY)
        client.ask("refused", token_ids=[*prompt, 2**32 - 1])
        client.ask("nonsense", token_ids=[CANARY])  # type: ignore[list-item]
        client.ask("nowhere", token_ids=prompt, served_model="unknown")
        await eventually(lambda: client.counters.ended == 4)
        counters = client.counters
        await asyncio.to_thread(client.close)
    assert (counters.answered, counters.failed) == (1, 3)
    assert "connected to the predictor" in caplog.text
    assert CANARY not in caplog.text
    assert ", ".join(map(str, prompt)) not in caplog.text


def test_answers_that_are_kept_are_nowhere_in_clear(tiny_models: Path, served_models: dict[str, str], tmp_path: Path) -> None:
    """Questions, answers, scopes, tenants and tags all carry the word, in all three tiers, with Redis written to disk."""
    (tmp_path / "sidecar").mkdir()
    keys = tmp_path / "keys"
    keys.write_text(KEY_LINES)
    body = json.dumps({"choices": [{"index": 0, "message": {"content": f"{CANARY} it is"}, "finish_reason": "stop"}]}).encode()
    heard: list[str] = []
    with RedisServer(tmp_path / "redis", dbfilename="dump.rdb") as redis_server:
        settings = {
            "LPC_CACHE_REDIS_URL": redis_server.url,
            "LPC_CACHE_KEYS": str(keys),
            "LPC_STATE": str(tmp_path),
            "LPC_CACHE_GATEWAYS": "anonymous",
            "LPC_CACHE_REDIS_TIMEOUT_S": "5",
            "LPC_CACHE_SCOPES": json.dumps({"default": {"mode": "serve"}}),
        }
        with monitored(redis_server) as told:
            process = Process(tiny_models, served_models, tmp_path / "sidecar", **settings)
            try:
                with grpc.insecure_channel(process.address) as channel:
                    stub = cache_rpc.ResponseCacheStub(channel)

                    def request(text: str, **fields: object) -> cache_pb.Request:
                        values = {"model": CANARY, "parameters_json": json.dumps({"temperature": 0, "stop": CANARY}).encode()}
                        names = {"scope": CANARY, "tenant": CANARY}
                        messages = [cache_pb.Message(role="user", content=text)]
                        return cache_pb.Request(**{**values, **names, "messages": messages, **fields})  # type: ignore[arg-type]

                    answer = cache_pb.Response(body=body, finish_reason="stop")
                    stored = stub.Store(
                        cache_pb.StoreRequest(request=request(f"is {CANARY} it"), response=answer), timeout=patiently()
                    )
                    assert stored.stored

                    def look(text: str) -> cache_pb.LookupResponse:
                        return stub.Lookup(cache_pb.LookupRequest(request=request(text)), timeout=patiently())

                    assert [look(f"is {CANARY} it").hit.source for _ in range(2)] == 2 * [cache_pb.SOURCE_EXACT]
                    look(f"is {CANARY} no it")
                    # The semantic tier looks, as soon as it has read the vectors, and serves nothing yet: there is no evidence.
                    reworded = f"is {CANARY} it"
                    while not look(reworded := f"please {reworded}").miss.candidate:
                        time.sleep(0.3)
                    said = cache_pb.FeedbackRequest(entry_id=stored.entry_id, wrong=True, tenant=CANARY)
                    assert stub.Feedback(said, timeout=patiently()).counted
                    wrong = [
                        cache_pb.LookupRequest(request=request(CANARY, parameters_json=f"{{{CANARY}".encode())),
                        cache_pb.LookupRequest(request=request(CANARY, tenant=CANARY * 50)),
                    ]
                    for one in wrong:
                        code, message = _code(lambda one=one: stub.Lookup(one, timeout=patiently()))  # type: ignore[misc]
                        assert code == "INVALID_ARGUMENT"
                        heard.append(message)
                    statistics = stub.Stats(cache_pb.StatsRequest(), timeout=patiently())
                    assert [scope.scope for scope in statistics.scopes] == [CANARY]
                    assert stub.Invalidate(cache_pb.InvalidateRequest(scope=CANARY), timeout=patiently()).done
                    metrics = process.scrape()
            finally:
                process.stop()
        with contextlib.closing(redis_server.client()) as client:
            client.save()
            held = b"".join(key + (client.dump(key) or b"") for key in client.scan_iter())
    assert 'lpc_cache_lookups_total{result="exact",scope="default"} 2.0' in metrics
    assert b"lpc:rc:" in b"".join(told) and b"lpc:rc:" in held
    assert (tmp_path / "redis/dump.rdb").stat().st_size > 1000
    everything = [process.said, metrics, str(heard)]
    assert not [text[:80] for text in everything if CANARY in text]
    assert CANARY.encode() not in b"".join(told) + held
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path
