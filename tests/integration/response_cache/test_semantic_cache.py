"""The semantic tier through a real sidecar: shut at first, opened by labels, shut by complaints, never across partitions."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import grpc.aio
import pytest

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.cache.v1 import response_cache_pb2_grpc as rpc
from lpc.model.features import ModelInput
from lpc.model.inference import Model
from lpc.v1 import predictor_pb2 as predictor
from lpc.v1 import predictor_pb2_grpc as predictor_rpc
from predictor_service.server import Parts
from response_cache.semantic import gate as gates
from response_cache.semantic.calibration import Embeddings
from response_cache.semantic.evidence import LEVELS, Evidence, edge
from response_cache.semantic.evidence_file import write_evidence
from response_cache.service import scopes_in_use
from response_cache.service.running import running
from response_cache.store.scopes import ScopeSettings
from testing.processes import RedisServer
from tests.eventually import eventually
from tests.integration.response_cache import test_service as service
from tests.integration.response_cache.test_service import caching, response, serve_caches

pytestmark = pytest.mark.usefixtures("patient")

BIRDS = [f"{a}{b}" for a in ("red", "blue", "old", "new", "tall", "wide") for b in ("bird", "house", "river", "stone", "boat")]
QUESTIONS = [
    f"where can a {bird} be {done} in the {place}"
    for bird in BIRDS
    for done in ("seen", "kept", "bought", "found", "drawn")
    for place in ("north", "town")
]


def request(text: str, about: str = "", **fields: object) -> pb.Request:
    """Return a request. ``about`` is its system message, which puts it into another partition."""
    if about:
        fields["messages"] = [pb.Message(role="system", content=about), pb.Message(role="user", content=text)]
    return service.request(text, **fields)


async def fill(stub: rpc.ResponseCacheStub, question: str, **fields: object) -> None:
    assert (await stub.Store(pb.StoreRequest(request=request(question, **fields), response=response(question)))).stored


async def look(stub: rpc.ResponseCacheStub, question: str, **fields: object) -> pb.LookupResponse:
    return await stub.Lookup(pb.LookupRequest(request=request(question, **fields)))


async def glance(stub: rpc.ResponseCacheStub, question: str, **fields: object) -> pb.LookupResponse:
    """Look up, and end the flight."""
    found = await look(stub, question, **fields)
    if found.miss.flight:
        await stub.Store(pb.StoreRequest(request=request(question, **fields), flight=found.miss.flight, aborted=True))
    return found


async def until_candidate(stub: rpc.ResponseCacheStub, question: str, **fields: object) -> pb.Miss:
    """Wait until the sidecar's index has a candidate for a question."""

    async def near() -> pb.Miss | None:
        miss = (await glance(stub, question, **fields)).miss
        return miss if miss.candidate else None

    return await eventually(near)


def reworded(question: str) -> str:
    return f"please {question} thanks"


