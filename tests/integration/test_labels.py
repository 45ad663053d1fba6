"""Live labels: conversations over real gRPC, and what the label log holds of them afterwards."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from hashlib import sha256
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest

from lpc.model import label_rows
from lpc.model.conversation import Message, from_messages
from lpc.model.inference import Model
from lpc.model.session import InferenceSettings
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from predictor_service.labels.tracker import TurnTracker
from predictor_service.labels.turn import Turn
from predictor_service.process import Addresses
from predictor_service.server import Parts, running
from testing.processes import Sidecar as Process
from tests.chat_templates import STYLES, tokenizer_of
from tests.eventually import patiently
from tests.integration.test_server import one, scrape
from tests.label_log import rows_of
from tests.tuned import TINY, command, tuned

HORIZON = 3600.0
START = 1_700_000_000.0
PROMPTS = ["hello world", "what is a cache", "thank you", "0 1 2 3", "the quick brown fox", "jumps over", "the lazy dog"]


@dataclass
class Sidecar:
    """A sidecar whose clock stands still until it is set."""

    stub: rpc.ContinuationPredictorStub
    addresses: Addresses
    now: float = START

    async def ask(self, conversation: pb.Conversation) -> pb.Prediction:
        self.now += 1
        return (await self.stub.Predict(one(conversation))).prediction

    async def until(self, line: str) -> str:
        """Return the metrics as soon as they have a line."""
        deadline = time.monotonic() + patiently()
        while line not in (text := await scrape(self.addresses)):
            assert time.monotonic() < deadline, [row for row in text.splitlines() if "label" in row]
            await asyncio.sleep(0.05)
        return text


@contextlib.asynccontextmanager
async def sidecar(models: Path, **changes: object) -> AsyncIterator[Sidecar]:
    values = {"models": models, **TINY, "client_rate": 0}
    made: list[Sidecar] = []
    parts = Parts(clock=lambda: made[0].now if made else START)
    async with (
        running(*tuned({**values, "label_horizon_s": HORIZON, **changes}, parts)) as addresses,
        grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}") as channel,
    ):
        made.append(Sidecar(rpc.ContinuationPredictorStub(channel), addresses))
        yield made[0]


def chat(prompts: Sequence[str], name: str = "") -> pb.Conversation:
    said = [m for p in prompts for m in (("user", p), ("assistant", "a reply"))][:-1]
    messages = [pb.ChatMessage(role=role, content=text) for role, text in [("system", "Be brief."), *said]]
    return pb.Conversation(chat=pb.ChatMessages(messages=messages), conversation_id=name)


def tokens(prompts: Sequence[str], style: str = "chatml") -> pb.Conversation:
    tokenizer = tokenizer_of(STYLES[style])
    said = [m for p in prompts for m in (("user", p), ("assistant", "a reply"))][:-1]
    text = tokenizer.apply_chat_template(
        [{"role": r, "content": t} for r, t in said], tokenize=False, add_generation_prompt=True
    )
    return pb.Conversation(tokens=pb.TokenIds(ids=tokenizer(text, add_special_tokens=False)["input_ids"], served_model="m"))


async def test_the_three_forms_of_input_are_labelled_and_written(tiny_models: Path, tmp_path: Path) -> None:
    tokenizer_of(STYLES["chatml"]).save_pretrained(tmp_path / "served")
    log = tmp_path / "log"
    answers: dict[str, list[pb.Prediction]] = {}
    async with sidecar(tiny_models, label_log=log, served_models={"m": str(tmp_path / "served")}) as running_:
        for n in range(1, len(PROMPTS) + 1):
            forms = {
                "chat": chat(PROMPTS[:n]),
                "named": pb.Conversation(prompt=f"{PROMPTS[n - 1]} prompt", conversation_id="c", turn_count=n),
                "tokens": tokens([f"{prompt} ids" for prompt in PROMPTS[:n]]),
            }
            for form, conversation in forms.items():
                answers.setdefault(form, []).append(await running_.ask(conversation))
        await running_.ask(pb.Conversation(prompt="without a name"))
        assert rows_of(log) == []
        running_.now += HORIZON
        await running_.until("lpc_label_memory_turns 0.0")
    found = rows_of(log)
    assert len(found) == 3 * len(PROMPTS)
    for k, form in enumerate(answers):
        own = found[k::3]
        assert [row["continues"] for row in own] == [True] * (len(PROMPTS) - 1) + [False], form
        assert [row["turn_count"] for row in own] == list(range(1, len(PROMPTS) + 1))
        assert [row["gap_s"] for row in own[:-1]] == [3.0] * (len(PROMPTS) - 1)
        assert math.isnan(own[-1]["gap_s"])
        assert len({row["conversation"] for row in own}) == 1
        assert [row["probability"] for row in own] == pytest.approx([a.probability for a in answers[form]], abs=1e-6)
    assert len({row["conversation"] for row in found}) == 3
    assert found[0]["asked_at"].replace(tzinfo=UTC).timestamp() == START + 1


async def test_a_row_equals_the_offline_embedding_of_the_conversation(tiny_models: Path, tmp_path: Path) -> None:
    async with sidecar(tiny_models, label_log=tmp_path) as running_:
        for n in range(1, len(PROMPTS) + 1):
            await running_.ask(chat(PROMPTS[:n]))
        running_.now += HORIZON
        await running_.until("lpc_label_memory_turns 0.0")
    model = Model(tiny_models / "tiny" / "v1", InferenceSettings("cpu", 1))
    for n, row in enumerate(rows_of(tmp_path), 1):
        turns = from_messages([Message(m.role, m.content) for m in chat(PROMPTS[:n]).chat.messages], 5)
        features = model.encode(turns)
        (probability,), (embedding,) = model.run_with_embeddings([features])
        assert row["probability"] == pytest.approx(probability, abs=1e-6)
        assert np.array(row["embedding"]) == pytest.approx(np.frombuffer(embedding, "<f2").astype(float), abs=2e-3)
        assert np.linalg.norm(row["embedding"]) == pytest.approx(1, abs=1e-2)
        assert row["tokens"] == len(features.input_ids)
        assert (row["prompt_chars"], row["history_chars"]) == (len(turns.prompts[-1]), turns.history_chars)
        assert row["last_reply_chars"] == turns.last_reply_chars == (7 if n > 1 else 0)


async def test_a_full_disk_does_not_affect_answers(tiny_models: Path, small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(64 * 1024))
    async with sidecar(tiny_models, label_log=small_disk, label_log_rows=5) as running_:
        for n in range(20):
            assert (await running_.ask(chat([f"full {n}"]))).probability > 0
        running_.now += HORIZON
        await running_.until('lpc_label_rows_total{result="dropped"} 20.0')
        ballast.unlink()
        for n in range(5):
            assert (await running_.ask(chat([f"room {n}"]))).probability > 0
        running_.now += HORIZON
        text = await running_.until('lpc_label_rows_total{result="written"} 5.0')
    assert 'lpc_label_rows_total{result="dropped"} 20.0' in text
    assert 'lpc_requests_total{method="Predict",status="OK"} 25.0' in text
    assert len(rows_of(small_disk)) == 5


def test_a_killed_sidecar_leaves_only_complete_files(tiny_models: Path, tmp_path: Path) -> None:
    """Killed while it writes file after file: what has a file's name can be read, and the rest nobody takes for one."""
    log = tmp_path / "log"
    settings = {"label_log": log, "label_horizon_s": 0.5, "command": command(label_log_rows=1)}
    with (
        Process(tmp_path, tiny_models, "tiny", **settings) as sidecar_,  # type: ignore[arg-type]
        grpc.insecure_channel(sidecar_.address) as channel,
    ):
        stub = rpc.ContinuationPredictorStub(channel)
        asked = 0
        while len(list(log.glob(label_rows.FILES))) < 5:
            batch = [chat([f"turn {asked + n}"]) for n in range(50)]
            asked += len(batch)
            stub.PredictBatch(pb.PredictBatchRequest(conversations=batch), timeout=patiently())
        sidecar_.kill()
    left = sorted(log.iterdir())
    assert all(path.name.removeprefix(".").startswith("labels-") for path in left)
    whole = [path for path in left if path.suffix == ".npz"]
    assert 5 <= sum(label_rows.metadata_of(path)["rows"] for path in whole) <= asked


