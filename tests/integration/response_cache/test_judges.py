"""The judge of answers in a real sidecar: it must be measured, and it does not delay requests."""

from pathlib import Path

import pytest

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.cache.v1 import response_cache_pb2_grpc as rpc
from predictor_service.errors import StartError
from response_cache.semantic.calibration import Embeddings
from response_cache.semantic.evidence import Evidence
from response_cache.semantic.evidence_file import write_evidence
from response_cache.semantic.threshold import JudgeError
from response_cache.store.scopes import ScopeSettings
from testing.processes import RedisServer
from tests.eventually import eventually, patiently
from tests.integration.response_cache.test_semantic_cache import QUESTIONS, reworded, until_candidate
from tests.integration.response_cache.test_service import request, response, serve_caches

pytestmark = pytest.mark.usefixtures("patient")


async def labels(stub: rpc.ResponseCacheStub, count: int) -> int:
    """Wait for ``count`` labels; return how many of them are "different"."""

    async def found() -> pb.ScopeStats | None:
        (scope,) = (await stub.Stats(pb.StatsRequest(scope="faq"))).scopes
        return scope if scope.labels >= count else None

    return int((await eventually(found)).labels_different)


async def store_answer(stub: rpc.ResponseCacheStub, question: str, text: str) -> None:
    """Look up a rewording, and store the engine's answer."""
    miss = await until_candidate(stub, reworded(question), tenant=question)
    asked = request(reworded(question), tenant=question)
    await stub.Store(
        pb.StoreRequest(request=asked, response=response(text), flight=miss.flight, candidate=miss.candidate),
        timeout=patiently(),
    )


async def test_answers_are_judged_by_vectors_and_numbers(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    evidence = tmp_path / "evidence.json"
    write_evidence(evidence, Evidence(), Embeddings(tiny_models, "tiny").encoder, JudgeError(1, 1000))
    scope = ScopeSettings(mode="serve", judge="embedding", evidence=evidence)
    async with serve_caches(tiny_models, tmp_path, redis_server.url, cache_scopes={"faq": scope}) as stub:
        for question in QUESTIONS[:2]:
            stored = pb.StoreRequest(
                request=request(question, tenant=question), response=response("it opens at 9 in the north")
            )
            assert (await stub.Store(stored)).stored
        await store_answer(stub, QUESTIONS[0], "It opens at 9 in the north.")
        assert await labels(stub, 1) == 0
        await store_answer(stub, QUESTIONS[1], "it opens at 10 in the north")
        assert await labels(stub, 2) == 1
    assert not any(text in caplog.text for text in ("in the north", *QUESTIONS[:2]))


@pytest.mark.parametrize("known", ["nothing", "nothing about the judge"])
async def test_an_unmeasured_judge_prevents_the_start(tiny_models: Path, tmp_path: Path, known: str) -> None:
    path = tmp_path / "evidence.json"
    write_evidence(path, Evidence(), Embeddings(tiny_models, "tiny").encoder)
    scope = ScopeSettings(mode="shadow", judge="embedding", evidence=None if known == "nothing" else path)
    with pytest.raises(StartError, match=r"^scope faq: .*`lpc cache calibrate --answers FILE --evidence") as caught:
        async with serve_caches(tiny_models, tmp_path, "redis://127.0.0.1:1/0", cache_scopes={"faq": scope}):
            pass
    assert "\n" not in str(caught.value)