async def test_labels_open_the_tier_and_complaints_shut_it(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    scopes = {"faq": ScopeSettings(kind="faq", mode="serve", question="text")}
    async with serve_caches(tiny_models, tmp_path, redis_server.url, cache_scopes=scopes) as stub:
        # In separate partitions, so that the tiny model need not distinguish them.
        for question in QUESTIONS:
            await fill(stub, question, about=question)
        first = await until_candidate(stub, reworded(QUESTIONS[-1]), about=QUESTIONS[-1])
        assert first.reason == pb.REASON_BELOW_THRESHOLD
        hits: list[pb.Hit] = []
        for question in QUESTIONS:
            found = await look(stub, reworded(question), about=question)
            if found.HasField("hit"):
                hits.append(found.hit)
            elif found.miss.candidate:
                asked, miss = request(reworded(question), about=question), found.miss
                same = response(question)
                await stub.Store(pb.StoreRequest(request=asked, response=same, candidate=miss.candidate, flight=miss.flight))
        assert hits, "evidence that says `same` each time opened nothing"
        for hit in hits:
            assert hit.source == pb.SOURCE_SEMANTIC and 0 < hit.error_bound <= 0.05 and hit.similarity < 1
            assert hit.matched_question in QUESTIONS
        (scope,) = (await stub.Stats(pb.StatsRequest(scope="faq"))).scopes
        assert scope.HasField("threshold") and scope.error_bound <= 0.05 and scope.labels_different == 0
        # Repeated complaints about one answer count once.
        again = pb.FeedbackRequest(entry_id=hits[0].entry_id, wrong=True)
        assert [(await stub.Feedback(again)).counted for _ in range(5)] == [True, False, False, False, False]
        (scope,) = (await stub.Stats(pb.StatsRequest(scope="faq"))).scopes
        assert scope.HasField("threshold") and scope.labels_different == 1
        for hit in hits:
            await stub.Feedback(pb.FeedbackRequest(entry_id=hit.entry_id, wrong=True))
        (scope,) = (await stub.Stats(pb.StatsRequest(scope="faq"))).scopes
        assert not scope.HasField("threshold")


async def asked_again(stub: rpc.ResponseCacheStub, question: str) -> pb.LookupResponse:
    """Look up a rewording until the index has the stored question."""

    async def near() -> pb.LookupResponse | None:
        found = await glance(stub, reworded(question), about=question)
        return found if found.HasField("hit") or found.miss.candidate else None

    return await eventually(near)


async def until_shut(stub: rpc.ResponseCacheStub) -> None:
    async def shut() -> bool:
        (scope,) = (await stub.Stats(pb.StatsRequest(scope="faq"))).scopes
        return not scope.HasField("threshold")

    await eventually(shut)


async def test_a_file_of_evidence_opens_two_sidecars_and_drift_in_one_shuts_both(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scopes_in_use, "EVIDENCE_S", 0.2)

    def audits(share: float) -> None:
        for name in ("AUDITS", "FIRST_AUDITS"):
            monkeypatch.setattr(gates, name, share)

    evidence = Evidence()
    for _ in range(400):  # the same at every similarity, since the tiny model's vectors are meaningless
        for level in range(LEVELS):
            evidence.apply([*evidence.lookup(edge(level) + 1e-4), *evidence.label(edge(level) + 1e-4, same=True)])
    write_evidence(tmp_path / "evidence.json", evidence, Embeddings(tiny_models, "tiny").encoder)
    scopes = {"faq": ScopeSettings(kind="faq", mode="serve", evidence=tmp_path / "evidence.json", question="text")}
    changes = {"cache_scopes": scopes, "cache_redis_timeout_s": 5.0}
    async with (
        serve_caches(tiny_models, tmp_path, redis_server.url, **changes) as one,
        serve_caches(tiny_models, tmp_path, redis_server.url, **changes, state=tmp_path / "other") as other,
    ):
        for question in QUESTIONS[:8]:
            await fill(one, question, about=question)
        audits(0)
        for stub, question in ((one, QUESTIONS[0]), (other, QUESTIONS[1]), (other, QUESTIONS[2])):
            hit = (await asked_again(stub, question)).hit
            assert hit.source == pb.SOURCE_SEMANTIC and hit.matched_question == question
            assert hit.response == response(question) and 0 < hit.error_bound <= 0.05
        # A question with a semantic hit in one sidecar goes to the engine in the others.
        with contextlib.closing(redis_server.client()) as client:
            await eventually(lambda: len(list(client.scan_iter("lpc:rc:*:q:*"))) >= 3)
        assert (await asked_again(other, QUESTIONS[0])).miss.reason == pb.REASON_BELOW_THRESHOLD
        # The engine's answers to audited questions differ from the candidates'.
        audits(1)
        for question in QUESTIONS[3:6]:
            miss = (await asked_again(one, question)).miss
            assert miss.reason == pb.REASON_AUDITED
            asked = request(reworded(question), about=question)
            fields = {"response": response("no"), "candidate": miss.candidate, "flight": miss.flight}
            await one.Store(pb.StoreRequest(request=asked, **fields))
        audits(0)
        for stub in (one, other):
            await until_shut(stub)
            assert (await asked_again(stub, QUESTIONS[6])).miss.reason == pb.REASON_BELOW_THRESHOLD
    async with serve_caches(tiny_models, tmp_path, redis_server.url, **changes) as later:
        assert (await asked_again(later, QUESTIONS[7])).miss.reason == pb.REASON_BELOW_THRESHOLD


@pytest.mark.parametrize("mode", ["off", "shadow"])
async def test_a_scope_in_mode_off_or_shadow_serves_nothing(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer, mode: str
) -> None:
    scopes = {"faq": ScopeSettings(mode=mode), "other": ScopeSettings(mode="shadow")}  # type: ignore[arg-type]
    async with serve_caches(tiny_models, tmp_path, redis_server.url, cache_scopes=scopes) as stub:
        for question in QUESTIONS[:20]:
            await fill(stub, question)
        # Stored questions become candidates in the background. A scope that is not off shows when.
        await fill(stub, QUESTIONS[0], scope="other")
        await until_candidate(stub, reworded(QUESTIONS[0]), scope="faq" if mode == "shadow" else "other")
        found = [await look(stub, reworded(question)) for question in QUESTIONS[:20]]
    assert not any(one.HasField("hit") for one in found)
    assert any(one.miss.candidate for one in found) is (mode == "shadow")


async def test_a_candidate_is_in_the_same_partition_and_not_vetoed(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    scopes = {"faq": ScopeSettings(mode="serve")}
    question = QUESTIONS[0]
    async with serve_caches(tiny_models, tmp_path, redis_server.url, cache_scopes=scopes) as stub:
        await fill(stub, question)
        await until_candidate(stub, reworded(question))
        for fields in (
            {"model": "another"},
            {"tenant": "another"},
            {"parameters_json": json.dumps({"temperature": 0, "max_tokens": 9}).encode()},
            {"tools_json": b'[{"type": "function"}]'},
            {"messages": [pb.Message(role="system", content="Be brief."), pb.Message(role="user", content=reworded(question))]},
        ):
            other = request(reworded(question), **fields)
            miss = (await stub.Lookup(pb.LookupRequest(request=other))).miss
            assert not miss.candidate, fields
        vetoed = (await look(stub, question.replace("can a", "can no"))).miss
        assert (vetoed.reason, vetoed.candidate) == (pb.REASON_VETOED, b"")


async def test_sidecars_share_their_index_and_a_restart_restores_it(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    scopes = {"faq": ScopeSettings(mode="serve")}
    changes = {"cache_scopes": scopes, "cache_redis_timeout_s": 5.0}
    async with serve_caches(tiny_models, tmp_path, redis_server.url, **changes) as stub:
        async with serve_caches(tiny_models, tmp_path, redis_server.url, **changes, state=tmp_path / "other") as other:
            await look(other, "hello")
            await fill(stub, QUESTIONS[0])
            await until_candidate(other, reworded(QUESTIONS[0]))
            # An entry that is dropped at one sidecar disappears at the other.
            stored = await stub.Store(pb.StoreRequest(request=request(QUESTIONS[1]), response=response()))
            await until_candidate(other, reworded(QUESTIONS[1]))
            await stub.Feedback(pb.FeedbackRequest(entry_id=stored.entry_id, drop=True))
            await stub.Invalidate(pb.InvalidateRequest(scope="faq"))

            async def gone() -> bool:
                return not (await glance(other, reworded(QUESTIONS[0]))).miss.candidate

            await eventually(gone)
        flight = (await look(stub, QUESTIONS[2])).miss.flight  # an answer without one may be from before the invalidation
        again = pb.StoreRequest(request=request(QUESTIONS[2]), response=response(), flight=flight)
        assert (await stub.Store(again)).stored
    async with serve_caches(tiny_models, tmp_path, redis_server.url, **changes) as stub:
        await until_candidate(stub, reworded(QUESTIONS[2]))


async def test_invalid_events_in_a_scopes_stream_are_skipped(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    scopes = {"faq": ScopeSettings(mode="serve"), "other": ScopeSettings(mode="serve")}
    async with serve_caches(tiny_models, tmp_path, redis_server.url, cache_scopes=scopes) as stub:
        await fill(stub, QUESTIONS[0])
        await until_candidate(stub, reworded(QUESTIONS[0]))
        with contextlib.closing(redis_server.client()) as client:
            (stream,) = client.scan_iter("lpc:rc:*:x")
            client.xadd(stream, {"d": "a"})  # no base64
        for scope, question in (("other", QUESTIONS[1]), ("faq", QUESTIONS[2])):
            await fill(stub, question, scope=scope, tenant=scope)
            await until_candidate(stub, reworded(question), scope=scope, tenant=scope)


class Counting(Model):
    """Counts its inputs."""

    ran = 0

    def run(self, batch: Sequence[ModelInput]) -> list[float]:
        Counting.ran += len(batch)
        return super().run(batch)

    def run_with_embeddings(self, batch: Sequence[ModelInput]) -> tuple[list[float], list[bytes]]:
        Counting.ran += len(batch)
        return super().run_with_embeddings(batch)


async def test_cache_and_predictor_share_one_forward_pass(tiny_models: Path, tmp_path: Path, redis_server: RedisServer) -> None:
    settings = caching(tiny_models, tmp_path, redis_server.url, cache_scopes={"faq": ScopeSettings(mode="serve")})
    chat = predictor.ChatMessages(messages=[predictor.ChatMessage(role="user", content="what is a cache")])
    asked = predictor.PredictRequest(conversation=predictor.Conversation(chat=chat))
    async with (
        running(settings, Parts(load=Counting)) as addresses,
        grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}") as channel,
    ):
        predicts, cache_stub = predictor_rpc.ContinuationPredictorStub(channel), rpc.ResponseCacheStub(channel)
        before = Counting.ran
        await look(cache_stub, "what is a cache")
        assert Counting.ran == before + 1
        probability = (await predicts.Predict(asked)).prediction.probability
        assert Counting.ran == before + 1
    async with (
        running(settings.model_copy(update={"cache_scopes": {}})) as addresses,
        grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}") as channel,
    ):
        alone = (await predictor_rpc.ContinuationPredictorStub(channel).Predict(asked)).prediction.probability
    assert alone == pytest.approx(probability, abs=1e-6)