async def test_a_turn_is_counted_for_the_client_that_sent_it(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[str] = []
    arrive = TurnTracker.arrive

    def seen(tracker: TurnTracker, *args: object) -> Turn:
        turn = arrive(tracker, *args)  # type: ignore[arg-type]
        clients.append(turn.sent.client)
        return turn

    monkeypatch.setattr(TurnTracker, "arrive", seen)
    (tmp_path / "tokens").write_text(f"engine-a: {sha256(b'a-token').hexdigest()}\n")
    unread = pb.Conversation(tokens=pb.TokenIds(ids=[1, 2], served_model="nobody knows it"))
    async with sidecar(tiny_models, tokens=tmp_path / "tokens", unix_socket=tmp_path / "s") as one_:
        for conversation in (chat(["hello"]), unread):
            request = pb.PredictRequest(conversation=conversation, accept_unread=True)
            await one_.stub.Predict(request, metadata=(("authorization", "Bearer a-token"),))
            async with grpc.aio.insecure_channel(f"unix://{tmp_path / 's'}") as channel:
                await rpc.ContinuationPredictorStub(channel).Predict(request)
    assert clients == ["engine-a", "unix"] * 2


async def test_a_conversation_continues_at_an_engine_with_another_token(tiny_models: Path, tmp_path: Path) -> None:
    """So a client that knows an id learns the number of its turns; the threat model says so."""
    names = ("engine-a", "engine-b")
    (tmp_path / "tokens").write_text("".join(f"{name}: {sha256(name.encode()).hexdigest()}\n" for name in names))
    async with sidecar(tiny_models, tokens=tmp_path / "tokens") as one_:
        for number, name in enumerate(names):
            ids = pb.TokenIds(ids=range(9 + number), served_model="nobody knows it")
            unread = pb.Conversation(tokens=ids, conversation_id="guessed")
            metadata = (("authorization", f"Bearer {name}"),)
            answer = await one_.stub.Predict(pb.PredictRequest(conversation=unread, accept_unread=True), metadata=metadata)
            assert answer.prediction.turn_count == number + 1
        await one_.until('lpc_returns_learnt{of="returns"} 1.0')


async def test_the_first_labels_recalibrate_the_probability(tiny_models: Path) -> None:
    async with sidecar(tiny_models, refit_s=0.05) as running_sidecar:
        before = await running_sidecar.ask(chat(["hello world"], "first"))
        for number in range(150):  # conversations that all end after one turn
            await running_sidecar.ask(chat([PROMPTS[number % len(PROMPTS)]], f"c{number}"))
        running_sidecar.now += HORIZON
        deadline = time.monotonic() + patiently()
        while (after := await running_sidecar.ask(chat(["hello world"], "last"))).probability > 0.2:
            assert time.monotonic() < deadline, after
            await asyncio.sleep(0.05)
    assert before.probability > 0.3
