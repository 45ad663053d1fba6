"""Judges of answers at work in a real sidecar: measured or refused, never while a request waits, and silent in the logs."""

from pathlib import Path

import pytest

from benchmarks.processes import RedisServer
from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.cache.v1 import response_cache_pb2_grpc as rpc
from lpc.responses.scopes import ScopeSettings
from lpc.responses.semantic.calibration import Embeddings
from lpc.responses.semantic.evidence import Evidence
from lpc.responses.semantic.evidence_file import write_evidence
from lpc.responses.semantic.threshold import JudgeError
from predictor_service.errors import StartError
from tests.eventually import eventually
from tests.integration.test_response_cache_service import request, response, served
from tests.integration.test_semantic_cache import QUESTIONS, fill, reworded, until_candidate
from tests.judge_double import JudgeDouble, judging

pytestmark = pytest.mark.usefixtures("patient")


def measured(models: Path, path: Path, judge: str, model: str = "", error: JudgeError | None = None) -> Path:
    encoder = Embeddings(models, "tiny", path.parent).encoder
    write_evidence(path, Evidence(), encoder, judge, model, error or JudgeError(1, 1000))
    return path


async def labels(stub: rpc.ResponseCacheStub, count: int) -> int:
    """Wait for so many labels; return how many of them say that the answers differ."""

    async def found() -> pb.ScopeStats | None:
        (scope,) = (await stub.Stats(pb.StatsRequest(scope="faq"))).scopes
        return scope if scope.labels >= count else None

    return int((await eventually(found)).labels_different)


async def engine_answers(stub: rpc.ResponseCacheStub, question: str, said: str) -> None:
    """Ask a rewording, and hand in an engine's own answer."""
    miss = await until_candidate(stub, reworded(question), tenant=question)
    asked = request(reworded(question), tenant=question)
    await stub.Store(
        pb.StoreRequest(request=asked, response=response(said), flight=miss.flight, candidate=miss.candidate), timeout=10
    )


async def test_a_model_judges_behind_the_requests(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    evidence = measured(tiny_models, tmp_path / "evidence.json", "model", "judge")
    (tmp_path / "key").write_text("sesame")
    with judging(JudgeDouble("SAME")) as judge:
        scope = ScopeSettings(
            mode="serve",
            judge="model",
            judge_url=judge.url,
            judge_model="judge",
            judge_key_file=tmp_path / "key",
            evidence=evidence,
        )
        async with served(tiny_models, tmp_path, redis_server.url, cache_scopes={"faq": scope}) as stub:
            for question in QUESTIONS[:3]:
                await fill(stub, question, tenant=question)
            judge.go.clear()
            await engine_answers(stub, QUESTIONS[0], "another wording")  # it returns although no judge has spoken
            (figures,) = (await stub.Stats(pb.StatsRequest(scope="faq"))).scopes
            assert figures.labels == 0
            judge.go.set()
            assert await labels(stub, 1) == 0
            judge.reply = "DIFFERENT"
            await engine_answers(stub, QUESTIONS[1], "another wording")
            assert await labels(stub, 2) == 1
            judge.status = 500
            await engine_answers(stub, QUESTIONS[2], "another wording")
            await eventually(lambda: len(judge.bodies) == 3)
        assert [body["key"] for body in judge.bodies] == ["Bearer sesame"] * 3
        assert reworded(QUESTIONS[0]) in judge.bodies[0]["messages"][1]["content"]
    assert not any(text in caplog.text for text in ("sesame", "another wording", *QUESTIONS[:3]))


async def test_vectors_and_numbers_judge(tiny_models: Path, tmp_path: Path, redis_server: RedisServer) -> None:
    evidence = measured(tiny_models, tmp_path / "evidence.json", "embedding")
    scope = ScopeSettings(mode="serve", judge="embedding", evidence=evidence)
    async with served(tiny_models, tmp_path, redis_server.url, cache_scopes={"faq": scope}) as stub:
        for question in QUESTIONS[:2]:
            stored = pb.StoreRequest(
                request=request(question, tenant=question), response=response("it opens at 9 in the north")
            )
            assert (await stub.Store(stored)).stored
        await engine_answers(stub, QUESTIONS[0], "It opens at 9 in the north.")
        assert await labels(stub, 1) == 0
        await engine_answers(stub, QUESTIONS[1], "it opens at 10 in the north")
        assert await labels(stub, 2) == 1


@pytest.mark.parametrize("known", ["nothing", "another judge", "nothing of the judge"])
async def test_a_judge_that_was_not_measured_stops_the_start_and_says_what_to_run(
    tiny_models: Path, tmp_path: Path, known: str
) -> None:
    path = tmp_path / "evidence.json"
    if known == "another judge":
        measured(tiny_models, path, "model", "m")
    elif known == "nothing of the judge":
        write_evidence(path, Evidence(), Embeddings(tiny_models, "tiny", tmp_path).encoder)
    scope = ScopeSettings(mode="shadow", judge="embedding", evidence=None if known == "nothing" else path)
    with pytest.raises(
        StartError, match=r"^scope faq: .*`lpc cache calibrate --answers FILE --judge embedding --evidence"
    ) as caught:
        async with served(tiny_models, tmp_path, "redis://127.0.0.1:1/0", cache_scopes={"faq": scope}):
            pass
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "says"),
    [({"judge": "model"}, "needs judge_url"), ({"judge": "embedding", "judge_url": "http://x/v1"}, "judge_url, judge_model")],
)
def test_settings_of_a_judge_that_cannot_be_meant_are_refused(values: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ScopeSettings.model_validate(values)
